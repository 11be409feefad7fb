/* SPDX-License-Identifier: Apache-2.0 */
/* JSON for the broker and, inside it, for space-vm (vm/vm_config.h). */
#include "node/vm_request.h"
#include "base/text.h"
#include "node/broker_client.h"
#include "vm/vm_config.h"
#include <string.h>

/* Raised when the machine changes in a way that old snapshots do not load into. */
#define MACHINE_PROFILE "microvm-2"
#define PROBE_TIMEOUT_MAX_S 600

void template_spec_init(struct template_spec *spec, const struct desired *d, const struct facts *f,
                        const char *accelerator) {
    _cleanup_buf_ struct buf text = {0};
    char hex[SHA256_HEX_SIZE];
    *spec = (struct template_spec){.vcpus = d->vcpus, .memory_mib = d->memory_mib};
    (void)text_copy(spec->digest, sizeof(spec->digest), d->template_digest);
    spec->manifest = d->manifest ? json_incref((json_t *)(uintptr_t)d->manifest) : NULL;
    buf_init(&text, 1024);
    (void)buf_printf(&text, "%s|%s|%s|%u|%u|%s,acpi=%d,accel=%s|%s", spec->digest, f->kernel->sha256,
                     f->kernel->initrd_sha256, spec->vcpus, spec->memory_mib, MACHINE_PROFILE, f->kernel->acpi,
                     accelerator, f->engine);
    sha256_memory_hex(text.data, text.len, hex);
    hex[SNAPSHOT_KEY_SIZE - 1] = '\0';
    (void)text_copy(spec->key, sizeof(spec->key), hex);
}

void template_spec_done(struct template_spec *spec) {
    json_decref(spec->manifest);
    *spec = (struct template_spec){0};
}

/* The template's environment under the sandbox's own: ["K=V", …]. */
static int merge_env(const json_t *manifest, const json_t *own, json_t **ret, struct sp_error *err) {
    _cleanup_json_ json_t *merged = json_object(), *list = json_array();
    json_t *base = NULL, *value;
    const char *key;
    if (manifest && json_get_opt_object(manifest, "manifest", "env", &base, err) < 0)
        return -SP_E_INVALID;
    if ((base && json_object_update(merged, base) < 0) ||
        (own && json_object_update(merged, (json_t *)(uintptr_t)own) < 0))
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    if (json_object_size(merged) > VM_CONFIG_ENV_MAX)
        return sp_error_field(err, SP_E_TOO_LARGE, "env", "env has over %d variables with the template's",
                              VM_CONFIG_ENV_MAX);
    json_object_foreach (merged, key, value) {
        json_t *pair = json_is_string(value) ? json_sprintf("%s=%s", key, json_string_value(value)) : NULL;
        if (!pair || key[0] == '\0' || strchr(key, '=') || json_string_length(pair) > VM_CONFIG_STRING_MAX) {
            json_decref(pair);
            return sp_error_field(err, SP_E_INVALID, "env", "a variable of env is no short string");
        }
        (void)json_array_append_new(list, pair);
    }
    *ret = json_incref(list);
    return 0;
}

/* What both kinds of VM have in their config. */
static json_t *common_config(const struct vm_request_base *b, uint64_t generation, const char *hostname,
                             const char *machine_id, json_t *env, uint64_t deadline_ms) {
    json_int_t window = (json_int_t)b->settings->output_window_kib * 1024;
    json_int_t retention = (json_int_t)b->settings->session_retention_s * 1000;
    if (deadline_ms > VM_CONFIG_DEADLINE_MS_MAX)
        deadline_ms = VM_CONFIG_DEADLINE_MS_MAX;
    return json_pack("{s:b, s:I, s:I, s:{s:s, s:s, s:o}, s:I, s:I, s:I}", "acpi", b->facts->kernel->acpi, "tsc_khz",
                     (json_int_t)b->facts->tsc_khz, "generation", (json_int_t)generation, "identity", "hostname",
                     hostname, "machine_id", machine_id, "env", env, "output_window", window, "session_retention_ms",
                     retention, "deadline_ms", (json_int_t)deadline_ms);
}

/* Fields around a config (taken over); checks the one bound that would cost us the connection. */
static int config_fits(const json_t *config, struct sp_error *err) {
    _cleanup_free_ char *text = config ? json_print(config) : NULL;
    if (!text || strlen(text) > BROKER_CLIENT_CONFIG_MAX)
        return sp_error_field(err, SP_E_TOO_LARGE, "env", "environment and commands are over %d bytes together",
                              BROKER_CLIENT_CONFIG_MAX);
    return 0;
}

static int start_fields(const struct vm_request_base *b, const char *id, const char *mode,
                        const struct template_spec *t, const char *key, json_t *config, json_t **ret,
                        struct sp_error *err) {
    json_t *fields;
    int r = config_fits(config, err);
    if (r < 0) {
        json_decref(config);
        return r;
    }
    fields = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:o}", "id", id, "mode", mode, "kernel",
                       b->facts->kernel->profile, "accelerator", b->accelerator, "vcpus", (int)t->vcpus, "memory_mib",
                       (int)t->memory_mib, "config", config);
    if (fields && t->digest[0])
        (void)json_object_set_new(fields, "template", json_string(t->digest));
    if (fields && key)
        (void)json_object_set_new(fields, "snapshot", json_string(key));
    if (!fields)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    *ret = fields;
    return 0;
}

/* The config of d's VM. */
static int sandbox_config(const struct vm_request_base *b, const struct desired *d, uint64_t deadline_ms, json_t **ret,
                          struct sp_error *err) {
    json_t *env;
    int r = merge_env(d->manifest, d->env, &env, err);
    if (r < 0)
        return r;
    *ret = common_config(b, d->generation, d->hostname, d->machine_id, env, deadline_ms);
    return *ret ? 0 : sp_error_set(err, SP_E_INTERNAL, "out of memory");
}

int vm_request_clone(const struct vm_request_base *b, const struct desired *d, const char *key, uint64_t deadline_ms,
                     json_t **ret, struct sp_error *err) {
    struct template_spec size = {.vcpus = d->vcpus, .memory_mib = d->memory_mib};
    json_t *config;
    int r = sandbox_config(b, d, deadline_ms, &config, err);
    if (r < 0)
        return r;
    (void)text_copy(size.digest, sizeof(size.digest), d->template_digest);
    return start_fields(b, d->id, "clone", &size, key, config, ret, err);
}

/* An identity that is thrown away: whoever gets the VM gets its own before anything of it runs. */
static json_t *throwaway_config(const struct vm_request_base *b, const char *hostname, json_t *env,
                                uint64_t deadline_ms) {
    uint8_t bytes[16];
    char machine_id[33];
    random_bytes(bytes, sizeof(bytes));
    text_hex(machine_id, bytes, sizeof(bytes));
    return common_config(b, 0, hostname, machine_id, env, deadline_ms);
}

int vm_request_blank(const struct vm_request_base *b, const struct vm_shape *shape, const char *id,
                     uint64_t deadline_ms, json_t **ret, struct sp_error *err) {
    const struct template_spec size = {.vcpus = shape->vcpus, .memory_mib = shape->memory_mib};
    return start_fields(b, id, "blank", &size, NULL, throwaway_config(b, "blank", json_array(), deadline_ms), ret, err);
}

/* Takes config over. */
static int load_fields(const char *blank, const char *template, const char *key, json_t *config, json_t **ret,
                       struct sp_error *err) {
    int r = config_fits(config, err);
    if (r < 0) {
        json_decref(config);
        return r;
    }
    *ret = json_pack("{s:s, s:s, s:s, s:o}", "id", blank, "template", template, "snapshot", key, "config", config);
    return *ret ? 0 : sp_error_set(err, SP_E_INTERNAL, "out of memory");
}

int vm_request_load(const struct vm_request_base *b, const struct desired *d, const char *key, const char *blank,
                    uint64_t deadline_ms, json_t **ret, struct sp_error *err) {
    json_t *config;
    int r = sandbox_config(b, d, deadline_ms, &config, err);
    r = r < 0 ? r : load_fields(blank, d->template_digest, key, config, ret, err);
    if (r == 0)
        (void)json_object_set_new(*ret, "bind", json_string(d->id));
    return r;
}

int vm_request_warm(const struct vm_request_base *b, const struct template_spec *spec, const char *blank,
                    uint64_t deadline_ms, json_t **ret, struct sp_error *err) {
    json_t *env;
    int r = merge_env(spec->manifest, NULL, &env, err);
    return r < 0 ? r
                 : load_fields(blank, spec->digest, spec->key, throwaway_config(b, "warm", env, deadline_ms), ret, err);
}

int vm_request_identify(const struct vm_request_base *b, const struct desired *d, json_t **ret, struct sp_error *err) {
    json_t *env;
    int r = merge_env(d->manifest, d->env, &env, err);
    if (r < 0)
        return r;
    *ret = json_pack("{s:s, s:I, s:{s:s, s:s, s:o}, s:I}", "id", d->id, "generation", (json_int_t)d->generation,
                     "identity", "hostname", d->hostname, "machine_id", d->machine_id, "env", env,
                     "session_retention_ms", (json_int_t)b->settings->session_retention_s * 1000);
    r = *ret ? config_fits(*ret, err) : sp_error_set(err, SP_E_INTERNAL, "out of memory");
    if (r < 0)
        json_decref(*ret);
    return r;
}

/* argv as it is, checked: 1..VM_CONFIG_ARGS_MAX strings. */
static json_t *copy_argv(const json_t *list, struct sp_error *err) {
    const json_t *item;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > VM_CONFIG_ARGS_MAX) {
        sp_error_field(err, SP_E_INVALID, "manifest", "a command of the manifest has no words, or too many");
        return NULL;
    }
    json_array_foreach (list, i, item) {
        if (!json_is_string(item) || json_string_length(item) > VM_CONFIG_STRING_MAX) {
            sp_error_field(err, SP_E_INVALID, "manifest",
                           "a command of the manifest holds something else than short words");
            return NULL;
        }
    }
    return json_deep_copy(list);
}

/* {argv, user, env, cwd} of the template's user, or *ret = NULL when the manifest names no such command. */
static int manifest_command(const json_t *manifest, const json_t *argv, json_t *env, json_t **ret,
                            struct sp_error *err) {
    const char *user, *cwd;
    json_t *words;
    if (json_get_opt_string(manifest, "manifest", "user", 1, 64, "root", &user, err) < 0 ||
        json_get_opt_string(manifest, "manifest", "workdir", 1, 1024, "/", &cwd, err) < 0)
        return -SP_E_INVALID;
    words = copy_argv(argv, err);
    if (!words)
        return -SP_E_INVALID;
    *ret = json_pack("{s:o, s:s, s:s, s:O}", "argv", words, "user", user, "cwd", cwd, "env", env);
    return *ret ? 0 : sp_error_set(err, SP_E_INTERNAL, "out of memory");
}

static int add_start(json_t *config, const json_t *manifest, json_t *env, struct sp_error *err) {
    const json_t *start = json_object_get(manifest, "start_command");
    json_t *command;
    int r = 0;
    if (start && !json_is_null(start) && (r = manifest_command(manifest, start, env, &command, err)) == 0)
        (void)json_object_set_new(config, "start", command);
    return r;
}

static int add_commands(json_t *config, const json_t *manifest, json_t *env, struct sp_error *err) {
    const json_t *probe = json_object_get(manifest, "readiness_probe");
    uint64_t timeout_s;
    json_t *command;
    int r = add_start(config, manifest, env, err);
    if (r < 0)
        return r;
    if (probe && !json_is_null(probe)) {
        if ((r = manifest_command(manifest, json_object_get(probe, "command"), env, &command, err)) < 0)
            return r;
        (void)json_object_set_new(config, "probe", command);
        if (json_get_opt_u64(probe, "readiness_probe", "timeout_s", 1, PROBE_TIMEOUT_MAX_S, 60, &timeout_s, err) < 0)
            return -SP_E_INVALID;
        (void)json_object_set_new(command, "timeout_ms", json_integer((json_int_t)timeout_s * 1000));
    }
    return 0;
}

int vm_request_boot(const struct vm_request_base *b, const struct template_spec *spec, const char *id,
                    uint64_t deadline_ms, json_t **ret, struct sp_error *err) {
    _cleanup_json_ json_t *env = NULL;
    json_t *config;
    int r = merge_env(spec->manifest, NULL, &env, err);
    if (r < 0)
        return r;
    config = throwaway_config(b, "template", json_incref(env), deadline_ms);
    if (!config)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    if (spec->manifest && (r = add_commands(config, spec->manifest, env, err)) < 0) {
        json_decref(config);
        return r;
    }
    return start_fields(b, id, "template_boot", spec, NULL, config, ret, err);
}

/* Its probe asks for what the template came with; what the sandbox has become is its owner's to know. */
int vm_request_boot_disk(const struct vm_request_base *b, const struct desired *d, const char *key,
                         uint64_t deadline_ms, json_t **ret, struct sp_error *err) {
    struct template_spec size = {.vcpus = d->vcpus, .memory_mib = d->memory_mib};
    json_t *config;
    int r = sandbox_config(b, d, deadline_ms, &config, err);
    if (r < 0)
        return r;
    r = add_start(config, d->manifest, json_object_get(json_object_get(config, "identity"), "env"), err);
    if (r < 0) {
        json_decref(config);
        return r;
    }
    (void)text_copy(size.digest, sizeof(size.digest), d->template_digest);
    return start_fields(b, d->id, "boot", &size, key, config, ret, err);
}

uint64_t vm_request_boot_ms(const struct settings *s, const struct template_spec *spec) {
    const json_t *probe = json_object_get(spec->manifest, "readiness_probe");
    uint64_t probe_s = 0;
    if (probe)
        (void)json_get_opt_u64(probe, "", "timeout_s", 1, PROBE_TIMEOUT_MAX_S, 60, &probe_s, NULL);
    return (s->create_timeout_s + probe_s) * 1000;
}

json_t *vm_request_snapshot_manifest(const struct vm_request_base *b, const struct template_spec *spec) {
    const struct facts *f = b->facts;
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:i, s:i}", "format_version", 1, "template",
                     spec->digest, "vmm", "qemu", "machine", MACHINE_PROFILE, "accelerator", b->accelerator,
                     "kernel_sha256", f->kernel->sha256, "initrd_sha256", f->kernel->initrd_sha256, "tsc_khz",
                     (json_int_t)f->tsc_khz, "vcpus", (int)spec->vcpus, "memory_mib", (int)spec->memory_mib);
}

json_t *vm_request_sandbox_manifest(const struct vm_request_base *b, const struct template_spec *spec,
                                    const struct desired *d) {
    json_t *manifest = vm_request_snapshot_manifest(b, spec);
    if (manifest) {
        (void)json_object_set_new(manifest, "sandbox", json_string(d->id));
        (void)json_object_set_new(manifest, "generation", json_integer((json_int_t)d->generation));
        (void)json_object_set_new(manifest, "kind", json_string(d->snapshot_kind));
        if (d->snapshot_is_disk)
            (void)json_object_set_new(manifest, "content", json_string("disk"));
    }
    return manifest;
}
