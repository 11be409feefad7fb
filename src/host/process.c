/* SPDX-License-Identifier: Apache-2.0 */
/* Process identity and death by pidfd. Does not reap: whoever is the parent does that. */
#include "host/process.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>

#define STAT_MAX 4096
#define STAT_FIELD_STATE 3 /* numbered as in proc(5); the first one after the command name */
#define STAT_FIELD_START_TIME 22

int process_boot_id(char dst[PROCESS_BOOT_ID_SIZE], struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    int r = file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 128, &text, NULL, err);

    if (r < 0)
        return r;
    text[strcspn(text, "\n")] = '\0';
    if (!text_copy(dst, PROCESS_BOOT_ID_SIZE, text))
        return sp_error_set(err, SP_E_INTERNAL, "the kernel's boot id has an unknown form");
    return 0;
}

/* The command name may hold anything, so fields are counted after its last ')'. */
static char *stat_field(char *line, unsigned field) {
    char *p = strrchr(line, ')');
    for (unsigned at = STAT_FIELD_STATE - 1; p && at < field; at++) {
        p = strchr(p, ' ');
        if (p)
            p++;
    }
    if (p)
        p[strcspn(p, " \n")] = '\0';
    return p;
}

int process_ref_get(pid_t pid, struct process_ref *ret, struct sp_error *err) {
    char path[64], *field;
    _cleanup_free_ char *line = NULL;
    uint64_t start;

    (void)text_printf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (pid <= 0 || file_read(AT_FDCWD, path, STAT_MAX, &line, NULL, NULL) < 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no process %d", (int)pid);
    field = stat_field(line, STAT_FIELD_START_TIME);
    if (!field || !text_to_u64(field, 0, UINT64_MAX, &start))
        return sp_error_set(err, SP_E_INTERNAL, "/proc/%d/stat has an unknown form", (int)pid);
    *ret = (struct process_ref){.pid = pid, .start_time = start};
    return 0;
}

int process_open(const struct process_ref *ref, int *ret_pidfd, struct sp_error *err) {
    struct process_ref now;
    _cleanup_close_ int pidfd = ref->pid > 0 ? pidfd_open(ref->pid, 0) : -1;

    /* The start time is read after the pidfd is held: from here on the pid cannot become another process unseen. */
    if (pidfd < 0 || process_ref_get(ref->pid, &now, NULL) < 0 || now.start_time != ref->start_time ||
        process_is_dead(pidfd))
        return sp_error_set(err, SP_E_NOT_FOUND, "process %d is gone", (int)ref->pid);
    *ret_pidfd = TAKE_FD(pidfd);
    return 0;
}

int process_kill(int pidfd, struct sp_error *err) {
    if (pidfd_send_signal(pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        return sp_error_errno(err, errno, "pidfd_send_signal", "cannot kill the process");
    return 0;
}

bool process_is_dead(int pidfd) {
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
}

int process_wait_dead(int pidfd, struct deadline deadline, struct sp_error *err) {
    for (;;) {
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        int n = poll(&p, 1, deadline_poll_ms(deadline));
        if (n > 0)
            return 0;
        if (n == 0 && deadline_passed(deadline))
            return sp_error_set(err, SP_E_TIMEOUT, "the process did not die in time");
        if (n < 0 && errno != EINTR)
            return sp_error_errno(err, errno, "poll", "pidfd");
    }
}
