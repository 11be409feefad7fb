/* SPDX-License-Identifier: Apache-2.0 */
/* Parses what is asked on control.sock: every request names its keys, its descriptors and who may send it. */
#include "vm/request.h"
#include "base/text.h"
#include <string.h>

#define SEQ_MAX ((1ull << 53) - 1)
#define KEYS_MAX 8

static int parse_identify(const json_t *json, struct request *r, struct sp_error *err);
static int parse_load(const json_t *json, struct request *r, struct sp_error *err);
static int parse_snapshot(const json_t *json, struct request *r, struct sp_error *err);
static int parse_snapshot_disk(const json_t *json, struct request *r, struct sp_error *err);
static int parse_name(const json_t *json, struct request *r, struct sp_error *err);

static const struct kind {
    const char *name;
    enum request_kind kind;
    bool seq, root;
    size_t n_fds;
    int (*parse)(const json_t *json, struct request *r, struct sp_error *err);
    const char *keys[KEYS_MAX]; /* beside request and seq */
} kinds[] = {
    {"ping", REQUEST_PING, false, false, 0, NULL, {NULL}},
    {"console", REQUEST_CONSOLE, false, false, 0, NULL, {NULL}},
    {"stop", REQUEST_STOP, false, false, 0, NULL, {NULL}},
    {"pause", REQUEST_PAUSE, true, false, 0, NULL, {NULL}},
    {"resume", REQUEST_RESUME, true, false, 0, NULL, {NULL}},
    {"identify",
     REQUEST_IDENTIFY,
     true,
     false,
     0,
     parse_identify,
     {"id", "generation", "identity", "session_retention_ms"}},
    {"load", REQUEST_LOAD, true, true, 3, parse_load, {"id", "config", "warm", "snapshot"}},
    {"snapshot", REQUEST_SNAPSHOT, true, true, 2, parse_snapshot, {"then", "snapshot"}},
    {"snapshot_disk", REQUEST_SNAPSHOT, true, true, 0, parse_snapshot_disk, {"snapshot"}},
    {"snapshot_stop", REQUEST_SNAPSHOT_STOP, true, true, 0, NULL, {NULL}},
    {"snapshot_go", REQUEST_SNAPSHOT_GO, true, true, 0, NULL, {NULL}},
    {"snapshot_committed", REQUEST_SNAPSHOT_COMMITTED, true, true, 0, parse_name, {"snapshot"}},
};

static int parse_name(const json_t *json, struct request *r, struct sp_error *err) {
    const char *name = NULL;
    int e = json_get_string(json, "", "snapshot", 1, sizeof(r->snapshot) - 1, &name, err);
    if (e < 0)
        return e;
    for (const char *s = name; *s; s++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", *s))
            return sp_error_field(err, SP_E_INVALID, "snapshot", "must be letters, digits, _ and -");
    (void)text_copy(r->snapshot, sizeof(r->snapshot), name);
    return 0;
}

static int parse_id(const json_t *json, bool required, struct request *r, struct sp_error *err) {
    const char *id = NULL;
    int e = required ? json_get_string(json, "", "id", 1, ID_SIZE - 1, &id, err)
                     : json_get_opt_string(json, "", "id", 1, ID_SIZE - 1, "", &id, err);
    if (e < 0)
        return e;
    if (*id && !id_is_valid(id, "sbx"))
        return sp_error_field(err, SP_E_INVALID, "id", "is no id of a sandbox");
    (void)text_copy(r->id, sizeof(r->id), id);
    return 0;
}

static int parse_body(const json_t *json, const char *key, struct request *r, struct sp_error *err) {
    json_t *body = NULL;
    int e = json_get_opt_object(json, "", key, &body, err);
    if (e < 0)
        return e;
    if (!body)
        return sp_error_field(err, SP_E_INVALID, key, "is missing");
    r->body = json_incref(body);
    return 0;
}

static int parse_identify(const json_t *json, struct request *r, struct sp_error *err) {
    int e;
    if ((e = parse_id(json, true, r, err)) < 0 ||
        (e = json_get_u64(json, "", "generation", 0, INT64_MAX, &r->generation, err)) < 0 ||
        (e = json_get_opt_u64(json, "", "session_retention_ms", 0, INT64_MAX, 0, &r->session_retention_ms, err)) < 0)
        return e;
    return parse_body(json, "identity", r, err);
}

static int parse_load(const json_t *json, struct request *r, struct sp_error *err) {
    int e;
    if ((e = parse_id(json, false, r, err)) < 0 || (e = parse_name(json, r, err)) < 0 ||
        (e = json_get_opt_bool(json, "", "warm", false, &r->warm, err)) < 0)
        return e;
    return parse_body(json, "config", r, err);
}

static int parse_snapshot(const json_t *json, struct request *r, struct sp_error *err) {
    const char *then = NULL;
    int e = json_get_string(json, "", "then", 1, 16, &then, err);
    if (e < 0)
        return e;
    r->stop = strcmp(then, "stop") == 0;
    if (!r->stop && strcmp(then, "resume") != 0)
        return sp_error_field(err, SP_E_INVALID, "then", "must be resume or stop");
    return parse_name(json, r, err);
}

static int parse_snapshot_disk(const json_t *json, struct request *r, struct sp_error *err) {
    r->disk_alone = true;
    return parse_name(json, r, err);
}

static int parse_as(const struct kind *kind, const json_t *json, struct request *r, struct sp_error *err) {
    const char *keys[KEYS_MAX + 3] = {"request"};
    size_t n = 1;
    int e;
    if (kind->seq)
        keys[n++] = "seq";
    for (size_t i = 0; i < KEYS_MAX && kind->keys[i]; i++)
        keys[n++] = kind->keys[i];
    if ((e = json_check_keys(json, "", keys, err)) < 0 ||
        (kind->seq && (e = json_get_u64(json, "", "seq", 0, SEQ_MAX, &r->seq, err)) < 0))
        return e;
    r->kind = kind->kind;
    return kind->parse ? kind->parse(json, r, err) : 0;
}

int request_parse(const char *text, size_t len, size_t n_fds, bool is_root, struct request *ret, struct sp_error *err) {
    _cleanup_json_ json_t *json = NULL;
    struct request request = {0};
    const char *name = NULL;
    int r;

    *ret = (struct request){0};
    if ((r = json_parse(text, len, VM_MESSAGE_MAX, &json, err)) < 0)
        return r;
    if (!json_is_object(json))
        return sp_error_set(err, SP_E_INVALID, "no request");
    if ((r = json_get_string(json, "", "request", 1, 32, &name, err)) < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (strcmp(kinds[i].name, name) != 0)
            continue;
        if (kinds[i].n_fds != n_fds || (kinds[i].root && !is_root))
            return sp_error_set(err, SP_E_INVALID, "%s: %s", name,
                                kinds[i].n_fds != n_fds ? "other descriptors than it needs" : "for root only");
        r = parse_as(&kinds[i], json, &request, err);
        if (r < 0)
            request_done(&request);
        *ret = request;
        return r;
    }
    return sp_error_set(err, SP_E_INVALID, "unknown request");
}

void request_done(struct request *request) {
    json_decref(request->body);
    *request = (struct request){0};
}
