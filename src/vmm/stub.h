/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The VMM stub: how space-vm gets a VMM into a jail it could not make itself.
 *
 * The broker makes the jail and, in the process that is about to become space-vm, clones a child into the VMM's own
 * pid/mount/net/ipc namespaces and root. That child drops to the VM's uid and calls vmm_stub_serve(); it is a child of
 * space-vm, so space-vm can wait for it, and it is pid 1 of its namespace, so the VMM sees no other process.
 * space-vm decides the command line (the driver's) and sends it with vmm_stub_exec(); the stub execs it.
 *
 * Wire: one SOCK_SEQPACKET socketpair, both ends CLOEXEC from birth (space-vm's end is inherited by clearing the flag).
 *   space-vm → stub   one JSON object {"argv":[...], "env":[...]}, ≤ 32 KiB, with 3..16 descriptors attached.
 *                     Descriptor i of the message becomes number i of the VMM (0 stdin, 1 stdout, 2 stderr, then what
 *                     argv names); every other descriptor of the stub is closed. argv[0] is the absolute path.
 *   stub → space-vm   on failure only: {"errno":N, "op":"..."}, then the stub exits 127. On success exec closes the
 *                     stub's end: space-vm sees end of file. (End of file also comes when the stub is killed; then
 *                     its pidfd is readable.)
 * Nothing else ever travels on it, and the stub serves exactly one request.
 */
#pragma once
#include "base/clock.h"
#include "base/error.h"
#include <stddef.h>

#define VMM_STUB_MESSAGE_MAX (32 * 1024)
#define VMM_STUB_FDS_MIN 3
#define VMM_STUB_FDS_MAX 16
#define VMM_STUB_ARGS_MAX 256 /* entries of argv, and of env */
#define VMM_STUB_EXIT 127     /* exit status when the request was refused or exec failed */

/*
 * The jail's side; never returns. Preconditions, made by the broker before the call:
 *  - namespaces, root, uid, gid, groups, empty bounding set, rlimits and cgroup are final; `sock` is the only descriptor
 *    that matters (all others are closed here);
 *  - the file system holds what the driver names: /usr and the loader's directories, and <vm_dir> (vm/vm_config.h).
 * It sets PR_SET_PDEATHSIG(SIGKILL) (after the uid change, which clears it), PR_SET_NO_NEW_PRIVS, default signal
 * dispositions and an empty mask, waits for the request without a deadline (end of file: exit 0) and execs.
 */
_Noreturn void vmm_stub_serve(int sock);

struct vmm_stub_request {
    const char *const *argv; /* NULL-ended, argv[0] absolute */
    const char *const *env;  /* NULL-ended, "K=V"; the VMM's whole environment */
    const int *fds;          /* borrowed; fds[i] becomes number i; the caller closes its copies afterwards */
    size_t n_fds;            /* VMM_STUB_FDS_MIN..VMM_STUB_FDS_MAX */
};

/* space-vm's side: sends the request and waits until exec has happened or failed. SP_E_VMM with errno and op of the
 * stub when it refused, SP_E_TIMEOUT when nothing happened. Does not close sock; it is of no further use. */
int vmm_stub_exec(int sock, const struct vmm_stub_request *request, struct deadline deadline, struct sp_error *err);
