/* SPDX-License-Identifier: Apache-2.0 */
/* pool ls, set, rm: machines started ahead of need. A pool is named by its template here, or by its id. */
#include "base/text.h"
#include "cli/api.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/sandbox.h"
#include <string.h>

static const struct output_column columns[] = {
    {"ID", "id"},
    {"TEMPLATE", "_template"},
    {"VCPUS", "resources.vcpus"},
    {"MEMORY_MIB", "resources.memory_mib"},
    {"SIZE", "size"},
    {"WARM", "_warm"},
    {"FILLING", "_filling"},
    {"HITS", "_hits"},
    {"MISSES", "_misses"},
};

/* Sums of what the nodes said, and the template as one word. */
static void summarize(json_t *pool) {
    static const char *const keys[] = {"warm", "filling", "hits", "misses"};
    const json_t *t = json_object_get(pool, "template"), *node;
    const char *name = json_string_value(json_object_get(t, "name")),
               *tag = json_string_value(json_object_get(t, "tag"));
    char text[160];
    size_t i;
    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        json_int_t sum = 0;
        json_array_foreach (json_object_get(pool, "nodes"), i, node)
            sum += json_integer_value(json_object_get(node, keys[k]));
        if (text_printf(text, sizeof text, "_%s", keys[k]))
            (void)json_object_set_new(pool, text, json_integer(sum));
    }
    if (text_printf(text, sizeof text, "%.64s%s%.64s", name ? name : "-", tag ? ":" : "", tag ? tag : ""))
        (void)json_object_set_new(pool, "_template", json_string(text));
}

static int list_pools(const struct api *a, json_t **ret, struct sp_error *err) {
    _cleanup_json_ json_t *answer = NULL;
    int r = api_call(a, "GET", "/v1/pools", NULL, &answer, err);
    if (r == 0)
        *ret = json_incref(json_object_get(answer, "items"));
    return r;
}

int cmd_pool_ls(const struct command_args *in, int *ret_status, struct sp_error *err) {
    _cleanup_json_ json_t *items = NULL;
    json_t *item;
    size_t i;
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 0, 0, "no words", err);
    if (r < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = list_pools(&a, &items, err);
    api_close(&a);
    if (r < 0)
        return r;
    if (output_format() == OUTPUT_TABLE)
        json_array_foreach (items, i, item)
            summarize(item);
    output_list(items, columns, ARRAY_SIZE(columns));
    return 0;
}

/* One pool a template release and size: the one that a template, and sizes where given, mean. */
struct wanted {
    const char *word;           /* pool id, "name" or "name:tag" */
    uint64_t vcpus, memory_mib; /* 0: any */
};

static bool fits(const struct wanted *w, const json_t *pool) {
    const json_t *t = json_object_get(pool, "template"), *res = json_object_get(pool, "resources");
    const char *name = json_string_value(json_object_get(t, "name")) ?: "",
               *tag = json_string_value(json_object_get(t, "tag")) ?: "latest";
    size_t n = strcspn(w->word, ":@");
    if (strcmp(json_string_value(json_object_get(pool, "id")) ?: "", w->word) == 0)
        return true;
    if (strlen(name) != n || memcmp(name, w->word, n) != 0 || (w->word[n] == ':' && strcmp(w->word + n + 1, tag) != 0))
        return false;
    return (w->vcpus == 0 || (uint64_t)json_integer_value(json_object_get(res, "vcpus")) == w->vcpus) &&
           (w->memory_mib == 0 || (uint64_t)json_integer_value(json_object_get(res, "memory_mib")) == w->memory_mib);
}

/* "" when there is none; more than one is an error. */
static int find_pool(const struct api *a, const struct wanted *w, char ret_id[64], struct sp_error *err) {
    _cleanup_json_ json_t *items = NULL;
    const json_t *item;
    size_t i, found = 0;
    int r = list_pools(a, &items, err);
    ret_id[0] = '\0';
    if (r < 0)
        return r;
    json_array_foreach (items, i, item)
        if (fits(w, item) && text_copy(ret_id, 64, json_string_value(json_object_get(item, "id")) ?: ""))
            found++;
    return found <= 1 ? 0
                      : sp_error_set(err, SP_E_CONFLICT, "%zu pools are of %.64s; name one by its id (space pool ls)",
                                     found, w->word);
}

static int pool_target(char target[128], const char *id, struct sp_error *err) {
    return text_printf(target, 128, "/v1/pools/%s", id) ? 0 : sp_error_set(err, SP_E_PROTOCOL, "pool id too long");
}

static int set_size(const struct api *a, const struct wanted *w, const char *id, uint64_t size, json_t **ret,
                    struct sp_error *err) {
    char target[128];
    if (*id) {
        _cleanup_json_ json_t *body = json_pack("{s:I}", "size", (json_int_t)size);
        int r = pool_target(target, id, err);
        return r < 0 ? r : api_call(a, "PATCH", target, body, ret, err);
    }
    _cleanup_json_ json_t *body =
        json_pack("{s:s, s:I, s:{}}", "template", w->word, "size", (json_int_t)size, "resources");
    if (!body)
        return sp_error_field(err, SP_E_INVALID, "TEMPLATE", "must be UTF-8");
    if (w->vcpus)
        (void)json_object_set_new(json_object_get(body, "resources"), "vcpus", json_integer((json_int_t)w->vcpus));
    if (w->memory_mib)
        (void)json_object_set_new(json_object_get(body, "resources"), "memory_mib",
                                  json_integer((json_int_t)w->memory_mib));
    return api_call(a, "POST", "/v1/pools", body, ret, err);
}

int cmd_pool_set(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    _cleanup_json_ json_t *pool = NULL;
    struct wanted w = {0};
    const char *vcpus = NULL, *memory = NULL;
    char id[64];
    uint64_t size;
    struct api a;
    const struct option_row rows[] = {{"--vcpus", 0, OPTION_VALUE, &vcpus}, {"--memory-mib", 0, OPTION_VALUE, &memory}};
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 2, 2, "TEMPLATE SIZE", err)) < 0)
        return r;
    w.word = args.argv[0];
    if (!text_to_u64(args.argv[1], 0, 256, &size))
        return sp_error_field(err, SP_E_INVALID, "SIZE", "must be 0 to 256");
    if ((vcpus && !text_to_u64(vcpus, 1, INT32_MAX, &w.vcpus)) ||
        (memory && !text_to_u64(memory, 1, INT32_MAX, &w.memory_mib)))
        return sp_error_field(err, SP_E_INVALID, "--vcpus, --memory-mib", "must be whole numbers above 0");
    if ((r = api_open(&a, in->settings, err)) < 0)
        return r;
    if ((r = find_pool(&a, &w, id, err)) == 0)
        r = set_size(&a, &w, id, size, &pool, err);
    api_close(&a);
    if (r < 0)
        return r;
    if (output_format() == OUTPUT_JSON)
        output_object(pool, NULL, 0);
    else
        (void)printf("%s\n", json_string_value(json_object_get(pool, "id")) ?: "");
    return 0;
}

int cmd_pool_rm(const struct command_args *in, int *ret_status, struct sp_error *err) {
    char target[128], id[64];
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 1, 1, "TEMPLATE", err);
    if (r < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    const struct wanted w = {.word = in->argv[0]};
    r = find_pool(&a, &w, id, err);
    if (r == 0 && !*id)
        r = sp_error_set(err, SP_E_NOT_FOUND, "no pool of %.64s", in->argv[0]);
    if (r == 0 && (r = pool_target(target, id, err)) == 0)
        r = api_call(&a, "DELETE", target, NULL, NULL, err);
    api_close(&a);
    if (r == 0)
        (void)printf("%s\n", id);
    return r;
}
