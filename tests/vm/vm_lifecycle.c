/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pause and resume, blanks and warm spares, on the real VMM: what a client of a stream sees, what the guest's clocks say,
 * what is refused. One check a line, TAP on stdout, figures as comments. Flags: see harness.c.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/text.h"
#include "harness.h"
#include "tap.h"
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAUSES 50

static bool is_ok(const json_t *done) {
    return json_is_true(json_object_get(done, "ok"));
}

static const char *code_of(const json_t *done) {
    const char *code = json_string_value(json_object_get(json_object_get(done, "error"), "code"));
    return code ? code : "";
}

static json_t *ask(struct harness_vm *vm, const char *request) {
    return harness_operate(vm, json_pack("{s:s}", "request", request), NULL, 0);
}

/* How long it took, in ms; negative: refused. */
static double timed(struct harness_vm *vm, const char *request) {
    double start = harness_now_ms();
    _cleanup_json_ json_t *done = ask(vm, request);
    return is_ok(done) ? harness_now_ms() - start : -1;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof(*values), by_value);
    return values[n / 2];
}

static void check_running(struct harness_vm *vm, const char *what) {
    _cleanup_free_ char *status = NULL;
    bool good = harness_wait_state(vm, "running|failed", 60000) && strcmp(harness_state(vm), "running") == 0;
    status = vm->status ? json_dumps(vm->status, 0) : NULL;
    check(good, what, status);
}

/* --- pause and resume ---------------------------------------------------------------------------------------------------- */

/* Numbered lines, slowly; in a process of its own, so that it reads while we pause. */
static pid_t start_reader(const struct harness_vm *vm, int *ret_result) {
    int result[2];
    if (pipe(result) < 0)
        harness_die("pipe");
    pid_t pid = fork();
    if (pid == 0) {
        static char out[1 << 20];
        (void)close(result[0]);
        int code = harness_run(vm, "i=0; while [ $i -lt 600 ]; do echo line $i; i=$((i+1)); sleep 0.01; done; exit 7",
                               out, sizeof(out));
        char *at = out;
        for (int i = 0; i < 600 && at; i++) {
            char want[32];
            (void)text_printf(want, sizeof(want), "line %d\n", i);
            at = text_starts_with(at, want) ? at + strlen(want) : NULL;
        }
        (void)!write(result[1], code == 7 && at && *at == '\0' ? "y" : "n", 1);
        _exit(0);
    }
    (void)close(result[1]);
    *ret_result = result[0];
    return pid;
}

static void check_pauses(struct harness_vm *vm) {
    double pauses[PAUSES], resumes[PAUSES];
    char text[128], word = 0;
    int result, bad = 0;
    pid_t reader = start_reader(vm, &result);
    (void)usleep(300000);
    for (int i = 0; i < PAUSES; i++) {
        pauses[i] = timed(vm, "pause");
        (void)usleep(i % 5 * 10000);
        resumes[i] = timed(vm, "resume");
        bad += pauses[i] < 0 || resumes[i] < 0;
        (void)usleep(20000);
    }
    (void)!read(result, &word, 1);
    (void)close(result);
    (void)waitpid(reader, NULL, 0);
    double pause = median(pauses, PAUSES), resume = median(resumes, PAUSES);
    (void)text_printf(text, sizeof(text), "pause p50 %.1f p90 %.1f ms, resume p50 %.1f p90 %.1f ms", pause,
                      pauses[PAUSES * 9 / 10], resume, resumes[PAUSES * 9 / 10]);
    (void)printf("# %s\n", text);
    check(bad == 0, "50 pauses and resumes, none refused", text);
    check(word == 'y', "a stream that was open meanwhile is complete", NULL);
}

static bool guest_number(const struct harness_vm *vm, const char *command, double *ret) {
    char text[128];
    int code = harness_run(vm, command, text, sizeof(text));
    *ret = strtod(text, NULL);
    return code == 0;
}

/* The guest's own clock does not count the pause, the wall clock does. */
static void check_clocks(struct harness_vm *vm) {
    double up_before = 0, up_after = 0, wall = 0, host;
    char detail[128];
    (void)guest_number(vm, "cat /proc/uptime", &up_before);
    _cleanup_json_ json_t *paused = ask(vm, "pause"), *again = ask(vm, "pause");
    check(is_ok(paused) && is_ok(again) && harness_wait_state(vm, "paused", 1000), "pausing twice is pausing once",
          NULL);
    char error[128] = "";
    check(harness_connect(vm, 1, error, sizeof(error)) < 0 && text_starts_with(error, "ERR not_running paused"),
          "a paused VM takes no new stream", error);
    (void)sleep(4);
    _cleanup_json_ json_t *resumed = ask(vm, "resume"), *twice = ask(vm, "resume");
    check(is_ok(resumed) && is_ok(twice), "resuming twice is resuming once", NULL);
    check_running(vm, "it runs again");
    (void)guest_number(vm, "cat /proc/uptime", &up_after);
    (void)guest_number(vm, "date +%s%N", &wall);
    host = (double)clock_realtime_ns();
    (void)text_printf(detail, sizeof(detail), "%.2f s of uptime, wall clock off by %.0f ms", up_after - up_before,
                      (wall - host) / 1e6);
    check(up_after - up_before < 3.5 && up_after > up_before, "uptime does not count the pause", detail);
    check(wall > host - 2e9 && wall < host + 100e6, "the wall clock does", detail);
}

static void check_busy(struct harness_vm *vm) {
    harness_send(vm, json_pack("{s:s, s:i}", "request", "pause", "seq", 1), NULL, 0);
    harness_send(vm, json_pack("{s:s, s:i}", "request", "resume", "seq", 2), NULL, 0);
    _cleanup_json_ json_t *first = harness_wait_event(vm, "done", -1, 10000);
    _cleanup_json_ json_t *second = harness_wait_event(vm, "done", -1, 10000);
    const json_t *refused = json_integer_value(json_object_get(first, "seq")) == 2 ? first : second;
    check(first && second && (is_ok(refused) || strcmp(code_of(refused), "busy") == 0),
          "a second operation is busy, or comes after the first", code_of(refused));
    _cleanup_json_ json_t *again = ask(vm, "resume"), *load = NULL;
    check(is_ok(again), "and it goes on", code_of(again));
    load = harness_operate(vm,
                           json_pack("{s:s, s:s, s:i, s:{s:s, s:s}}", "request", "identify", "id",
                                     "sbx_00000000000000000000000000", "generation", 3, "identity", "hostname", "x",
                                     "machine_id", "0123456789abcdef0123456789abcdef"),
                           NULL, 0);
    check(strcmp(code_of(load), "conflict") == 0, "a running VM is nobody's spare", code_of(load));
    harness_send(vm,
                 json_pack("{s:s, s:i, s:s, s:s}", "request", "snapshot", "seq", 9, "then", "resume", "snapshot", "x"),
                 NULL, 0);
    _cleanup_json_ json_t *none = harness_wait_event(vm, "done", 9, 2000);
    check(!none && vm->control < 0, "a snapshot without descriptors ends the connection", NULL);
    vm->control = harness_control_connect(vm);
}

/* --- spares ---------------------------------------------------------------------------------------------------------------- */

static void start_blank(struct harness *h, struct harness_vm *vm) {
    harness_new(vm, true, h->work);
    id_generate(vm->id, "spr");
    vm->blank = true;
    harness_start(h, vm, NULL);
    check(harness_wait_state(vm, "blank|failed", 60000) && strcmp(harness_state(vm), "blank") == 0,
          "a VMM waits for its files", NULL);
}

static bool load(struct harness *h, struct harness_vm *vm, const char *snapshot, bool warm) {
    int fds[3];
    harness_open_snapshot(h, vm, snapshot, fds);
    _cleanup_json_ json_t *done =
        harness_operate(vm,
                        json_pack("{s:s, s:o, s:b, s:s}", "request", "load", "config", harness_config(h, false), "warm",
                                  (int)warm, "snapshot", "base"),
                        fds, 3);
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        (void)close(fds[i]);
    return is_ok(done);
}

static void check_blank(struct harness *h, const char *snapshot) {
    struct harness_vm vm;
    char text[128];
    start_blank(h, &vm);
    _cleanup_json_ json_t *paused = ask(&vm, "pause");
    check(strcmp(code_of(paused), "conflict") == 0, "there is nothing to pause in a blank", code_of(paused));
    double start = harness_now_ms();
    bool loaded = load(h, &vm, snapshot, false);
    check(loaded, "a blank takes a snapshot", NULL);
    check_running(&vm, "and runs it");
    (void)printf("# blank to running: %.1f ms\n", harness_now_ms() - start);
    check(harness_run(&vm, "hostname", text, sizeof(text)) == 0 && strcmp(text, "harness\n") == 0,
          "it is whom it was told to be", text);
    check_pauses(&vm);
    check_clocks(&vm);
    check_busy(&vm);
    check(harness_stop(&vm) == 0, "space-vm ends when told to", NULL);
}

static void check_warm(struct harness *h, const char *snapshot) {
    struct harness_vm vm;
    char text[128];
    start_blank(h, &vm);
    check(load(h, &vm, snapshot, true) && harness_wait_state(&vm, "warm|failed", 60000) &&
              strcmp(harness_state(&vm), "warm") == 0,
          "a blank becomes a warm spare", harness_state(&vm));
    (void)usleep(500000);
    double start = harness_now_ms();
    _cleanup_json_ json_t *done =
        harness_operate(&vm,
                        json_pack("{s:s, s:s, s:i, s:{s:s, s:s, s:[s]}}", "request", "identify", "id",
                                  "sbx_00000000000000000000000000", "generation", 5, "identity", "hostname", "spare",
                                  "machine_id", "fedcba9876543210fedcba9876543210", "env", "WHO=spare"),
                        NULL, 0);
    double identified = harness_now_ms() - start;
    _cleanup_free_ char *timings = json_dumps(json_object_get(done, "timings"), 0);
    check(is_ok(done), "which becomes somebody's", code_of(done));
    check(harness_run(&vm, "echo $(hostname) $(cat /etc/machine-id) $WHO $(cat /run/space/generation)", text,
                      sizeof(text)) == 0 &&
              strcmp(text, "spare fedcba9876543210fedcba9876543210 spare 5\n") == 0,
          "with everything that is new", text);
    (void)printf("# warm to running: %.1f ms (%s), to the end of a first command: %.1f ms\n", identified, timings,
                 harness_now_ms() - start);
    (void)harness_stop(&vm);
    start_blank(h, &vm);
    check(harness_stop(&vm) == 0, "a blank ends when told to", NULL);
}

/* A VMM that dies while it is held, and while it stands still. */
static void check_death(struct harness *h, const char *snapshot) {
    struct harness_vm vm;
    start_blank(h, &vm);
    (void)kill(harness_vmm_pid(&vm), SIGKILL);
    check(harness_wait_state(&vm, "failed", 5000), "the death of a blank is noticed", NULL);
    (void)harness_stop(&vm);
    start_blank(h, &vm);
    (void)load(h, &vm, snapshot, false);
    (void)harness_wait_state(&vm, "running|failed", 60000);
    (void)timed(&vm, "pause");
    (void)kill(harness_vmm_pid(&vm), SIGKILL);
    check(harness_wait_state(&vm, "failed", 5000), "so is the death of a paused one", NULL);
    (void)harness_stop(&vm);
}

int main(int argc, char **argv) {
    struct harness h;
    harness_init(&h, argc, argv);
    const char *snapshot = harness_snapshot(&h, false);
    check_blank(&h, snapshot);
    check_warm(&h, snapshot);
    check_death(&h, snapshot);
    return tap_done();
}
