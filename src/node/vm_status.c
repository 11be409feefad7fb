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
    {"starting", VM_PHASE_COMING},   {"restoring", VM_PHASE_COMING},   {"booting", VM_PHASE_COMING},
    {"probing", VM_PHASE_COMING},    {"identifying", VM_PHASE_COMING}, {"blank", VM_PHASE_BLANK},
    {"warm", VM_PHASE_WARM},         {"running", VM_PHASE_RUNNING},    {"pausing", VM_PHASE_PAUSING},
    {"paused", VM_PHASE_PAUSED},     {"saving", VM_PHASE_SAVING},      {"saved", VM_PHASE_SAVED},
    {"stopping", VM_PHASE_STOPPING}, {"failed", VM_PHASE_FAILED},
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

/* error {code, message} of obj; without one it is `internal`. */
static int parse_error(const json_t *obj, enum failure *ret_failure, char text[VM_STATUS_TEXT_MAX + 1],
                       struct sp_error *err) {
    json_t *error = NULL;
    const char *code = "internal", *message = "";
    if (json_get_opt_object(obj, "", "error", &error, err) < 0)
        return -SP_E_PROTOCOL;
    if (error && (json_get_string(error, "error", "code", 1, 48, &code, err) < 0 ||
                  json_get_opt_string(error, "error", "message", 0, 4096, "", &message, err) < 0))
        return -SP_E_PROTOCOL;
    (void)failure_parse(code, ret_failure);
    (void)text_escape(text, VM_STATUS_TEXT_MAX + 1, message, strlen(message));
    return 0;
}

static int parse_activity(const json_t *obj, struct vm_status *s, struct sp_error *err) {
    const char *snapshot;
    if (json_get_opt_u64(obj, "", "streams", 0, VM_STATUS_STREAMS_MAX, 0, &s->streams, err) < 0 ||
        json_get_opt_u64(obj, "", "active_realtime_ns", 0, INT64_MAX, 0, &s->active_ns, err) < 0 ||
        json_get_opt_string(obj, "", "snapshot", 0, sizeof(s->snapshot) - 1, "", &snapshot, err) < 0)
        return -SP_E_PROTOCOL;
    (void)text_copy(s->snapshot, sizeof(s->snapshot), snapshot);
    return 0;
}

static int parse_status(const json_t *obj, const char *id, struct vm_status *s, struct sp_error *err) {
    const char *name, *accelerator, *kernel, *vmm;
    json_t *timings = NULL;
    if (json_get_string(obj, "", "id", 1, ID_SIZE - 1, &name, err) < 0 || parse_phase(obj, &s->phase, err) < 0 ||
        json_get_opt_bool(obj, "", "ready", false, &s->ready, err) < 0 ||
        json_get_u64(obj, "", "generation", 0, INT64_MAX, &s->generation, err) < 0 ||
        json_get_opt_u64(obj, "", "vmm_pid", 0, INT32_MAX, 0, &s->vmm_pid, err) < 0 ||
        json_get_opt_string(obj, "", "accelerator", 1, sizeof(s->accelerator) - 1, "", &accelerator, err) < 0 ||
        json_get_opt_string(obj, "", "kernel", 1, sizeof(s->kernel) - 1, "", &kernel, err) < 0 ||
        json_get_opt_string(obj, "", "vmm", 1, sizeof(s->vmm) - 1, "", &vmm, err) < 0 ||
        json_get_opt_object(obj, "", "timings", &timings, err) < 0 || parse_activity(obj, s, err) < 0)
        return -SP_E_PROTOCOL;
    if (strcmp(name, id) != 0 && !id_is_valid(name, "spr"))
        return sp_error_field(err, SP_E_PROTOCOL, "id", "space-vm speaks of another VM");
    if (s->phase == VM_PHASE_FAILED && parse_error(obj, &s->failure, s->message, err) < 0)
        return -SP_E_PROTOCOL;
    (void)text_copy(s->accelerator, sizeof(s->accelerator), accelerator);
    (void)text_copy(s->kernel, sizeof(s->kernel), kernel);
    (void)text_copy(s->vmm, sizeof(s->vmm), vmm);
    s->timings = copy_timings(timings);
    return 0;
}

static int parse_done(const json_t *obj, struct vm_done *done, struct sp_error *err) {
    json_t *timings = NULL;
    if (json_get_u64(obj, "", "seq", 0, INT64_MAX, &done->seq, err) < 0 ||
        json_get_opt_bool(obj, "", "ok", false, &done->ok, err) < 0 ||
        json_get_opt_object(obj, "", "timings", &timings, err) < 0 ||
        (!done->ok && parse_error(obj, &done->failure, done->message, err) < 0))
        return -SP_E_PROTOCOL;
    done->timings = copy_timings(timings);
    return 0;
}

static enum vm_message_kind kind_of(const char *event) {
    if (strcmp(event, "status") == 0)
        return VM_MESSAGE_STATUS;
    if (strcmp(event, "pong") == 0)
        return VM_MESSAGE_PONG;
    return strcmp(event, "done") == 0 ? VM_MESSAGE_DONE : VM_MESSAGE_OTHER;
}

int vm_message_parse(const char *data, size_t len, const char *id, struct vm_message *ret, struct sp_error *err) {
    _cleanup_json_ json_t *obj = NULL;
    struct vm_message m = {0};
    const char *event;
    int r = 0;
    *ret = m;
    if (json_parse(data, len, VM_STATUS_MESSAGE_MAX, &obj, err) < 0 || !json_is_object(obj) ||
        json_get_string(obj, "", "event", 1, 32, &event, err) < 0)
        return sp_error_set(err, SP_E_PROTOCOL, "space-vm sent no event");
    m.kind = kind_of(event);
    if (m.kind == VM_MESSAGE_STATUS)
        r = parse_status(obj, id, &m.status, err);
    else if (m.kind == VM_MESSAGE_DONE)
        r = parse_done(obj, &m.done, err);
    else if (m.kind == VM_MESSAGE_PONG)
        m.alive = json_is_object(json_object_get(obj, "agent"));
    if (r < 0) {
        if (err)
            err->code = SP_E_PROTOCOL;
        return -SP_E_PROTOCOL;
    }
    *ret = m;
    return 0;
}

void vm_message_done(struct vm_message *m) {
    json_decref(m->status.timings);
    json_decref(m->done.timings);
    *m = (struct vm_message){0};
}
