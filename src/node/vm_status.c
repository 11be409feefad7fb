/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing of space-vm's messages. */
#include "node/vm_status.h"
#include "base/text.h"
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    enum vm_phase phase;
} phases[] = {
    {"starting", VM_PHASE_COMING}, {"restoring", VM_PHASE_COMING},   {"booting", VM_PHASE_COMING},
    {"probing", VM_PHASE_COMING},  {"identifying", VM_PHASE_COMING}, {"running", VM_PHASE_RUNNING},
    {"saving", VM_PHASE_SAVING},   {"saved", VM_PHASE_SAVED},        {"stopping", VM_PHASE_STOPPING},
    {"failed", VM_PHASE_FAILED},
};

static int parse_phase(const json_t *obj, enum vm_phase *ret, struct sp_error *err) {
    const char *state;
    if (json_get_string(obj, "", "state", 1, 32, &state, err) < 0)
        return -SP_E_PROTOCOL;
    for (size_t i = 0; i < ARRAY_SIZE(phases); i++)
        if (strcmp(phases[i].name, state) == 0) {
            *ret = phases[i].phase;
            return 0;
        }
    return sp_error_field(err, SP_E_PROTOCOL, "state", "space-vm is in a state we do not know");
}

/* Numbers under names of ours; others are left out. */
static json_t *copy_timings(const json_t *timings) {
    json_t *copy = json_object(), *value;
    const char *step;
    char name[48];
    json_object_foreach ((json_t *)(uintptr_t)timings, step, value) {
        bool good = json_is_number(value) && isfinite(json_number_value(value)) && json_number_value(value) >= 0 &&
                    step[strspn(step, "abcdefghijklmnopqrstuvwxyz0123456789_")] == '\0' &&
                    text_printf(name, sizeof(name), "vm_%s", step);
        if (good && json_object_size(copy) < VM_STATUS_TIMINGS_MAX)
            (void)json_object_set(copy, name, value);
    }
    return copy;
}

static int parse_error(const json_t *obj, struct vm_status *s, struct sp_error *err) {
    json_t *error = NULL;
    const char *code = "internal", *message = "";
    if (json_get_opt_object(obj, "", "error", &error, err) < 0)
        return -SP_E_PROTOCOL;
    if (error && (json_get_string(error, "error", "code", 1, 48, &code, err) < 0 ||
                  json_get_opt_string(error, "error", "message", 0, 4096, "", &message, err) < 0))
        return -SP_E_PROTOCOL;
    (void)failure_parse(code, &s->failure);
    (void)text_escape(s->message, sizeof(s->message), message, strlen(message));
    return 0;
}

static int parse_status(const json_t *obj, const char *id, struct vm_status *s, struct sp_error *err) {
    const char *name, *accelerator, *kernel;
    json_t *timings = NULL;
    if (json_get_string(obj, "", "id", 1, ID_SIZE - 1, &name, err) < 0 || parse_phase(obj, &s->phase, err) < 0 ||
        json_get_opt_bool(obj, "", "ready", false, &s->ready, err) < 0 ||
        json_get_u64(obj, "", "generation", 0, INT64_MAX, &s->generation, err) < 0 ||
        json_get_opt_u64(obj, "", "vmm_pid", 0, INT32_MAX, 0, &s->vmm_pid, err) < 0 ||
        json_get_opt_string(obj, "", "accelerator", 1, sizeof(s->accelerator) - 1, "", &accelerator, err) < 0 ||
        json_get_opt_string(obj, "", "kernel", 1, sizeof(s->kernel) - 1, "", &kernel, err) < 0 ||
        json_get_opt_object(obj, "", "timings", &timings, err) < 0)
        return -SP_E_PROTOCOL;
    if (strcmp(name, id) != 0)
        return sp_error_field(err, SP_E_PROTOCOL, "id", "space-vm speaks of another VM");
    if (s->phase == VM_PHASE_FAILED && parse_error(obj, s, err) < 0)
        return -SP_E_PROTOCOL;
    (void)text_copy(s->accelerator, sizeof(s->accelerator), accelerator);
    (void)text_copy(s->kernel, sizeof(s->kernel), kernel);
    s->timings = copy_timings(timings);
    return 0;
}

int vm_message_parse(const char *data, size_t len, const char *id, enum vm_message *ret_kind, struct vm_status *ret,
                     bool *ret_alive, struct sp_error *err) {
    _cleanup_json_ json_t *obj = NULL;
    struct vm_status status = {0};
    const char *event;
    *ret = status;
    if (json_parse(data, len, VM_STATUS_MESSAGE_MAX, &obj, err) < 0 || !json_is_object(obj) ||
        json_get_string(obj, "", "event", 1, 32, &event, err) < 0)
        return sp_error_set(err, SP_E_PROTOCOL, "space-vm sent no event");
    if (strcmp(event, "pong") == 0) {
        *ret_kind = VM_MESSAGE_PONG;
        *ret_alive = json_is_object(json_object_get(obj, "agent"));
        return 0;
    }
    *ret_kind = strcmp(event, "status") == 0 ? VM_MESSAGE_STATUS : VM_MESSAGE_OTHER;
    if (*ret_kind == VM_MESSAGE_OTHER)
        return 0;
    if (parse_status(obj, id, &status, err) < 0) {
        if (err)
            err->code = SP_E_PROTOCOL;
        return -SP_E_PROTOCOL;
    }
    *ret = status;
    return 0;
}

void vm_status_done(struct vm_status *s) {
    json_decref(s->timings);
    *s = (struct vm_status){0};
}
