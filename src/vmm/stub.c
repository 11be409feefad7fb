/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both sides of the VMM stub (stub.h). The serving side runs in the jail after every privilege is gone and before the
 * VMM's exec: it parses one message of its parent and never returns. The asking side runs in space-vm.
 */
#include "vmm/stub.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Above every number a descriptor is to land on, so that moving one never overwrites another. */
#define STUB_FD_STAGE 64

/* --- in the jail ------------------------------------------------------------------------------------------------ */

static _Noreturn void stub_fail(int sock, int err_no, const char *op) {
    char text[96];
    int n = snprintf(text, sizeof(text), "{\"errno\":%d,\"op\":\"%s\"}", err_no, op);
    if (n > 0 && (size_t)n < sizeof(text))
        (void)fd_send_message(sock, text, (size_t)n, NULL, 0, NULL);
    _exit(VMM_STUB_EXIT);
}

/* A JSON array of strings as a NULL-ended vector that borrows from it. */
static bool stub_vector(const json_t *array, const char *ret[VMM_STUB_ARGS_MAX + 1]) {
    size_t i, n = json_array_size(array);
    if (!json_is_array(array) || n > VMM_STUB_ARGS_MAX)
        return false;
    for (i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item))
            return false;
        ret[i] = json_string_value(item);
    }
    ret[n] = NULL;
    return true;
}

/* Default dispositions and an empty mask: the broker's and the exec'ed program's ideas of signals are not shared. */
static void stub_reset_signals(void) {
    sigset_t none;
    for (int s = 1; s < NSIG; s++)
        (void)signal(s, SIG_DFL); /* fails for KILL, STOP and libc's own, as it should */
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Descriptor i becomes number i; sock moves out of the way; everything else is closed. */
static int stub_place_fds(int *sock, int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) {
        fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, STUB_FD_STAGE);
        if (fds[i] < 0)
            return -errno;
    }
    *sock = fcntl(*sock, F_DUPFD_CLOEXEC, STUB_FD_STAGE);
    if (*sock < 0)
        return -errno;
    for (size_t i = 0; i < n; i++)
        if (dup2(fds[i], (int)i) < 0) /* clears CLOEXEC: these are the ones the VMM gets */
            return -errno;
    (void)syscall(SYS_close_range, (unsigned)n, (unsigned)STUB_FD_STAGE - 1, 0u);
    for (size_t i = 0; i < n; i++)
        (void)close(fds[i]);
    return 0;
}

_Noreturn void vmm_stub_serve(int sock) {
    static char text[VMM_STUB_MESSAGE_MAX + 1];
    const char *argv[VMM_STUB_ARGS_MAX + 1], *env[VMM_STUB_ARGS_MAX + 1];
    int fds[VMM_STUB_FDS_MAX], r;
    size_t len = 0, n_fds = ARRAY_SIZE(fds);
    _cleanup_json_ json_t *request = NULL;
    union {
        const char *const *in;
        char *const *out;
    } args = {.in = argv}, envs = {.in = env}; /* execve's old type */

    stub_reset_signals();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        stub_fail(sock, errno, "pdeathsig");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        stub_fail(sock, errno, "no_new_privs");
    if (fd_recv_message(sock, text, sizeof(text) - 1, &len, fds, &n_fds, NULL) < 0)
        stub_fail(sock, EPROTO, "receive");
    if (len == 0)
        _exit(0); /* space-vm is gone */
    if (json_parse(text, len, VMM_STUB_MESSAGE_MAX, &request, NULL) < 0 || n_fds < VMM_STUB_FDS_MIN ||
        !stub_vector(json_object_get(request, "argv"), argv) || !stub_vector(json_object_get(request, "env"), env) ||
        !argv[0] || argv[0][0] != '/')
        stub_fail(sock, EINVAL, "request");
    r = stub_place_fds(&sock, fds, n_fds);
    if (r < 0)
        stub_fail(sock, -r, "descriptors");
    (void)syscall(SYS_close_range, (unsigned)STUB_FD_STAGE, (unsigned)sock - 1, 0u);
    (void)syscall(SYS_close_range, (unsigned)sock + 1, ~0u, 0u);
    execve(argv[0], args.out, envs.out);
    stub_fail(sock, errno, "exec");
}

/* --- in space-vm ------------------------------------------------------------------------------------------------- */

static json_t *stub_array(const char *const *strings) {
    json_t *array = json_array();
    for (; array && *strings; strings++)
        if (json_array_append_new(array, json_string(*strings)) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static int stub_answer(const char *text, size_t len, struct sp_error *err) {
    _cleanup_json_ json_t *answer = NULL;
    const char *op = "";
    uint64_t err_no = 0;
    if (json_parse(text, len, VMM_STUB_MESSAGE_MAX, &answer, err) < 0 ||
        json_get_u64(answer, "", "errno", 0, 4095, &err_no, err) < 0 ||
        json_get_string(answer, "", "op", 1, 32, &op, err) < 0)
        return sp_error_set(err, SP_E_PROTOCOL, "the VMM stub answered nonsense");
    (void)sp_error_errno(err, (int)err_no, op, "the VMM could not be started");
    if (err)
        err->code = SP_E_VMM;
    return -SP_E_VMM;
}

int vmm_stub_exec(int sock, const struct vmm_stub_request *request, struct deadline deadline, struct sp_error *err) {
    _cleanup_json_ json_t *message =
        json_pack("{s:o?, s:o?}", "argv", stub_array(request->argv), "env", stub_array(request->env));
    _cleanup_free_ char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
    struct pollfd p = {.fd = sock, .events = POLLIN};
    char answer[256];
    ssize_t n;
    int r;

    if (!text)
        return sp_error_set(err, SP_E_INVALID, "the VMM's command line is no text");
    if (strlen(text) > VMM_STUB_MESSAGE_MAX || request->n_fds < VMM_STUB_FDS_MIN || request->n_fds > VMM_STUB_FDS_MAX)
        return sp_error_set(err, SP_E_TOO_LARGE, "the VMM's command line is %zu bytes with %zu descriptors",
                            strlen(text), request->n_fds);
    r = fd_send_message(sock, text, strlen(text), request->fds, request->n_fds, err);
    if (r < 0)
        return sp_error_wrap(err, "VMM stub");
    do
        r = poll(&p, 1, deadline_poll_ms(deadline));
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return sp_error_errno(err, errno, "poll", "VMM stub");
    if (r == 0)
        return sp_error_set(err, SP_E_TIMEOUT, "the VMM stub did not exec");
    n = recv(sock, answer, sizeof(answer), MSG_DONTWAIT);
    /* End of file, or a reset when the stub died with our message unread: the pidfd tells the two apart. */
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return 0;
    if (n < 0)
        return sp_error_errno(err, errno, "recv", "VMM stub");
    return stub_answer(answer, (size_t)n, err);
}
