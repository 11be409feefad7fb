/* SPDX-License-Identifier: Apache-2.0 */
/* Removes every id found on the host the way vm_stop does. */
#include "broker/release.h"
#include "base/json.h"
#include "base/log.h"
#include "broker/leftovers.h"
#include "broker/vm_remove.h"

static int note(void *ctx, const char *id) {
    return json_object_set_new(ctx, id, json_true());
}

int release_all(const struct layout *layout, struct cgroup_root *cgroups, struct sp_error *err) {
    _cleanup_json_ json_t *ids = json_object();
    const char *id;
    json_t *unused;
    int r = leftovers_each(layout, cgroups, note, ids, err);

    json_object_foreach (ids, id, unused) {
        const struct vm_remove remove = {.layout = layout, .cgroups = cgroups, .id = id};
        struct sp_error why = {0};
        bool existed;
        int failed = vm_remove(&remove, &existed, &why);
        if (failed < 0) {
            log_error(LOG_L_ERROR, "release_failed", &why, "vm_id", id, NULL);
            r = r < 0 ? r : sp_error_set(err, why.code, "%s: %s", id, why.text);
        }
    }
    return r;
}
