/* SPDX-License-Identifier: Apache-2.0 */
/* Attach answers: checks, the ATTACH record, the cache. */
#include "gateway/grant.h"
#include "base/text.h"
#include "wire/record.h"
#include <assert.h>
#include <string.h>

#define SLOTS 4096u
#define ARGS_MAX 257
#define ENV_MAX 512
#define STRING_MAX 65536

static int get_id(const json_t *answer, const char *key, const char *prefix, char dst[ID_SIZE], struct sp_error *err) {
    const char *id;
    if (json_get_string(answer, "attach", key, 1, ID_SIZE - 1, &id, err) < 0)
        return -SP_E_PROTOCOL;
    if (!id_is_valid(id, prefix) || !text_copy(dst, ID_SIZE, id))
        return sp_error_field(err, SP_E_PROTOCOL, key, "control's answer has a malformed %s", key);
    return 0;
}

int grant_parse(const json_t *answer, const char *session_id, struct grant **ret, struct sp_error *err) {
    struct grant *g = calloc(1, sizeof(*g));
    const char *node_id = "";
    if (!g)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    g->references = 1;
    if (get_id(answer, "session_id", "ses", g->session_id, err) < 0 ||
        get_id(answer, "sandbox_id", "sbx", g->sandbox_id, err) < 0 ||
        get_id(answer, "process_id", "prc", g->process_id, err) < 0 ||
        json_get_string(answer, "attach", "node_id", 1, sizeof(g->node_id) - 1, &node_id, err) < 0 ||
        json_get_opt_bool(answer, "attach", "may_start", false, &g->may_start, err) < 0 ||
        strcmp(g->session_id, session_id) != 0) {
        free(g);
        if (err)
            err->code = SP_E_PROTOCOL;
        return -SP_E_PROTOCOL;
    }
    (void)text_copy(g->node_id, sizeof(g->node_id), node_id);
    g->has_stdin = json_is_true(json_object_get(answer, "stdin"));
    g->pty = json_is_object(json_object_get(answer, "pty"));
    g->spec = json_incref((json_t *)(uintptr_t)answer);
    *ret = g;
    return 0;
}

struct grant *grant_ref(struct grant *g) {
    g->references++;
    return g;
}

struct grant *grant_unref(struct grant *g) {
    if (g && --g->references == 0) {
        json_decref(g->spec);
        free(g);
    }
    return NULL;
}

static int put_argv(const json_t *spec, struct buf *out, struct sp_error *err) {
    const char *command;
    json_t *args, *arg;
    size_t i;
    if (json_get_string(spec, "", "command", 1, STRING_MAX, &command, err) < 0 ||
        json_get_opt_array(spec, "", "args", ARGS_MAX, &args, err) < 0)
        return -SP_E_PROTOCOL;
    (void)record_put_string(out, TAG_ARGV, command);
    json_array_foreach (args, i, arg) {
        if (!json_is_string(arg))
            return sp_error_field(err, SP_E_PROTOCOL, "args", "args must hold strings");
        (void)record_put_string(out, TAG_ARGV, json_string_value(arg));
    }
    return 0;
}

/* "K=V" of an object's pair; the environment may also come as a list of such strings. */
static int put_env(const json_t *spec, struct buf *out, struct sp_error *err) {
    json_t *env = json_object_get(spec, "env"), *value;
    const char *key;
    size_t i;
    if (json_is_array(env) && json_array_size(env) <= ENV_MAX) {
        json_array_foreach (env, i, value)
            if (json_is_string(value))
                (void)record_put_string(out, TAG_ENV, json_string_value(value));
        return 0;
    }
    if (env && !json_is_null(env) && (!json_is_object(env) || json_object_size(env) > ENV_MAX))
        return sp_error_field(err, SP_E_PROTOCOL, "env", "env must be an object");
    json_object_foreach (env, key, value) {
        _cleanup_buf_ struct buf pair = {0};
        buf_init(&pair, STRING_MAX);
        if (!json_is_string(value))
            return sp_error_field(err, SP_E_PROTOCOL, "env", "env must hold strings");
        if (buf_printf(&pair, "%s=%s", key, json_string_value(value)) < 0)
            return sp_error_field(err, SP_E_TOO_LARGE, "env", "%s is too long", key);
        (void)record_put_string(out, TAG_ENV, pair.data);
    }
    return 0;
}

static int put_options(const json_t *spec, struct buf *out, struct sp_error *err) {
    const char *cwd, *user, *on_disconnect;
    uint64_t timeout_s, cols = 0, rows = 0;
    bool has_stdin;
    json_t *pty;
    if (json_get_opt_string(spec, "", "cwd", 1, 4096, "", &cwd, err) < 0 ||
        json_get_opt_string(spec, "", "user", 1, 255, "", &user, err) < 0 ||
        json_get_opt_string(spec, "", "on_disconnect", 1, 16, "keep", &on_disconnect, err) < 0 ||
        json_get_opt_u64(spec, "", "timeout_s", 1, UINT32_MAX, 0, &timeout_s, err) < 0 ||
        json_get_opt_bool(spec, "", "stdin", false, &has_stdin, err) < 0 ||
        json_get_opt_object(spec, "", "pty", &pty, err) < 0)
        return -SP_E_PROTOCOL;
    if (pty && (json_get_u64(pty, "pty", "cols", 1, 65535, &cols, err) < 0 ||
                json_get_u64(pty, "pty", "rows", 1, 65535, &rows, err) < 0))
        return -SP_E_PROTOCOL;
    if (cwd[0])
        (void)record_put_string(out, TAG_CWD, cwd);
    if (user[0])
        (void)record_put_string(out, TAG_USER, user);
    if (pty) {
        (void)record_put_u64(out, TAG_PTY_COLS, cols);
        (void)record_put_u64(out, TAG_PTY_ROWS, rows);
    }
    if (timeout_s)
        (void)record_put_u64(out, TAG_TIMEOUT_MS, timeout_s * 1000);
    (void)record_put_u64(out, TAG_STDIN, has_stdin);
    (void)record_put_u64(out, TAG_ON_DISCONNECT,
                         strcmp(on_disconnect, "kill") == 0 ? DISCONNECT_KILL : DISCONNECT_KEEP);
    return 0;
}

/* What only matters for a start. */
static int put_start(const struct grant *g, struct buf *out, struct sp_error *err) {
    if (put_argv(g->spec, out, err) < 0 || put_env(g->spec, out, err) < 0 || put_options(g->spec, out, err) < 0) {
        if (err && err->code != SP_E_TOO_LARGE)
            err->code = SP_E_PROTOCOL;
        return err ? -(int)err->code : -SP_E_PROTOCOL;
    }
    return 0;
}

int grant_put_attach(const struct grant *g, const struct cursor *from, struct buf *out, struct sp_error *err) {
    struct sp_error why = {0};
    size_t mark = record_begin(out, REC_ATTACH);
    (void)record_put_string(out, TAG_PROCESS_ID, g->process_id);
    (void)record_put_u64(out, TAG_MAY_START, g->may_start);
    if (g->may_start && put_start(g, out, &why) < 0)
        out->failed = true; /* makes record_end take it all back */
    (void)record_put_u64(out, TAG_STDOUT_FROM, from->next[0]);
    (void)record_put_u64(out, TAG_STDERR_FROM, from->next[1]);
    (void)record_put_u64(out, TAG_PTY_FROM, from->next[2]);
    if (record_end(out, mark) == 0)
        return 0;
    if (why.code == SP_OK)
        return sp_error_set(err, SP_E_TOO_LARGE, "command, arguments and environment are over %u bytes together",
                            RECORD_MAX_PAYLOAD);
    if (err)
        *err = why;
    return -(int)why.code;
}

struct grant_cache {
    struct grant_slot {
        struct grant_key key;
        struct grant *grant; /* NULL: free */
        uint64_t until_ms;
    } slots[SLOTS];
};

struct grant_cache *grant_cache_new(void) {
    struct grant_cache *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    return c;
}

struct grant_cache *grant_cache_free(struct grant_cache *c) {
    for (size_t i = 0; c && i < SLOTS; i++)
        grant_unref(c->slots[i].grant);
    free(c);
    return NULL;
}

/* The hash of a random token is as good a slot number as any. */
static struct grant_slot *slot_of(struct grant_cache *c, const struct grant_key *key) {
    return &c->slots[((unsigned)key->token[0] << 8 | key->token[1]) % SLOTS];
}

struct grant *grant_cache_get(struct grant_cache *c, const struct grant_key *key, uint64_t now_ms) {
    struct grant_slot *slot = slot_of(c, key);
    if (!slot->grant)
        return NULL;
    if (slot->until_ms <= now_ms) {
        slot->grant = grant_unref(slot->grant);
        return NULL;
    }
    if (!secret_equal(slot->key.token, key->token, SHA256_SIZE) || strcmp(slot->key.session_id, key->session_id) != 0)
        return NULL;
    return grant_ref(slot->grant);
}

void grant_cache_put(struct grant_cache *c, const struct grant_key *key, const struct grant *g, uint64_t now_ms) {
    struct grant_slot *slot = slot_of(c, key);
    struct grant *copy = malloc(sizeof(*copy));
    if (!copy)
        return;
    *copy = *g;
    copy->references = 1;
    copy->spec = NULL;
    grant_unref(slot->grant);
    *slot = (struct grant_slot){.key = *key, .grant = copy, .until_ms = now_ms + GRANT_CACHE_TTL_MS};
}
