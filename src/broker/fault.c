/* SPDX-License-Identifier: Apache-2.0 */
/* Fault injection: see fault.h. The table is set once and inherited by forked children. */
#include "broker/fault.h"
#include "base/text.h"
#include <errno.h>
#include <signal.h>
#include <stdint.h>
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

int fault_setup(const char *spec, struct sp_error *err) {
    char copy[512], *save = NULL;

    table.broker = getpid();
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

int fault_point(const char *point, struct sp_error *err) {
    for (size_t i = 0; i < table.n; i++) {
        const struct fault *f = &table.faults[i];
        if (strcmp(f->point, point) != 0)
            continue;
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
