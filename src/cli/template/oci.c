/* SPDX-License-Identifier: Apache-2.0 */
/* OCI runtime configuration → template manifest. The image is untrusted: everything passes template_manifest_parse. */
#include "cli/template/oci.h"
#include "cli/template/manifest.h"
#include <string.h>

#define OCI_CONFIG_MAX 32768

static void copy_env(const json_t *process, json_t *env) {
    size_t i;
    json_t *item;
    json_array_foreach (json_object_get(process, "env"), i, item) {
        const char *text = json_string_value(item), *equals = text ? strchr(text, '=') : NULL;
        char name[129];
        if (!equals || equals == text || (size_t)(equals - text) >= sizeof name)
            continue;
        memcpy(name, text, (size_t)(equals - text));
        name[equals - text] = '\0';
        /* umoci adds TERM and HOME for a terminal that is not there. */
        if (strcmp(name, "TERM") != 0 && strcmp(name, "HOME") != 0)
            json_object_set_new(env, name, json_string(equals + 1));
    }
}

static json_t *user_of(const json_t *process) {
    const json_t *user = json_object_get(process, "user");
    json_int_t uid = json_integer_value(json_object_get(user, "uid"));
    return uid > 0 ? json_sprintf("%lld", (long long)uid) : json_string("root");
}

int oci_manifest(const char *config, json_t **ret, struct sp_error *err) {
    _cleanup_json_ json_t *in = NULL, *env = json_object(), *out = NULL;
    int r = json_parse(config, strlen(config), OCI_CONFIG_MAX, &in, err);
    if (r < 0)
        return sp_error_wrap(err, "image configuration");
    const json_t *process = json_object_get(in, "process");
    const char *cwd = json_string_value(json_object_get(process, "cwd"));
    copy_env(process, env);
    out = json_pack("{s:O,s:s,s:o}", "env", env, "workdir", cwd && *cwd ? cwd : "/", "user", user_of(process));
    if (!out)
        return sp_error_set(err, SP_E_INVALID, "the image's configuration holds text that is not UTF-8");
    char *text = json_print(out);
    r = template_manifest_parse(text, strlen(text), ret, err);
    free(text);
    return r < 0 ? sp_error_wrap(err, "image configuration") : 0;
}
