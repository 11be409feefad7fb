/* SPDX-License-Identifier: Apache-2.0 */
/* Fault injection: see fault.h. The table is set once and inherited by forked children; a file is read at every point. */
#include "broker/fault.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAULTS_MAX 8

enum fault_action { FAULT_ERROR, FAULT_ENOSPC, FAULT_KILL, FAULT_KILL_BROKER, FAULT_SLEEP };
static const char *const action_names[] = {"error", "enospc", "kill", "kill_broker", "sleep"};

struct fault {
    char point[48];
    enum fault_action action;
    uint64_t ms;
};

static struct {
    struct fault faults[FAULTS_MAX];
    size_t n;
    pid_t broker;
    char *file; /* FAULT_FILE_SIZE bytes, shared; NULL without a file */
} table;

static bool parse_one(char *text, struct fault *ret) {
    char *action = strchr(text, ':'), *value;

    if (!action)
        return false;
    *action++ = '\0';
    value = strchr(action, '=');
    if (value)
        *value++ = '\0';
    if (!text_copy(ret->point, sizeof(ret->point), text))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(action_names); i++)
        if (strcmp(action_names[i], action) == 0) {
            ret->action = (enum fault_action)i;
            return value ? text_to_u64(value, 0, 3600000, &ret->ms) : ret->action != FAULT_SLEEP;
        }
    return false;
}

static int parse(const char *spec, struct sp_error *err) {
    char copy[FAULT_LOG_AT], *save = NULL;

    table.n = 0;
    if (!text_copy(copy, sizeof(copy), spec))
        return sp_error_field(err, SP_E_INVALID, "SPACE_FAULT", "SPACE_FAULT is too long");
    for (char *one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        struct fault fault = {0};
        if (table.n == FAULTS_MAX || !parse_one(one, &fault))
            return sp_error_field(err, SP_E_INVALID, "SPACE_FAULT", "SPACE_FAULT must be point:action[,...]");
        table.faults[table.n++] = fault;
    }
    return 0;
}

static int map_file(const char *path, struct sp_error *err) {
    _cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "open", "%s", path);
    if (!S_ISREG(st.st_mode) || st.st_size < FAULT_FILE_SIZE)
        return sp_error_field(err, SP_E_INVALID, "SPACE_FAULT", "%s must hold %d bytes", path, FAULT_FILE_SIZE);
    void *at = mmap(NULL, FAULT_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return sp_error_errno(err, errno, "mmap", "%s", path);
    table.file = at;
    return 0;
}

int fault_setup(const char *spec, struct sp_error *err) {
    table.broker = getpid();
    table.n = 0;
    return *spec == '@' ? map_file(spec + 1, err) : parse(spec, err);
}

/* What the file says now; nonsense in it is no fault. */
static void read_file(void) {
    char now[FAULT_LOG_AT];

    memcpy(now, table.file, sizeof(now));
    now[sizeof(now) - 1] = '\0';
    if (parse(now, NULL) < 0)
        table.n = 0;
}

/* Jobs and children note at the same time: each takes its place first. What does not fit is left out. */
static void note(const char *point) {
    uint64_t *used = (uint64_t *)(void *)(table.file + FAULT_LOG_AT);
    char *names = table.file + FAULT_LOG_AT + sizeof(*used);
    size_t len = strlen(point) + 1, room = FAULT_FILE_SIZE - FAULT_LOG_AT - sizeof(*used);
    uint64_t at = __atomic_fetch_add(used, len, __ATOMIC_RELAXED);

    if (at > room || len > room - at)
        return;
    memcpy(names + at, point, len - 1);
    names[at + len - 1] = '\n';
}

int fault_point(const char *point, struct sp_error *err) {
    if (table.file) {
        read_file();
        note(point);
    }
    for (size_t i = 0; i < table.n; i++) {
        const struct fault *f = &table.faults[i];
        if (strcmp(f->point, point) != 0)
            continue;
        if (table.file)
            table.file[0] = '\0';
        switch (f->action) {
        case FAULT_ERROR:
            return sp_error_set(err, SP_E_IO, "fault injected at %s", point);
        case FAULT_ENOSPC:
            return sp_error_errno(err, ENOSPC, point, "fault injected");
        case FAULT_KILL:
            (void)kill(getpid(), SIGKILL);
            _exit(1); /* pid 1 of a namespace does not get its own signals */
        case FAULT_KILL_BROKER:
            (void)kill(table.broker, SIGKILL);
            for (;;)
                (void)pause(); /* a job: the kernel ends it with the broker */
        case FAULT_SLEEP:
            (void)usleep((useconds_t)(f->ms * 1000));
            break;
        }
    }
    return 0;
}
