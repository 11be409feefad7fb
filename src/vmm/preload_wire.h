/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between a VMM driver and the preload inside its VMM (preload/preload.c): a SOCK_SEQPACKET socketpair whose far end the
 * VMM inherits. The VMM is started without its files. Where it opens one of them first it stops, says HELD and waits for
 * GIVE with both; from then on every open of either path is a duplicate of what was given, and the file system is never
 * asked. Where RAM was mapped it says MAPPED, once.
 *
 *   preload → driver   HELD
 *   driver → preload   GIVE, with two descriptors: RAM, disk
 *   preload → driver   MAPPED {address, length, tracked}; tracked: with one descriptor, a userfaultfd of the VMM
 *                      (WP_ASYNC) on which nothing is registered yet. Without: what was written is found by comparing.
 *
 * Everything arrives before the guest has run, so it is the VMM's own code that speaks; it is parsed with bounds all the
 * same. End of file on the VMM's side: it exits. The socket closes in the VMM after MAPPED.
 */
#pragma once
#include <stdint.h>

/* The VMM's environment. */
#define PRELOAD_ENV_MEMORY "SPACE_VMM_MEMORY" /* path of the RAM file */
#define PRELOAD_ENV_DISK "SPACE_VMM_DISK"     /* path of the disk */
#define PRELOAD_ENV_SOCKET "SPACE_VMM_FILES"  /* number of the inherited descriptor */

enum preload_kind { PRELOAD_HELD = 1, PRELOAD_GIVE = 2, PRELOAD_MAPPED = 3 };
#define PRELOAD_MAGIC 0x53504631u /* "SPF1" */

struct preload_message {
    uint32_t magic;
    uint32_t kind;
    uint64_t address, length; /* MAPPED */
    uint32_t tracked;         /* MAPPED */
    uint32_t zero;
};
