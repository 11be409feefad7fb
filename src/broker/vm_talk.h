/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The broker's side of control.sock: what only root may ask of a space-vm (spec/node-protocol.md §3), one request at a time
 * with descriptors. Blocking, in jobs. The other end is not trusted: every answer is bounded, checked and has a deadline.
 */
#pragma once
#include "base/clock.h"
#include "base/error.h"
#include "broker/layout.h"
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct vm_talk {
    int fd;
    uint64_t seq; /* of the request under way */
    char buffer[48 * 1024];
};

struct vm_talk *vm_talk_open(const struct layout *layout, const char *id, struct sp_error *err);
struct vm_talk *vm_talk_close(struct vm_talk *talk); /* NULL is fine; returns NULL */
/* Takes fields over and adds request and seq; a new seq for a request that is answered by `done` of its own. */
int vm_talk_send(struct vm_talk *talk, const char *request, bool anew, json_t *fields, const int *fds, size_t n_fds,
                 struct sp_error *err);
/* Waits for {event: "snapshot", step}, or for `done` when step is NULL, reading past everything else. A `done` that says no
 * is an error with space-vm's own code in `field`. ret may be NULL. */
int vm_talk_wait(struct vm_talk *talk, const char *step, struct deadline deadline, json_t **ret, struct sp_error *err);

static inline void vm_talk_closep(struct vm_talk **talk) {
    *talk = vm_talk_close(*talk);
}
#define _cleanup_talk_ __attribute__((cleanup(vm_talk_closep)))
