/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep: what exists on the host under an id that neither the table nor the node knows is removed, id by id, through
 * the same removal as vm_stop. Then one job takes away snapshots that lost their manifest to an interrupted removal.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/leftovers.h"
#include "broker/snapshot.h"
#include "broker/vm_ops.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

#define SWEEP_MAX 500 /* ids of one sweep; what is left comes with the next */
#define STORE_TIMEOUT_MS 60000

struct sweep {
    struct broker *broker;
    struct reply_to to;
    const struct request *request; /* while collecting */
    json_t *removed;
    struct sp_error failure; /* the first one */
    size_t pending;          /* removals under way, plus one while collecting */
};

static void finish(struct sweep *sweep) {
    struct broker *b = sweep->broker;
    if (sweep->failure.code != SP_OK) {
        server_fail(b->server, &sweep->to, &sweep->failure);
        json_decref(sweep->removed);
    } else {
        server_reply(b->server, &sweep->to, json_pack("{s:o}", "removed", sweep->removed));
    }
    free(sweep);
}

/* Directories under a snapshot's name without a manifest. */
static int store_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct sweep *sweep = arg;
    const struct layout *layout = &sweep->broker->layout;
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    int r = 0, fd = openat(layout->snapshots, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    (void)ret_result;
    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)close_fd(fd);
        return sp_error_errno(err, errno, "opendir", "snapshots");
    }
    while (r == 0 && (entry = readdir(dir)))
        if (request_key_is_valid(entry->d_name) && !snapshot_exists(layout, entry->d_name))
            r = snapshot_remove(layout, entry->d_name, err);
    return r;
}

static void store_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct sweep *sweep = arg;
    (void)result;
    if (error && sweep->failure.code == SP_OK)
        sweep->failure = *error;
    finish(sweep);
}

static void one_less(struct sweep *sweep) {
    const struct job_spec spec = {
        .name = "sweep_store", .timeout_ms = STORE_TIMEOUT_MS, .arg = sweep, .work = store_work, .done = store_done};
    struct sp_error err = {0};

    if (--sweep->pending)
        return;
    if (jobs_add(sweep->broker->jobs, &spec, &err) < 0)
        store_done(sweep, NULL, &err);
}

static void on_removed(void *ctx, const char *id, const struct sp_error *error) {
    struct sweep *sweep = ctx;
    if (!error)
        (void)json_array_append_new(sweep->removed, json_string(id));
    else if (sweep->failure.code == SP_OK)
        sweep->failure = *error;
    one_less(sweep);
}

static bool is_known(const struct sweep *sweep, const char *id) {
    if (vm_table_find(&sweep->broker->vms, id) || vm_table_find_cgroup(&sweep->broker->vms, id))
        return true;
    for (size_t i = 0; i < sweep->request->n_known; i++)
        if (strcmp(sweep->request->known[i], id) == 0)
            return true;
    return false;
}

static int consider(void *ctx, const char *id) {
    struct sweep *sweep = ctx;

    if (sweep->pending > SWEEP_MAX || is_known(sweep, id))
        return 0;
    log_event(LOG_L_WARN, "sweep_found", "sandbox_id", id, NULL);
    sweep->pending++;
    vm_ops_remove(sweep->broker, id, &(struct vm_waiter){.removed = on_removed, .ctx = sweep});
    return 0;
}

void vm_ops_sweep(struct broker *b, const struct request *request, const struct reply_to *to) {
    struct sweep *sweep = calloc(1, sizeof(*sweep));

    if (!sweep)
        abort();
    *sweep = (struct sweep){.broker = b, .to = *to, .request = request, .removed = json_array(), .pending = 1};
    (void)leftovers_each(&b->layout, b->cgroups, consider, sweep, &sweep->failure);
    sweep->request = NULL;
    one_less(sweep);
}
