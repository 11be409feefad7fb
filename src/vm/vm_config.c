/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses what space-vm is told at birth (vm_config.h). The broker's half is trusted but checked for typing; the node's
 * half arrives through the broker as it is and is checked here field by field.
 */
#include "vm/vm_config.h"
#include "base/json.h"
#include "base/text.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static const char *const mode_names[] = {[VM_MODE_CLONE] = "clone",
                                         [VM_MODE_TEMPLATE_BOOT] = "template_boot",
                                         [VM_MODE_BLANK] = "blank",
                                         [VM_MODE_BOOT] = "boot"};

const char *vm_mode_name(enum vm_mode mode) {
    return mode_names[mode];
}

/* --- lists of strings ------------------------------------------------------------------------------------------------ */

static char **strings_free(char **strings) {
    for (char **s = strings; s && *s; s++)
        free(*s);
    free(strings);
    return NULL;
}

/* Missing gives an empty list. Every entry is 1..VM_CONFIG_STRING_MAX bytes without NUL; `pairs` asks for K=V. */
static int get_strings(const json_t *obj, const char *path, const char *key, size_t max_items, bool pairs, char ***ret,
                       struct sp_error *err) {
    json_t *array = NULL;
    char **strings;
    size_t n;
    int r = json_get_opt_array(obj, path, key, max_items, &array, err);
    if (r < 0)
        return r;
    n = array ? json_array_size(array) : 0;
    strings = calloc(n + 1, sizeof(*strings));
    if (!strings)
        return sp_error_errno(err, ENOMEM, "vm_config", "%s", key);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        const char *s = json_string_value(item);
        if (!s || json_string_length(item) > VM_CONFIG_STRING_MAX || strlen(s) != json_string_length(item) ||
            (pairs && (s[0] == '=' || !strchr(s, '=')))) {
            (void)strings_free(strings);
            return sp_error_field(err, SP_E_INVALID, key, "%s[%zu] must be %s of at most %d bytes", key, i,
                                  pairs ? "KEY=VALUE" : "a string", VM_CONFIG_STRING_MAX);
        }
        strings[i] = strdup(s);
        if (!strings[i]) {
            (void)strings_free(strings);
            return sp_error_errno(err, ENOMEM, "vm_config", "%s", key);
        }
    }
    *ret = strings;
    return 0;
}

static int get_copy(const json_t *obj, const char *path, const char *key, size_t min, size_t size, const char *fallback,
                    char *dst, struct sp_error *err) {
    const char *s = NULL;
    int r = fallback ? json_get_opt_string(obj, path, key, min, size - 1, fallback, &s, err)
                     : json_get_string(obj, path, key, min, size - 1, &s, err);
    if (r < 0)
        return r;
    (void)text_copy(dst, size, s);
    return 0;
}

static int get_duplicate(const json_t *obj, const char *path, const char *key, const char *fallback, char **ret,
                         struct sp_error *err) {
    const char *s = NULL;
    int r = json_get_opt_string(obj, path, key, 1, VM_CONFIG_STRING_MAX, fallback, &s, err);
    if (r < 0)
        return r;
    *ret = strdup(s);
    return *ret ? 0 : sp_error_errno(err, ENOMEM, "vm_config", "%s", key);
}

/* --- the broker's half ------------------------------------------------------------------------------------------------ */

static int parse_mode(const json_t *obj, enum vm_mode *ret, struct sp_error *err) {
    const char *name = NULL;
    int r = json_get_string(obj, "broker", "mode", 1, 32, &name, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(mode_names); i++)
        if (strcmp(mode_names[i], name) == 0) {
            *ret = (enum vm_mode)i;
            return 0;
        }
    return sp_error_field(err, SP_E_INVALID, "broker.mode", "must be clone, template_boot, blank or boot");
}

/* A blank has no files yet, and what boots no device state; every other VM has all of them. */
static bool has_file(enum vm_mode mode, const char *key) {
    return mode != VM_MODE_BLANK && !(mode == VM_MODE_BOOT && strcmp(key, "devices") == 0);
}

static int parse_fds(const json_t *broker, struct vm_config *c, struct sp_error *err) {
    static const char *const keys[] = {"control", "guest", "stub", "tap", "memory", "disk", "devices", NULL};
    int *const targets[] = {&c->fd_control, &c->fd_guest, &c->fd_stub,   &c->fd_tap,
                            &c->fd_memory,  &c->fd_disk,  &c->fd_devices};
    const size_t files = 4; /* from here on */
    json_t *fds = NULL;
    int r = json_get_opt_object(broker, "broker", "fds", &fds, err);
    if (r < 0)
        return r;
    if (!fds)
        return sp_error_field(err, SP_E_INVALID, "broker.fds", "is missing");
    r = json_check_keys(fds, "broker.fds", keys, err);
    for (size_t i = 0; r >= 0 && keys[i]; i++) {
        uint64_t fd = 0;
        if (i >= files && !has_file(c->mode, keys[i])) {
            if (json_object_get(fds, keys[i]))
                r = sp_error_field(err, SP_E_INVALID, "broker.fds", "a %s has no %s", vm_mode_name(c->mode), keys[i]);
            continue;
        }
        r = json_get_u64(fds, "broker.fds", keys[i], 3, 65535, &fd, err);
        *targets[i] = r < 0 ? -1 : (int)fd;
    }
    return r;
}

static int parse_broker(const json_t *broker, struct vm_config *c, struct sp_error *err) {
    static const char *const keys[] = {"id",   "mode",         "kernel", "accelerator", "vcpus", "memory_mib",
                                       "qemu", "qemu_version", "vm_dir", "fds",         NULL};
    uint64_t vcpus = 0, memory = 0;
    int r;
    if ((r = json_check_keys(broker, "broker", keys, err)) < 0 ||
        (r = get_copy(broker, "broker", "id", 1, sizeof(c->id), NULL, c->id, err)) < 0 ||
        (r = parse_mode(broker, &c->mode, err)) < 0 ||
        (r = get_copy(broker, "broker", "kernel", 1, sizeof(c->kernel), NULL, c->kernel, err)) < 0 ||
        (r = get_copy(broker, "broker", "accelerator", 1, sizeof(c->accelerator), NULL, c->accelerator, err)) < 0 ||
        (r = json_get_u64(broker, "broker", "vcpus", 1, VM_CONFIG_VCPUS_MAX, &vcpus, err)) < 0 ||
        (r = json_get_u64(broker, "broker", "memory_mib", VM_CONFIG_MEMORY_MIB_MIN, VM_CONFIG_MEMORY_MIB_MAX, &memory,
                          err)) < 0 ||
        (r = get_copy(broker, "broker", "qemu", 2, sizeof(c->qemu), NULL, c->qemu, err)) < 0 ||
        (r = get_copy(broker, "broker", "qemu_version", 1, sizeof(c->qemu_version), NULL, c->qemu_version, err)) < 0 ||
        (r = get_copy(broker, "broker", "vm_dir", 2, sizeof(c->vm_dir), NULL, c->vm_dir, err)) < 0)
        return r;
    if (!id_is_valid(c->id, "sbx") && !id_is_valid(c->id, "tpb") && !id_is_valid(c->id, "spr"))
        return sp_error_field(err, SP_E_INVALID, "broker.id", "is no id of a VM");
    c->vcpus = (unsigned)vcpus;
    c->memory_mib = (unsigned)memory;
    return parse_fds(broker, c, err);
}

/* --- the node's half -------------------------------------------------------------------------------------------------- */

static int parse_command(const json_t *obj, const char *key, struct vm_command *c, struct sp_error *err) {
    static const char *const keys[] = {"argv", "env", "user", "cwd", "timeout_ms", NULL};
    json_t *command = NULL;
    int r = json_get_opt_object(obj, "config", key, &command, err);
    if (r < 0 || !command)
        return r;
    if ((r = json_check_keys(command, key, keys, err)) < 0 ||
        (r = get_strings(command, key, "argv", VM_CONFIG_ARGS_MAX, false, &c->argv, err)) < 0 ||
        (r = get_strings(command, key, "env", VM_CONFIG_ENV_MAX, true, &c->env, err)) < 0 ||
        (r = get_duplicate(command, key, "user", "root", &c->user, err)) < 0 ||
        (r = get_duplicate(command, key, "cwd", "/", &c->cwd, err)) < 0 ||
        (r = json_get_opt_u64(command, key, "timeout_ms", 1, VM_CONFIG_DEADLINE_MS_MAX, 10000, &c->timeout_ms, err)) <
            0)
        return r;
    if (!c->argv[0])
        return sp_error_field(err, SP_E_INVALID, key, "argv must name a program");
    return 0;
}

static bool is_machine_id(const char *s) {
    uint8_t bytes[16];
    return strlen(s) == 32 && text_unhex(bytes, sizeof(bytes), s);
}

static int parse_identity(const json_t *identity, struct vm_config *c, struct sp_error *err) {
    static const char *const keys[] = {"hostname", "machine_id", "env", NULL};
    int r;
    if (!identity)
        return sp_error_field(err, SP_E_INVALID, "config.identity", "is missing");
    if ((r = json_check_keys(identity, "identity", keys, err)) < 0 ||
        (r = get_copy(identity, "identity", "hostname", 1, sizeof(c->hostname), NULL, c->hostname, err)) < 0 ||
        (r = get_copy(identity, "identity", "machine_id", 32, sizeof(c->machine_id), NULL, c->machine_id, err)) < 0 ||
        (r = get_strings(identity, "identity", "env", VM_CONFIG_ENV_MAX, true, &c->env, err)) < 0)
        return r;
    if (!is_machine_id(c->machine_id))
        return sp_error_field(err, SP_E_INVALID, "identity.machine_id", "must be 32 hexadecimal digits");
    return 0;
}

/* Whose guest this is. A blank is nobody's yet. */
static int parse_guest(const json_t *config, struct vm_config *c, struct sp_error *err) {
    json_t *identity = NULL;
    int r = json_get_opt_object(config, "config", "identity", &identity, err);
    if (r < 0)
        return r;
    if (c->mode == VM_MODE_BLANK && !identity && !json_object_get(config, "generation")) {
        c->env = calloc(1, sizeof(*c->env));
        return c->env ? 0 : sp_error_errno(err, ENOMEM, "vm_config", "env");
    }
    r = json_get_u64(config, "config", "generation", 0, INT64_MAX, &c->generation, err);
    return r < 0 ? r : parse_identity(identity, c, err);
}

static int parse_node(const json_t *config, struct vm_config *c, struct sp_error *err) {
    static const char *const keys[] = {
        "acpi",  "tsc_khz", "cpu_model",   "generation", "identity", "output_window", "session_retention_ms",
        "probe", "start",   "deadline_ms", NULL};
    int r;
    if ((r = json_check_keys(config, "config", keys, err)) < 0 ||
        (r = json_get_opt_bool(config, "config", "acpi", false, &c->acpi, err)) < 0 ||
        (r = json_get_opt_u64(config, "config", "tsc_khz", 0, 100000000, 0, &c->tsc_khz, err)) < 0 ||
        (r = get_copy(config, "config", "cpu_model", 0, sizeof(c->cpu_model), "", c->cpu_model, err)) < 0 ||
        (r = parse_guest(config, c, err)) < 0 ||
        (r = json_get_opt_u64(config, "config", "output_window", 4096, 16 * 1024 * 1024, 256 * 1024, &c->output_window,
                              err)) < 0 ||
        (r = json_get_opt_u64(config, "config", "session_retention_ms", 0, INT64_MAX, 0, &c->session_retention_ms,
                              err)) < 0 ||
        (r = parse_command(config, "probe", &c->probe, err)) < 0 ||
        (r = parse_command(config, "start", &c->start, err)) < 0 ||
        (r = json_get_u64(config, "config", "deadline_ms", 1, VM_CONFIG_DEADLINE_MS_MAX, &c->deadline_ms, err)) < 0)
        return r;
    return 0;
}

int vm_config_parse(const char *json, size_t len, struct vm_config *ret, struct sp_error *err) {
    static const char *const keys[] = {"broker", "config", NULL};
    _cleanup_json_ json_t *root = NULL;
    json_t *broker = NULL, *config = NULL;
    struct vm_config c = {.fd_control = -1,
                          .fd_guest = -1,
                          .fd_stub = -1,
                          .fd_tap = -1,
                          .fd_memory = -1,
                          .fd_disk = -1,
                          .fd_devices = -1};
    int r;

    *ret = (struct vm_config){0};
    if ((r = json_parse(json, len, VM_CONFIG_MAX, &root, err)) < 0)
        return r;
    if (!json_is_object(root))
        return sp_error_set(err, SP_E_INVALID, "the configuration is no object");
    if ((r = json_check_keys(root, "", keys, err)) < 0 ||
        (r = json_get_opt_object(root, "", "broker", &broker, err)) < 0 ||
        (r = json_get_opt_object(root, "", "config", &config, err)) < 0)
        return r;
    if (!broker || !config)
        return sp_error_field(err, SP_E_INVALID, broker ? "config" : "broker", "is missing");
    if ((r = parse_broker(broker, &c, err)) < 0 || (r = parse_node(config, &c, err)) < 0) {
        vm_config_done(&c);
        return r;
    }
    *ret = c;
    return 0;
}

/* What was parsed belongs to c from here; what c had is freed. */
static void take_guest(struct vm_config *c, struct vm_config *from) {
    char **old = c->env;
    (void)text_copy(c->hostname, sizeof(c->hostname), from->hostname);
    (void)text_copy(c->machine_id, sizeof(c->machine_id), from->machine_id);
    c->env = from->env;
    from->env = NULL;
    (void)strings_free(old);
}

int vm_config_load(struct vm_config *c, const json_t *config, struct sp_error *err) {
    struct vm_config parsed = {.mode = VM_MODE_CLONE};
    int r = parse_node(config, &parsed, err);
    if (r >= 0 && (parsed.acpi != c->acpi || strcmp(parsed.cpu_model, c->cpu_model) != 0))
        r = sp_error_field(err, SP_E_INVALID, "config", "is for another machine than this blank");
    if (r >= 0) {
        take_guest(c, &parsed);
        c->generation = parsed.generation;
        c->output_window = parsed.output_window;
        c->session_retention_ms = parsed.session_retention_ms;
        c->deadline_ms = parsed.deadline_ms;
    }
    vm_config_done(&parsed);
    return r;
}

int vm_config_identity(struct vm_config *c, const json_t *identity, struct sp_error *err) {
    struct vm_config parsed = {0};
    int r = parse_identity(identity, &parsed, err);
    if (r >= 0)
        take_guest(c, &parsed);
    vm_config_done(&parsed);
    return r;
}

int vm_config_read(int fd, struct vm_config *ret, struct sp_error *err) {
    static char text[VM_CONFIG_MAX + 1];
    size_t len = 0;
    while (len < sizeof(text)) {
        ssize_t n = pread(fd, text + len, sizeof(text) - len, (off_t)len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return sp_error_errno(err, errno, "read", "configuration");
        if (n == 0)
            return vm_config_parse(text, len, ret, err);
        len += (size_t)n;
    }
    return sp_error_set(err, SP_E_TOO_LARGE, "the configuration is over %d bytes", VM_CONFIG_MAX);
}

static void command_done(struct vm_command *c) {
    c->argv = strings_free(c->argv);
    c->env = strings_free(c->env);
    free(c->user);
    free(c->cwd);
    *c = (struct vm_command){0};
}

void vm_config_done(struct vm_config *config) {
    config->env = strings_free(config->env);
    command_done(&config->probe);
    command_done(&config->start);
    *config = (struct vm_config){0};
}
