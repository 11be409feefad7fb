/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The VMs of this node as the broker knows them: those it started, those it found when it started, and, for a moment,
 * unknown ids that are being removed. One phase each; at most one job works on a VM at a time. Single-threaded.
 */
#pragma once
#include "broker/layout.h"
#include "broker/reactor.h"
#include "broker/record.h"
#include "broker/server.h"

enum vm_phase {
    VM_CHECKING, /* a start that waits until its snapshot has been checked */
    VM_STARTING, /* a start job runs */
    VM_KEPT,     /* running, or dead and not yet stopped */
    VM_SEALING,  /* a seal job runs */
    VM_LOADING,  /* a load job runs */
    VM_SNAPSHOT, /* a snapshot of it is taken */
    VM_REMOVING, /* a remove job runs; afterwards it is gone */
};
const char *vm_phase_name(enum vm_phase phase);

/* Who waits for the removal of a VM. */
struct vm_waiter {
    struct reply_to to;
    void (*removed)(void *ctx, const char *id, const struct sp_error *error); /* instead of a reply; error NULL: gone */
    void *ctx;
    struct vm_waiter *next;
};

struct broker;
struct vm {
    struct broker *broker;
    struct vm_record record;
    enum vm_phase phase;
    bool unknown; /* only its id is known: a sweep or a stop of something that has no record */
    int pidfd;    /* of space-vm while it is alive, else -1 */
    int reactor;  /* where pidfd is watched */
    struct watch watch;
    struct reply_to starter;        /* who asked for the start, until answered */
    struct sp_error failure;        /* of the start, while its remains are removed */
    json_t *config;                 /* CHECKING, STARTING and LOADING: the node's */
    bool loading;                   /* CHECKING: what waits is not a start but a load */
    char bind[ID_SIZE];             /* LOADING: the sandbox it is for, or "" */
    char seal_key[BROKER_KEY_SIZE]; /* SEALING and SNAPSHOT: what is made of it */
    json_t *seal_manifest;
    enum request_then then;       /* SNAPSHOT */
    enum request_content content; /* SNAPSHOT */
    struct vm_waiter *waiters;    /* asked for its removal while a job was at it, or while it is removed */
    struct vm *next;
};

struct vm_table {
    struct vm *first;   /* ordered by id */
    size_t n, n_spares; /* all of them; of these: spares */
    uid_t last_uid;
};

struct vm *vm_table_find(const struct vm_table *table, const char *id);
struct vm *vm_table_add(struct vm_table *table, struct broker *broker, const char *id); /* phase: VM_KEPT */
/* The VM whose control group has this name: its id at birth. */
struct vm *vm_table_find_cgroup(const struct vm_table *table, const char *cgroup);
/* Gives it another id (vm->record.id is the new one already) and its place in the order. */
void vm_table_moved(struct vm_table *table, struct vm *vm);
/* Frees it. No job and no watch may refer to it. */
void vm_table_drop(struct vm_table *table, struct vm *vm);
void vm_table_clear(struct vm_table *table);
/* A uid in [first, last] that no VM has, going round so that one just freed is not the next. 0: none is left. */
uid_t vm_table_free_uid(struct vm_table *table, uid_t first, uid_t last);
/* As a base (of the disk alone: while a snapshot is taken), or to be started or loaded from, or being made. What a VM was started from is not used once it has another base. */
bool vm_table_uses_snapshot(const struct vm_table *table, const char *key);
bool vm_table_uses_template(const struct vm_table *table, const char *digest);

/* Watches for the death of its process from now on; does nothing when it is dead already. */
void vm_follow(struct vm *vm, int reactor);
void vm_unfollow(struct vm *vm);

/* Fills the table from the records on disk and follows what is alive. Left out, and so for the sweep to remove: what is
 * no valid record, and dead starts that never got as far as space-vm. */
struct vm_table_load {
    struct broker *broker;
    const struct layout *layout;
    const char *boot_id;
    int reactor;
};
int vm_table_load(struct vm_table *table, const struct vm_table_load *load, struct sp_error *err);
