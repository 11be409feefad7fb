/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing of the desired list. */
#include "node/desired.h"
#include "base/clock.h"
#include "base/text.h"
#include "vm/vm_config.h"
#include <string.h>
#include <time.h>

/* Exactly n digits at *text, which is advanced. */
static bool take_digits(const char **text, unsigned n, unsigned min, unsigned max, unsigned *ret) {
    unsigned value = 0;
    for (unsigned i = 0; i < n; i++, (*text)++) {
        if (**text < '0' || **text > '9')
            return false;
        value = value * 10 + (unsigned)(**text - '0');
    }
    *ret = value;
    return value >= min && value <= max;
}

static bool take(const char **text, char c) {
    return **text == c && (*text)++;
}

/* ".123456" of any length: nanoseconds. */
static bool take_fraction(const char **text, uint64_t *ret) {
    uint64_t scale = NSEC_PER_SEC / 10;
    *ret = 0;
    if (**text != '.')
        return true;
    (*text)++;
    if (**text < '0' || **text > '9')
        return false;
    for (; **text >= '0' && **text <= '9'; (*text)++, scale /= 10)
        *ret += (uint64_t)(**text - '0') * scale;
    return true;
}

bool desired_time_parse(const char *text, uint64_t *ret_ns) {
    unsigned year, month, day, hour, minute, second;
    uint64_t fraction;
    struct tm tm = {0};
    if (!take_digits(&text, 4, 1970, 2200, &year) || !take(&text, '-') || !take_digits(&text, 2, 1, 12, &month) ||
        !take(&text, '-') || !take_digits(&text, 2, 1, 31, &day) || !take(&text, 'T') ||
        !take_digits(&text, 2, 0, 23, &hour) || !take(&text, ':') || !take_digits(&text, 2, 0, 59, &minute) ||
        !take(&text, ':') || !take_digits(&text, 2, 0, 60, &second) || !take_fraction(&text, &fraction))
        return false;
    if (strcmp(text, "Z") != 0 && strcmp(text, "+00:00") != 0)
        return false;
    tm.tm_year = (int)year - 1900;
    tm.tm_mon = (int)month - 1;
    tm.tm_mday = (int)day;
    tm.tm_hour = (int)hour;
    tm.tm_min = (int)minute;
    tm.tm_sec = (int)second;
    *ret_ns = (uint64_t)timegm(&tm) * NSEC_PER_SEC + fraction;
    return true;
}

static bool is_hex(const char *s, size_t digits) {
    return strlen(s) == digits && s[strspn(s, "0123456789abcdef")] == '\0';
}

/* template {digest, manifest} and resources {vcpus, memory_mib}, of a sandbox or a pool. */
struct parsed_spec {
    char *digest; /* SHA256_HEX_SIZE */
    const json_t **manifest;
    unsigned *vcpus, *memory_mib;
};

static int parse_template(const json_t *obj, const struct parsed_spec *spec, struct sp_error *err) {
    json_t *template = NULL, *manifest = NULL;
    const char *digest;
    if (json_get_opt_object(obj, "", "template", &template, err) < 0)
        return -SP_E_INVALID;
    if (!template)
        return sp_error_field(err, SP_E_INVALID, "template", "template is missing");
    if (json_get_string(template, "template", "digest", 64, 64, &digest, err) < 0 ||
        json_get_opt_object(template, "template", "manifest", &manifest, err) < 0)
        return -SP_E_INVALID;
    if (!is_hex(digest, 64) || !text_copy(spec->digest, SHA256_HEX_SIZE, digest))
        return sp_error_field(err, SP_E_INVALID, "template.digest", "template.digest must be 64 hex digits");
    *spec->manifest = manifest;
    return 0;
}

static int parse_identity(const json_t *obj, struct desired *d, struct sp_error *err) {
    const char *hostname, *machine_id;
    json_t *env;
    if (json_get_string(obj, "", "hostname", 1, sizeof(d->hostname) - 1, &hostname, err) < 0 ||
        json_get_string(obj, "", "machine_id", 32, 32, &machine_id, err) < 0 ||
        json_get_opt_object(obj, "", "env", &env, err) < 0)
        return -SP_E_INVALID;
    if (!is_hex(machine_id, 32))
        return sp_error_field(err, SP_E_INVALID, "machine_id", "machine_id must be 32 hex digits");
    (void)text_copy(d->hostname, sizeof(d->hostname), hostname);
    (void)text_copy(d->machine_id, sizeof(d->machine_id), machine_id);
    d->env = env;
    return 0;
}

static int parse_size(const json_t *obj, const struct parsed_spec *spec, struct sp_error *err) {
    json_t *resources = NULL;
    uint64_t vcpus, memory_mib;
    if (json_get_opt_object(obj, "", "resources", &resources, err) < 0)
        return -SP_E_INVALID;
    if (!resources)
        return sp_error_field(err, SP_E_INVALID, "resources", "resources is missing");
    if (json_get_u64(resources, "resources", "vcpus", 1, VM_CONFIG_VCPUS_MAX, &vcpus, err) < 0 ||
        json_get_u64(resources, "resources", "memory_mib", VM_CONFIG_MEMORY_MIB_MIN, VM_CONFIG_MEMORY_MIB_MAX,
                     &memory_mib, err) < 0)
        return -SP_E_INVALID;
    *spec->vcpus = (unsigned)vcpus;
    *spec->memory_mib = (unsigned)memory_mib;
    return 0;
}

static int parse_spec(const json_t *obj, const struct parsed_spec *spec, struct sp_error *err) {
    int r = parse_template(obj, spec, err);
    return r < 0 ? r : parse_size(obj, spec, err);
}

/* The id of a snapshot under `key` of an optional object `name`; "" when there is none. */
static int parse_snapshot_id(const json_t *obj, const char *name, const char *key, char dst[ID_SIZE],
                             const json_t **ret_object, struct sp_error *err) {
    json_t *object = NULL;
    const char *id;
    if (json_get_opt_object(obj, "", name, &object, err) < 0)
        return -SP_E_INVALID;
    *ret_object = object;
    if (!object)
        return 0;
    if (json_get_opt_string(object, name, key, 1, ID_SIZE - 1, "", &id, err) < 0)
        return -SP_E_INVALID;
    if (id[0] && !id_is_valid(id, "snp"))
        return sp_error_field(err, SP_E_INVALID, name, "%s.%s must be the id of a snapshot", name, key);
    (void)text_copy(dst, ID_SIZE, id);
    return 0;
}

/* content of an object that may not be there: full when left out. */
static int parse_content(const json_t *object, const char *name, bool *ret_is_disk, struct sp_error *err) {
    const char *content = "full";
    if (object && json_get_opt_string(object, name, "content", 1, 8, "full", &content, err) < 0)
        return -SP_E_INVALID;
    *ret_is_disk = strcmp(content, "disk") == 0;
    if (!*ret_is_disk && strcmp(content, "full") != 0)
        return sp_error_field(err, SP_E_INVALID, name, "%s.content must be full or disk", name);
    return 0;
}

static int parse_snapshots(const json_t *obj, struct desired *d, struct sp_error *err) {
    const json_t *start, *snapshot;
    const char *kind = "";
    if (parse_snapshot_id(obj, "start", "snapshot_id", d->start_snapshot, &start, err) < 0 ||
        parse_snapshot_id(obj, "snapshot", "id", d->snapshot_id, &snapshot, err) < 0 ||
        (snapshot &&
         json_get_opt_string(snapshot, "snapshot", "kind", 1, sizeof(d->snapshot_kind) - 1, "", &kind, err) < 0) ||
        parse_content(start, "start", &d->start_boots, err) < 0 ||
        parse_content(snapshot, "snapshot", &d->snapshot_is_disk, err) < 0)
        return -SP_E_INVALID;
    (void)text_copy(d->snapshot_kind, sizeof(d->snapshot_kind), kind);
    return 0;
}

/* What is needed to make it run. */
static int parse_start(const json_t *obj, struct desired *d, struct sp_error *err) {
    const struct parsed_spec spec = {.digest = d->template_digest,
                                     .manifest = &d->manifest,
                                     .vcpus = &d->vcpus,
                                     .memory_mib = &d->memory_mib};
    const char *deadline;
    if (parse_spec(obj, &spec, err) < 0 || parse_identity(obj, d, err) < 0 || parse_snapshots(obj, d, err) < 0 ||
        json_get_opt_string(obj, "", "deadline_at", 1, 64, "", &deadline, err) < 0)
        return -SP_E_INVALID;
    if (deadline[0] && !desired_time_parse(deadline, &d->deadline_ns))
        return sp_error_field(err, SP_E_INVALID, "deadline_at", "deadline_at must be an RFC 3339 time");
    return 0;
}

static bool parse_want(const char *name, enum desired_want *ret) {
    static const char *const names[] = {[WANT_RUNNING] = "running",
                                        [WANT_PAUSED] = "paused",
                                        [WANT_SUSPENDED] = "suspended",
                                        [WANT_DELETED] = "deleted"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (enum desired_want)i;
            return true;
        }
    return false;
}

/* What must be good for the list to be used at all. */
static int parse_item(const json_t *obj, struct desired *d, struct sp_error *err) {
    struct sp_error why = {0};
    const char *id, *want, *observed, *operation, *kind;
    if (!json_is_object(obj))
        return sp_error_field(err, SP_E_PROTOCOL, "sandboxes", "sandboxes must hold objects");
    if (json_get_string(obj, "", "id", 1, ID_SIZE - 1, &id, err) < 0 ||
        json_get_string(obj, "", "desired", 1, 16, &want, err) < 0 ||
        json_get_u64(obj, "", "generation", 0, INT64_MAX, &d->generation, err) < 0 ||
        json_get_opt_string(obj, "", "observed", 1, sizeof(d->observed) - 1, "", &observed, err) < 0 ||
        json_get_opt_string(obj, "", "operation_id", 1, ID_SIZE - 1, "", &operation, err) < 0 ||
        json_get_opt_string(obj, "", "operation_kind", 1, sizeof(d->operation_kind) - 1, "", &kind, err) < 0)
        return -SP_E_PROTOCOL;
    if (!id_is_valid(id, "sbx"))
        return sp_error_field(err, SP_E_PROTOCOL, "id", "id must be the id of a sandbox");
    if (!parse_want(want, &d->want))
        return sp_error_field(err, SP_E_PROTOCOL, "desired", "desired must be running, paused, suspended or deleted");
    (void)text_copy(d->id, sizeof(d->id), id);
    (void)text_copy(d->operation_id, sizeof(d->operation_id), operation);
    (void)text_copy(d->operation_kind, sizeof(d->operation_kind), kind);
    (void)text_copy(d->observed, sizeof(d->observed), observed);
    if (d->want != WANT_DELETED && parse_start(obj, d, &why) < 0)
        (void)text_escape(d->problem, sizeof(d->problem), why.text, strlen(why.text));
    return 0;
}

static int compare(const void *a, const void *b) {
    return strcmp(((const struct desired *)a)->id, ((const struct desired *)b)->id);
}

static int parse_revision(const json_t *answer, char *dst, struct sp_error *err) {
    const json_t *revision = json_object_get(answer, "revision");
    bool good = json_is_integer(revision)
                    ? text_printf(dst, DESIRED_REVISION_MAX + 1, "%lld", (long long)json_integer_value(revision))
                    : json_is_string(revision) && text_copy(dst, DESIRED_REVISION_MAX + 1, json_string_value(revision));
    if (!good || !dst[0] || dst[strspn(dst, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-")])
        return sp_error_field(err, SP_E_PROTOCOL, "revision", "revision must be a number or a word");
    return 0;
}

static int parse_items(const json_t *sandboxes, struct desired_list *list, struct sp_error *err) {
    list->items = calloc(json_array_size(sandboxes) + 1, sizeof(*list->items));
    if (!list->items)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    for (size_t i = 0; i < json_array_size(sandboxes); i++, list->n++)
        if (parse_item(json_array_get(sandboxes, i), &list->items[i], err) < 0)
            return sp_error_wrap(err, "sandboxes[%zu]", i);
    qsort(list->items, list->n, sizeof(*list->items), compare);
    for (size_t i = 1; i < list->n; i++)
        if (strcmp(list->items[i - 1].id, list->items[i].id) == 0)
            return sp_error_field(err, SP_E_PROTOCOL, "sandboxes", "%s is in the list twice", list->items[i].id);
    return 0;
}

static int parse_gone(const json_t *answer, struct desired_list *list, struct sp_error *err) {
    json_t *gone;
    if (json_get_opt_array(answer, "", "snapshots_gone", DESIRED_GONE_MAX, &gone, err) < 0)
        return -SP_E_INVALID;
    list->gone = calloc(json_array_size(gone) + 1, sizeof(*list->gone));
    if (!list->gone)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    for (size_t i = 0; i < json_array_size(gone); i++) {
        const char *id = json_string_value(json_array_get(gone, i));
        if (!id || !id_is_valid(id, "snp") || !text_copy(list->gone[list->n_gone++], ID_SIZE, id))
            return sp_error_field(err, SP_E_PROTOCOL, "snapshots_gone", "snapshots_gone must hold ids of snapshots");
    }
    return 0;
}

static int parse_pool(const json_t *obj, struct desired_pool *p, struct sp_error *err) {
    const struct parsed_spec spec = {.digest = p->template_digest,
                                     .manifest = &p->manifest,
                                     .vcpus = &p->vcpus,
                                     .memory_mib = &p->memory_mib};
    const char *id;
    uint64_t size;
    if (!json_is_object(obj) || json_get_string(obj, "", "pool_id", 1, DESIRED_POOL_ID_MAX, &id, err) < 0 ||
        json_get_u64(obj, "", "size", 0, DESIRED_POOL_SIZE_MAX, &size, err) < 0 || parse_spec(obj, &spec, err) < 0)
        return -SP_E_INVALID;
    (void)text_copy(p->id, sizeof(p->id), id);
    p->size = (unsigned)size;
    return 0;
}

/* A pool is a convenience: one that is malformed is none. */
static int parse_pools(const json_t *answer, struct desired_list *list, struct sp_error *err) {
    json_t *pools;
    if (json_get_opt_array(answer, "", "pools", DESIRED_POOLS_MAX, &pools, err) < 0)
        return -SP_E_INVALID;
    list->pools = calloc(json_array_size(pools) + 1, sizeof(*list->pools));
    if (!list->pools)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    for (size_t i = 0; i < json_array_size(pools); i++) {
        struct desired_pool pool = {0};
        if (parse_pool(json_array_get(pools, i), &pool, NULL) == 0)
            list->pools[list->n_pools++] = pool;
    }
    return 0;
}

int desired_parse(const json_t *answer, struct desired_list *ret, struct sp_error *err) {
    struct desired_list list = {0};
    json_t *sandboxes = NULL;
    int r;
    *ret = list;
    if (json_get_opt_array(answer, "", "sandboxes", DESIRED_SANDBOXES_MAX, &sandboxes, err) < 0)
        return -SP_E_INVALID;
    if (!sandboxes)
        return sp_error_field(err, SP_E_PROTOCOL, "sandboxes", "sandboxes is missing");
    r = parse_revision(answer, list.revision, err);
    if (r == 0)
        r = parse_items(sandboxes, &list, err);
    if (r == 0)
        r = parse_gone(answer, &list, err);
    if (r == 0)
        r = parse_pools(answer, &list, err);
    if (r < 0) {
        desired_list_done(&list);
        return r;
    }
    list.root = json_incref((json_t *)(uintptr_t)answer);
    *ret = list;
    return 0;
}

void desired_list_done(struct desired_list *list) {
    free(list->items);
    free(list->gone);
    free(list->pools);
    json_decref(list->root);
    *list = (struct desired_list){0};
}

const struct desired *desired_find(const struct desired_list *list, const char *id) {
    struct desired key = {0};
    if (!list->n || !text_copy(key.id, sizeof(key.id), id))
        return NULL;
    return bsearch(&key, list->items, list->n, sizeof(*list->items), compare);
}
