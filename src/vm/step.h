/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single steps of a VM's life, shared by the straight-line files (lifecycle, boot, load, operate, snapshot). Each has a
 * deadline and one reason when it fails. A step that returns false has failed the VM or was interrupted by a stop
 * request, unless it says otherwise.
 */
#pragma once
#include "vm/vm.h"

/* Bounds of single steps; the whole has a deadline as well. */
#define SPAWN_MS 15000
#define QMP_MS 30000
#define LOAD_MS 30000
#define HELLO_MS 20000    /* a restored agent */
#define IDENTITY_MS 30000 /* hooks of the image run in it */
#define START_MS 30000
#define SAVE_MS 30000
#define FREEZE_MS 15000 /* the agent itself gives up after 5 s, and 5 s of writing out */

struct deadline step_deadline(const struct vm *vm, uint64_t ms);
bool step_is_over(const struct vm *vm);
/* Turns the loop until then. */
void step_pause(struct vm *vm, uint64_t ms);

/* Judges a driver call. When the VMM died of it, its death says more than the call's error. */
bool step_vmm(struct vm *vm, int r, const struct sp_error *err, enum vm_reason otherwise, const char *step);
/* Silence of the guest: the step's own reason, unless the time for everything is up. */
void step_fail_silent(struct vm *vm, const char *step);

/* HELLO until it is acknowledged. False also when time is up: the reason is the caller's. */
bool step_hello(struct vm *vm, struct deadline d);
/* Sends what call_begin() started and waits for the answer; false leaves the reason to the caller, see step_ask(). */
bool step_ask_quietly(struct vm *vm, struct deadline d);
bool step_ask(struct vm *vm, uint16_t want, struct deadline d, const char *step);
bool step_identify(struct vm *vm, uint64_t *since);
void step_put_command(struct buf *b, const struct vm_command *c);
/* Runs a command to its end, output dropped. */
bool step_run(struct vm *vm, const struct vm_command *c, const char *what, uint64_t *ret_code);
/* The first command of a clone is quick when the image holds the shell, the loader and the C library in its page cache. A
 * template without a shell answers 127, which is as good. */
bool step_warm(struct vm *vm, uint64_t *since);

/* --- load.c --- */
void run_clone(struct vm *vm);
void run_blank(struct vm *vm);
/* VMM started and held, then given the files of the configuration, then up. */
bool load_vmm(struct vm *vm, enum vmm_purpose purpose, uint64_t *since);
bool operate_load(struct vm *vm);
/* Whoever holds a shared RAM file writable could rewrite the memory of every clone: not even given to the VMM. */
bool load_is_read_only(int fd);

/* --- boot.c --- */
void run_template_boot(struct vm *vm);
void run_boot(struct vm *vm);

/* --- operate.c --- */
/* Carries out the operation that was taken in; returns with none. */
void operate(struct vm *vm);
/* The operation is refused; false, for a return. The first reason stays. */
bool operate_refuse(struct vm *vm, const char *code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* `done` of the operation as it stands, once. */
void operate_answer(struct vm *vm);
/* Commands frozen, with `sync` the guest's root file system written out, streams standing still, machine stopped. False: it
 * runs as before and the operation is refused, or the VM failed. */
bool operate_stand(struct vm *vm, bool sync, uint64_t *since);
/* And back: the machine goes on, and with the clock right the commands. */
bool operate_go_on(struct vm *vm, uint64_t *since);

/* --- snapshot.c --- */
bool operate_snapshot(struct vm *vm);
