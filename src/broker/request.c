/* SPDX-License-Identifier: Apache-2.0 */
/* The request table: which requests there are, which fields each has, and what a field may hold. */
#include "broker/request.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "vm/vm_config.h"
#include <assert.h>

#define NUMBER_MAX ((1ull << 53) - 1) /* what every JSON implementation keeps exactly */

enum field_type { FIELD_U64, FIELD_ID, FIELD_HEX, FIELD_KEY, FIELD_CHOICE, FIELD_OBJECT, FIELD_IDS };

struct field_row {
    const char *key;
    enum field_type type;
    bool optional;
    uint64_t min, max;          /* U64: value; HEX: digits (max); OBJECT: bytes (max); IDS: items (max) */
    const char *const *choices; /* CHOICE: NULL-ended */
    const char *prefix;         /* ID, KEY: the only kind of id; NULL: any of a VM, any of a snapshot */
    size_t offset;
};

struct request_row {
    const char *name;
    const struct field_row *fields; /* ended by a row without key */
};

const char *const request_mode_names[] = {"clone", "template_boot", "blank", "boot", NULL};
const char *const request_then_names[] = {"resume", "stop", NULL};
const char *const request_content_names[] = {"full", "disk", NULL};
const char *const request_kernel_names[] = {"stock", "lean", NULL};
const char *const request_accelerator_names[] = {"tcg", "kvm", NULL};

#define AT(field) .offset = offsetof(struct request, field)
static const struct field_row no_fields[] = {{0}};
static const struct field_row hello_fields[] = {{"version", FIELD_U64, .min = 1, .max = 1000, AT(version)}, {0}};
static const struct field_row id_fields[] = {{"id", FIELD_ID, AT(id)}, {0}};
static const struct field_row list_fields[] = {{"after", FIELD_ID, .optional = true, AT(after)}, {0}};
static const struct field_row start_fields[] = {
    {"id", FIELD_ID, AT(id)},
    {"mode", FIELD_CHOICE, .choices = request_mode_names, AT(mode)},
    {"template", FIELD_HEX, .optional = true, .max = SHA256_HEX_SIZE - 1, AT(template)},
    {"snapshot", FIELD_KEY, .optional = true, AT(snapshot)},
    {"kernel", FIELD_CHOICE, .choices = request_kernel_names, AT(kernel)},
    {"accelerator", FIELD_CHOICE, .choices = request_accelerator_names, AT(accelerator)},
    {"vcpus", FIELD_U64, .min = 1, .max = VM_CONFIG_VCPUS_MAX, AT(vcpus)},
    {"memory_mib", FIELD_U64, .min = VM_CONFIG_MEMORY_MIB_MIN, .max = VM_CONFIG_MEMORY_MIB_MAX, AT(memory_mib)},
    {"config", FIELD_OBJECT, .max = BROKER_CONFIG_MAX, AT(config)},
    {0}};
static const struct field_row seal_fields[] = {{"id", FIELD_ID, AT(id)},
                                               {"snapshot", FIELD_HEX, .max = BROKER_KEY_SIZE - 1, AT(snapshot)},
                                               {"manifest", FIELD_OBJECT, .max = BROKER_MANIFEST_MAX, AT(manifest)},
                                               {0}};
static const struct field_row load_fields[] = {{"id", FIELD_ID, .prefix = "spr", AT(id)},
                                               {"bind", FIELD_ID, .optional = true, .prefix = "sbx", AT(bind)},
                                               {"template", FIELD_HEX, .max = SHA256_HEX_SIZE - 1, AT(template)},
                                               {"snapshot", FIELD_KEY, AT(snapshot)},
                                               {"config", FIELD_OBJECT, .max = BROKER_CONFIG_MAX, AT(config)},
                                               {0}};
static const struct field_row bind_fields[] = {{"id", FIELD_ID, .prefix = "spr", AT(id)},
                                               {"sandbox", FIELD_ID, .prefix = "sbx", AT(sandbox)},
                                               {0}};
static const struct field_row take_fields[] = {{"id", FIELD_ID, AT(id)},
                                               {"snapshot", FIELD_KEY, .prefix = "snp", AT(snapshot)},
                                               {"then", FIELD_CHOICE, .choices = request_then_names, AT(then)},
                                               {"content", FIELD_CHOICE, .optional = true,
                                                .choices = request_content_names, AT(content)},
                                               {"manifest", FIELD_OBJECT, .max = BROKER_MANIFEST_MAX, AT(manifest)},
                                               {0}};
static const struct field_row copy_fields[] = {{"snapshot", FIELD_KEY, AT(snapshot)},
                                               {"to", FIELD_KEY, .prefix = "snp", AT(to)},
                                               {"manifest", FIELD_OBJECT, .optional = true, .max = BROKER_MANIFEST_MAX,
                                                AT(manifest)},
                                               {0}};
static const struct field_row snapshot_fields[] = {{"snapshot", FIELD_KEY, AT(snapshot)}, {0}};
static const struct field_row keys_fields[] = {{"after", FIELD_KEY, .optional = true, .prefix = "snp", AT(after)}, {0}};
static const struct field_row template_fields[] = {{"template", FIELD_HEX, .max = SHA256_HEX_SIZE - 1, AT(template)},
                                                   {0}};
static const struct field_row engine_fields[] = {{"engine", FIELD_HEX, .max = SHA256_HEX_SIZE - 1, AT(engine)}, {0}};
static const struct field_row sweep_fields[] = {{"known", FIELD_IDS, .max = BROKER_KNOWN_MAX, AT(known)}, {0}};

static const struct request_row rows[REQUEST_COUNT_] = {
    [REQUEST_HELLO] = {"hello", hello_fields},
    [REQUEST_VM_START] = {"vm_start", start_fields},
    [REQUEST_VM_LOAD] = {"vm_load", load_fields},
    [REQUEST_VM_BIND] = {"vm_bind", bind_fields},
    [REQUEST_VM_SNAPSHOT] = {"vm_snapshot", take_fields},
    [REQUEST_VM_STOP] = {"vm_stop", id_fields},
    [REQUEST_VM_LIST] = {"vm_list", list_fields},
    [REQUEST_SNAPSHOT_SEAL] = {"snapshot_seal", seal_fields},
    [REQUEST_SNAPSHOT_COPY] = {"snapshot_copy", copy_fields},
    [REQUEST_SNAPSHOT_STAT] = {"snapshot_stat", snapshot_fields},
    [REQUEST_SNAPSHOT_LIST] = {"snapshot_list", keys_fields},
    [REQUEST_SNAPSHOT_REMOVE] = {"snapshot_remove", snapshot_fields},
    [REQUEST_TEMPLATE_LIST] = {"template_list", no_fields},
    [REQUEST_TEMPLATE_REMOVE] = {"template_remove", template_fields},
    [REQUEST_ENGINE_LIST] = {"engine_list", no_fields},
    [REQUEST_ENGINE_REMOVE] = {"engine_remove", engine_fields},
    [REQUEST_STAT] = {"stat", no_fields},
    [REQUEST_SWEEP] = {"sweep", sweep_fields},
};

const char *request_type_name(enum request_type type) {
    return rows[type].name;
}

bool request_hex_is_valid(const char *hex, size_t digits) {
    return strlen(hex) == digits && strspn(hex, "0123456789abcdef") == digits;
}

bool request_key_is_sandboxes(const char *key) {
    return id_is_valid(key, "snp");
}

bool request_key_is_valid(const char *key) {
    return request_hex_is_valid(key, BROKER_KEY_SIZE - 1) || request_key_is_sandboxes(key);
}

bool request_id_is_valid(const char *id) {
    return id_is_valid(id, "sbx") || id_is_valid(id, "tpb") || id_is_valid(id, "spr");
}

static void *field_at(struct request *request, const struct field_row *row) {
    return (char *)request + row->offset;
}

static int parse_id(const json_t *obj, const struct field_row *row, struct request *request, struct sp_error *err) {
    const char *text;
    int r = json_get_string(obj, "", row->key, 1, ID_SIZE - 1, &text, err);
    if (r < 0)
        return r;
    if (!(row->prefix ? id_is_valid(text, row->prefix) : request_id_is_valid(text)) ||
        !text_copy(field_at(request, row), ID_SIZE, text))
        return sp_error_field(err, SP_E_INVALID, row->key, "%s must be the id of a VM", row->key);
    return 0;
}

static int parse_key(const json_t *obj, const struct field_row *row, struct request *request, struct sp_error *err) {
    const char *text;
    int r = json_get_string(obj, "", row->key, 1, BROKER_KEY_SIZE - 1, &text, err);
    if (r < 0)
        return r;
    if (!(row->prefix ? id_is_valid(text, row->prefix) : request_key_is_valid(text)) ||
        !text_copy(field_at(request, row), BROKER_KEY_SIZE, text))
        return sp_error_field(err, SP_E_INVALID, row->key, "%s must be the key of a snapshot", row->key);
    return 0;
}

static int parse_hex(const json_t *obj, const struct field_row *row, struct request *request, struct sp_error *err) {
    const char *text;
    int r = json_get_string(obj, "", row->key, row->max, row->max, &text, err);
    if (r < 0)
        return r;
    if (!request_hex_is_valid(text, row->max) || !text_copy(field_at(request, row), row->max + 1, text))
        return sp_error_field(err, SP_E_INVALID, row->key, "%s must be %llu lowercase hex digits", row->key,
                              (unsigned long long)row->max);
    return 0;
}

static int parse_choice(const json_t *obj, const struct field_row *row, struct request *request, struct sp_error *err) {
    const char *text;
    uint64_t *value = field_at(request, row);
    int r = json_get_string(obj, "", row->key, 1, 32, &text, err);
    if (r < 0)
        return r;
    for (uint64_t i = 0; row->choices[i]; i++)
        if (strcmp(row->choices[i], text) == 0) {
            *value = i;
            return 0;
        }
    return sp_error_field(err, SP_E_INVALID, row->key, "%s has an unknown value", row->key);
}

static int parse_object(const json_t *obj, const struct field_row *row, struct request *request, struct sp_error *err) {
    json_t *value = NULL, **field = field_at(request, row);
    _cleanup_free_ char *text = NULL;
    int r = json_get_opt_object(obj, "", row->key, &value, err);
    if (r < 0)
        return r;
    if (!value)
        return sp_error_field(err, SP_E_INVALID, row->key, "%s is missing", row->key);
    text = json_print(value);
    if (strlen(text) > row->max)
        return sp_error_field(err, SP_E_INVALID, row->key, "%s must have at most %llu bytes", row->key,
                              (unsigned long long)row->max);
    *field = json_incref(value);
    return 0;
}

static int parse_ids(const json_t *obj, const struct field_row *row, struct request *request, struct sp_error *err) {
    json_t *list = NULL;
    size_t n;
    int r = json_get_opt_array(obj, "", row->key, row->max, &list, err);
    if (r < 0)
        return r;
    if (!list)
        return sp_error_field(err, SP_E_INVALID, row->key, "%s is missing", row->key);
    n = json_array_size(list);
    request->known = calloc(n + 1, sizeof(*request->known));
    if (!request->known)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (!text || !request_id_is_valid(text) || !text_copy(request->known[i], ID_SIZE, text))
            return sp_error_field(err, SP_E_INVALID, row->key, "%s[%zu] must be the id of a VM", row->key, i);
    }
    request->n_known = n;
    return 0;
}

static int parse_u64(const json_t *obj, const struct field_row *row, struct request *request, struct sp_error *err) {
    return json_get_u64(obj, "", row->key, row->min, row->max, field_at(request, row), err);
}

static int (*const parse_field[])(const json_t *obj, const struct field_row *row, struct request *request,
                                  struct sp_error *err) = {
    [FIELD_U64] = parse_u64,       [FIELD_ID] = parse_id,         [FIELD_HEX] = parse_hex, [FIELD_KEY] = parse_key,
    [FIELD_CHOICE] = parse_choice, [FIELD_OBJECT] = parse_object, [FIELD_IDS] = parse_ids,
};

static int parse_fields(const json_t *obj, struct request *request, struct sp_error *err) {
    const char *names[16] = {"request", "seq"};
    size_t n = 2;
    int r;

    for (const struct field_row *row = rows[request->type].fields; row->key; row++) {
        assert(n + 1 < ARRAY_SIZE(names));
        names[n++] = row->key;
    }
    r = json_check_keys(obj, "", names, err);
    for (const struct field_row *row = rows[request->type].fields; row->key && r == 0; row++)
        if (!row->optional || json_object_get(obj, row->key))
            r = parse_field[row->type](obj, row, request, err);
    return r;
}

/* What no single field can say: which ids and which sources each mode has. */
static int check_start(const struct request *request, struct sp_error *err) {
    static const struct {
        const char *prefix;
        bool template, snapshot;
    } modes[] = {[MODE_CLONE] = {"sbx", true, true},
                 [MODE_TEMPLATE_BOOT] = {"tpb", true, false},
                 [MODE_BLANK] = {"spr", false, false},
                 [MODE_BOOT] = {"sbx", true, true}};
    const char *mode = request_mode_names[request->mode];

    if (!id_is_valid(request->id, modes[request->mode].prefix))
        return sp_error_field(err, SP_E_INVALID, "id", "a %s has an id of the form %s_…", mode,
                              modes[request->mode].prefix);
    if (modes[request->mode].template != (request->template[0] != '\0'))
        return sp_error_field(err, SP_E_INVALID, "template", "template must be %s for %s",
                              modes[request->mode].template ? "given" : "left out", mode);
    if (modes[request->mode].snapshot != (request->snapshot[0] != '\0'))
        return sp_error_field(err, SP_E_INVALID, "snapshot", "snapshot must be %s for %s",
                              modes[request->mode].snapshot ? "given" : "left out", mode);
    return 0;
}

/* A VM that is to stand still is woken with its memory. */
static int check_take(const struct request *request, struct sp_error *err) {
    return request->content == CONTENT_FULL || request->then == THEN_RESUME
               ? 0
               : sp_error_field(err, SP_E_INVALID, "then", "then must be resume for a snapshot of the disk alone");
}

static int find_type(const json_t *obj, enum request_type *ret, struct sp_error *err) {
    const char *name;
    int r = json_get_string(obj, "", "request", 1, 64, &name, err);
    if (r < 0)
        return r;
    for (int t = 0; t < REQUEST_COUNT_; t++)
        if (strcmp(rows[t].name, name) == 0) {
            *ret = (enum request_type)t;
            return 0;
        }
    return sp_error_field(err, SP_E_INVALID, "request", "there is no such request");
}

int request_parse(const char *data, size_t len, struct request *ret, struct sp_error *err) {
    _cleanup_json_ json_t *obj = NULL;
    struct request request = {0};
    int r;

    *ret = request;
    r = json_parse(data, len, BROKER_MESSAGE_MAX, &obj, err);
    if (r < 0)
        return r;
    if (!json_is_object(obj))
        return sp_error_set(err, SP_E_INVALID, "a request must be a JSON object");
    if (json_object_get(obj, "seq")) {
        r = json_get_u64(obj, "", "seq", 0, NUMBER_MAX, &request.seq, err);
        request.has_seq = r == 0;
    }
    if (r == 0)
        r = find_type(obj, &request.type, err);
    if (r == 0)
        r = parse_fields(obj, &request, err);
    if (r == 0 && request.type == REQUEST_VM_START)
        r = check_start(&request, err);
    if (r == 0 && request.type == REQUEST_VM_SNAPSHOT)
        r = check_take(&request, err);
    if (r < 0) {
        ret->has_seq = request.has_seq;
        ret->seq = request.seq;
        request_done(&request);
        return r;
    }
    *ret = request;
    return 0;
}

void request_done(struct request *request) {
    json_decref(request->config);
    json_decref(request->manifest);
    free(request->known);
    *request = (struct request){0};
}
