/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw clone times of the engine, as a yardstick for the API's figures: FICLONE of the disk → the clone's agent has taken
 * its new identity and space-vm says `running`. The jail, control plane and gateway are not in it. Prints the benchmark
 * format of docs (one JSON object) on stdout. Flags: those of tests/vm/harness.c.
 */
#include "base/text.h"
#include "harness.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#define RUNS_MAX 1000

static const char *const steps[] = {"total", "spawn_ms", "qmp_ms", "load_ms", "cont_ms", "hello_ms", "identity_ms"};
static double samples[ARRAY_SIZE(steps)][RUNS_MAX];

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nearest rank. */
static double quantile(const double *sorted, unsigned n, double q) {
    unsigned rank = (unsigned)ceil(q * n);
    return sorted[rank > 0 ? rank - 1 : 0];
}

static json_t *result(const char *name, double *values, unsigned n, unsigned failures) {
    char full[64];
    (void)text_printf(full, sizeof(full), "raw_clone.%s", name);
    if (n == 0)
        return json_pack("{s:s, s:s, s:i, s:i}", "name", full, "unit", "ms", "n", 0, "failures", (int)failures);
    qsort(values, n, sizeof(*values), by_value);
    return json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "name", full, "unit", "ms", "n", (int)n,
                     "failures", (int)failures, "min", values[0], "p50", quantile(values, n, 0.5), "p90",
                     quantile(values, n, 0.9), "p99", quantile(values, n, 0.99), "max", values[n - 1]);
}

static json_t *conditions(const struct harness *h) {
    struct utsname host;
    (void)uname(&host);
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:s}", "host_kernel", host.release, "vmm",
                     h->qemu_version, "accelerator", h->accelerator, "guest_kernel", h->kernel, "vcpus", (int)h->vcpus,
                     "memory_mib", (int)h->memory_mib, "cache", "warm", "jail", "none (not included)", "ready",
                     "identity acknowledged by the agent");
}

static bool run_once(const struct harness *h, const char *snapshot, unsigned run) {
    struct harness_vm vm;
    double start;
    bool good;
    harness_new(&vm, true, h->work);
    start = harness_now_ms();
    harness_start(h, &vm, snapshot);
    good = harness_wait_state(&vm, "running|failed", 60000) && strcmp(harness_state(&vm), "running") == 0;
    samples[0][run] = harness_now_ms() - start;
    for (size_t i = 1; i < ARRAY_SIZE(steps); i++)
        samples[i][run] = harness_timing(&vm, steps[i]);
    (void)harness_stop(&vm);
    return good;
}

int main(int argc, char **argv) {
    struct harness h;
    unsigned done = 0, failures = 0;
    harness_init(&h, argc, argv);
    if (h.runs > RUNS_MAX)
        harness_die("at most %d runs", RUNS_MAX);
    const char *snapshot = harness_snapshot(&h, false);
    (void)run_once(&h, snapshot, 0); /* warms the page cache; not counted */
    for (unsigned i = 0; i < h.runs; i++)
        if (run_once(&h, snapshot, done))
            done++;
        else
            failures++;
    json_t *results = json_array(), *raw = json_array();
    for (unsigned i = 0; i < done; i++)
        (void)json_array_append_new(raw, json_real(samples[0][i]));
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        (void)json_array_append_new(results, result(steps[i], samples[i], done, failures));
    json_t *report = json_pack("{s:s, s:o, s:o, s:o}", "bench", "raw_clone", "conditions", conditions(&h), "results",
                               results, "clone_ms", raw);
    (void)printf("%s\n", json_dumps(report, JSON_INDENT(2) | JSON_REAL_PRECISION(6)));
    return failures > 0;
}
