/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's disk fills up under a guest that writes: the VM stands still and says so, goes on by itself once there is
 * room, its clock is set, and not a byte of the guest's is lost. Runs on a small store of its own (--store-mib).
 */
#include "base/clock.h"
#include "base/text.h"
#include "harness.h"
#include "tap.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LEFT_MIB 60   /* room for the guest's first writes */
#define WRITE_MIB 200 /* what the guest wants */

static struct harness_vm vm;

struct writer {
    char output[512];
    int code;
};

static void *write_much(void *arg) {
    struct writer *w = arg;
    char command[256];
    bool fits = text_printf(command, sizeof(command),
                            "yes space | head -c %dM > /big && sync && echo 3 > /proc/sys/vm/drop_caches && "
                            "yes space | head -c %dM | cmp - /big && echo same",
                            WRITE_MIB, WRITE_MIB);
    if (!fits)
        return NULL;
    w->code = harness_run(&vm, command, w->output, sizeof(w->output));
    return NULL;
}

/* All but LEFT_MIB of the store, in bytes that no file system can make small. */
static void fill(const char *dir, const char *ballast) {
    static char block[1 << 20];
    struct statvfs st;
    int fd = open(ballast, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    random_bytes(block, sizeof(block));
    while (statvfs(dir, &st) == 0 && (uint64_t)st.f_bavail * st.f_frsize > (uint64_t)LEFT_MIB << 20)
        if (write(fd, block, sizeof(block)) != (ssize_t)sizeof(block) || fsync(fd) < 0)
            break;
    (void)close(fd);
}

static bool is_stalled(void) {
    json_decref(harness_request(&vm, "console", "console", 1000)); /* takes in what came before it */
    return json_object_get(vm.status, "stalled") != NULL;
}

static bool wait_stalled(bool wanted, unsigned ms) {
    struct deadline d = deadline_in_ms(ms);
    while (is_stalled() != wanted) {
        if (deadline_passed(d))
            return false;
        (void)usleep(50000);
    }
    return true;
}

static void check_clock(void) {
    char text[64];
    double before = (double)clock_realtime_ns(), guest;
    (void)harness_run(&vm, "date +%s%N", text, sizeof(text));
    guest = strtod(text, NULL);
    check(guest > before - 100e6 && guest < (double)clock_realtime_ns() + 100e6, "its clock does not lag", NULL);
}

static void check_pause_refused(void) {
    _cleanup_json_ json_t *done = harness_operate(&vm, json_pack("{s:s}", "request", "pause"), NULL, 0);
    const char *code = json_string_value(json_object_get(json_object_get(done, "error"), "code"));
    check(code && strcmp(code, "host_disk_full") == 0, "and is not paused on top of it", code);
}

int main(int argc, char **argv) {
    struct harness h;
    struct writer w = {.code = -1};
    char ballast[HARNESS_PATH];
    pthread_t thread;
    harness_init(&h, argc, argv);
    const char *snapshot = harness_snapshot(&h, true);
    harness_new(&vm, true, h.work);
    harness_start(&h, &vm, snapshot);
    check(harness_wait_state(&vm, "running", 60000), "a clone runs", NULL);
    fill(h.work, harness_path(ballast, "%s/ballast", h.work));
    if (pthread_create(&thread, NULL, write_much, &w) != 0)
        harness_die("thread");
    check(wait_stalled(true, 60000), "a full host disk stalls the VM", NULL);
    check(!json_is_true(json_object_get(vm.status, "ready")), "a stalled VM is not ready", NULL);
    check_pause_refused();
    (void)sleep(3);
    check(is_stalled() && strcmp(harness_state(&vm), "running") == 0, "it stays so while there is no room", NULL);
    (void)unlink(ballast);
    sync();
    check(wait_stalled(false, 60000), "it goes on by itself when there is room", NULL);
    (void)pthread_join(thread, NULL);
    check(w.code == 0 && strcmp(w.output, "same\n") == 0, "every byte the guest wrote is there", w.output);
    check_clock();
    check(harness_stop(&vm) == 0, "it stops as ever", NULL);
    return tap_done();
}
