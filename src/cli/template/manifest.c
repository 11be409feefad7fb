/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing, checking and canonical printing of template manifests. */
#include "cli/template/manifest.h"
#include <ctype.h>
#include <string.h>

static bool env_name_ok(const char *name) {
    if (!isalpha((unsigned char)*name) && *name != '_')
        return false;
    for (const char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '_')
            return false;
    return strlen(name) <= 128;
}

static int check_env(const json_t *env, struct sp_error *err) {
    const char *key;
    json_t *value;
    if (json_object_size(env) > TEMPLATE_ENV_MAX)
        return sp_error_field(err, SP_E_INVALID, "env", "has %zu variables, at most %d are allowed",
                              json_object_size(env), TEMPLATE_ENV_MAX);
    json_object_foreach ((json_t *)(uintptr_t)env, key, value) {
        if (!env_name_ok(key))
            return sp_error_field(err, SP_E_INVALID, "env", "a name must be letters, digits and _, at most 128 bytes");
        if (!json_is_string(value) || json_string_length(value) > TEMPLATE_ENV_VALUE_MAX ||
            strlen(json_string_value(value)) != json_string_length(value))
            return sp_error_field(err, SP_E_INVALID, "env", "%.64s must be a string of at most %d bytes without NUL",
                                  key, TEMPLATE_ENV_VALUE_MAX);
    }
    return 0;
}

static int check_command(const json_t *command, const char *field, struct sp_error *err) {
    size_t i;
    json_t *word;
    if (!json_is_array(command) || json_array_size(command) == 0 || json_array_size(command) > TEMPLATE_COMMAND_MAX)
        return sp_error_field(err, SP_E_INVALID, field, "must be a list of 1 to %d strings", TEMPLATE_COMMAND_MAX);
    json_array_foreach (command, i, word) {
        if (!json_is_string(word) || json_string_length(word) > TEMPLATE_WORD_MAX ||
            strlen(json_string_value(word)) != json_string_length(word))
            return sp_error_field(err, SP_E_INVALID, field,
                                  "each word must be a string of at most %d bytes without NUL", TEMPLATE_WORD_MAX);
    }
    return 0;
}

static int check_probe(const json_t *probe, json_t **ret, struct sp_error *err) {
    static const char *const keys[] = {"command", "timeout_s", NULL};
    uint64_t timeout_s;
    int r = json_check_keys(probe, "readiness_probe", keys, err);
    if (r < 0)
        return r;
    r = check_command(json_object_get(probe, "command"), "readiness_probe.command", err);
    if (r < 0)
        return r;
    r = json_get_opt_u64(probe, "readiness_probe", "timeout_s", 1, TEMPLATE_PROBE_TIMEOUT_MAX_S, 60, &timeout_s, err);
    if (r < 0)
        return r;
    *ret = json_pack("{s:O,s:I}", "command", json_object_get(probe, "command"), "timeout_s", (json_int_t)timeout_s);
    return *ret ? 0 : sp_error_set(err, SP_E_INTERNAL, "out of memory");
}

static int parse_commands(const json_t *in, json_t *out, struct sp_error *err) {
    json_t *command = json_object_get(in, "start_command"), *probe = NULL, *checked = NULL;
    if (command && !json_is_null(command)) {
        int r = check_command(command, "start_command", err);
        if (r < 0)
            return r;
        json_object_set(out, "start_command", command);
    }
    int r = json_get_opt_object(in, "", "readiness_probe", &probe, err);
    if (r < 0 || !probe)
        return r;
    r = check_probe(probe, &checked, err);
    if (r == 0)
        json_object_set_new(out, "readiness_probe", checked);
    return r;
}

json_t *template_manifest_default(void) {
    return json_pack("{s:{s:s,s:s},s:s,s:s,s:n,s:n}", "env", "PATH",
                     "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG", "C.UTF-8", "workdir", "/",
                     "user", "root", "start_command", "readiness_probe");
}

int template_manifest_parse(const char *data, size_t len, json_t **ret, struct sp_error *err) {
    static const char *const keys[] = {"env", "workdir", "user", "start_command", "readiness_probe", NULL};
    _cleanup_json_ json_t *in = NULL, *out = template_manifest_default();
    json_t *env = NULL;
    const char *workdir, *user;
    if (!out)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    int r = json_parse(data, len, TEMPLATE_MANIFEST_MAX, &in, err);
    if (r < 0)
        return r;
    if (!json_is_object(in))
        return sp_error_set(err, SP_E_INVALID, "a manifest must be a JSON object");
    if ((r = json_check_keys(in, "", keys, err)) < 0 ||
        (r = json_get_opt_string(in, "", "workdir", 1, 1024, "/", &workdir, err)) < 0 ||
        (r = json_get_opt_string(in, "", "user", 1, 64, "root", &user, err)) < 0 ||
        (r = json_get_opt_object(in, "", "env", &env, err)) < 0)
        return r;
    if (workdir[0] != '/')
        return sp_error_field(err, SP_E_INVALID, "workdir", "must be an absolute path");
    if (env && (r = check_env(env, err)) < 0)
        return r;
    json_object_set_new(out, "workdir", json_string(workdir));
    json_object_set_new(out, "user", json_string(user));
    if (env)
        json_object_set(out, "env", env);
    if ((r = parse_commands(in, out, err)) < 0)
        return r;
    *ret = TAKE_PTR(out);
    return 0;
}

int template_manifest_seal(json_t *manifest, uint64_t disk_bytes, const char *disk_hash, char **ret_text,
                           char ret_digest[SHA256_HEX_SIZE], struct sp_error *err) {
    json_t *disk = json_pack("{s:I,s:s}", "size_bytes", (json_int_t)disk_bytes, "sha256_pieces", disk_hash);
    if (!disk || json_object_set_new(manifest, "disk", disk) < 0 ||
        json_object_set_new(manifest, "format_version", json_integer(1)) < 0)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    char *text = json_dumps(manifest, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return sp_error_set(err, SP_E_INTERNAL, "the manifest cannot be printed");
    sha256_memory_hex(text, strlen(text), ret_digest);
    *ret_text = text;
    return 0;
}
