/* SPDX-License-Identifier: Apache-2.0 */
/* What makes this guest another one than the image it came from: the system half of IDENTITY. No sessions, no waiting. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IDENTITY_HOOK_DIR "/etc/space/identity.d"
#define IDENTITY_MAX_HOOKS 64u

struct identity_values {
    uint64_t generation, realtime_ns;
    const uint8_t *entropy;
    size_t entropy_len;
    const char *hostname;   /* "" : leave */
    const char *machine_id; /* "" : leave */
    const char *sandbox_id; /* "" : leave */
    bool same;              /* as the last one: only time has passed, so clock and entropy and nothing else */
    bool other_machine;     /* the machine id differs from the last one: a new boot id too */
};

bool identity_hostname_is_good(const char *s);   /* 1 to 63 of a-z 0-9 - and ., "" is fine */
bool identity_machine_id_is_good(const char *s); /* 32 lower-case hex digits, "" is fine */
/* Carries it out in the order of the contract; what fails is logged and the rest goes on. Returns the number of failures. */
unsigned identity_apply(const struct identity_values *v);
/* The hooks to run, sorted, as paths in one block (NULL-ended): root's, executable, writable by nobody else, in a
 * directory of the same kind. NULL: none (or out of memory). */
char **identity_hooks(void);
