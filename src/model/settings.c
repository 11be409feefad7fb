/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product's configuration table and how a program loads it. One row a key; the order is that of --help and of
 * docs/reference/configuration.md. Checks that one row alone cannot express (absolute paths, host:port) are here too.
 */
#include "model/settings.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATE_DIR_MAX 48
#define CONFIG_FILE_MAX 65536u
#define HELP_MAX 65536u
#define ARGS_MAX 256
#define SYSTEM_CONFIG "/etc/space/space.conf"

#define FIELD(name)                                                                                                    \
    .key = #name, .offset = offsetof(struct settings, name), .size = sizeof(((struct settings *)0)->name)
#define STRING(name, default_, min_, max_, doc_)                                                                       \
    { FIELD(name), .type = CONFIG_STRING, .fallback = (default_), .min = (min_), .max = (max_), .doc = (doc_) }
#define NUMBER(name, default_, min_, max_, doc_)                                                                       \
    { FIELD(name), .type = CONFIG_U64, .fallback = (default_), .min = (min_), .max = (max_), .doc = (doc_) }
#define CHOICE(name, default_, choices_, doc_)                                                                         \
    { FIELD(name), .type = CONFIG_ENUM, .fallback = (default_), .choices = (choices_), .doc = (doc_) }

const struct config_row settings_rows[] = {
    STRING(state_dir, "/var/lib/space", 2, STATE_DIR_MAX,
           "Directory that holds everything the system keeps: an absolute path, short because sockets live below it."),
    STRING(node_id, "local", 1, 64, "Name of this node; letters, digits, '-' and '.'."),
    STRING(control_listen, "127.0.0.1:7070", 3, 64, "Address of the public management API, host:port."),
    STRING(internal_listen, "127.0.0.1:7071", 3, 64, "Address of the internal API for nodes and gateways, host:port."),
    STRING(gateway_listen, "127.0.0.1:7072", 3, 64, "Address of the data plane, host:port."),
    STRING(gateway_url, "", 0, SETTINGS_PATH_MAX,
           "URL under which clients reach the data plane; empty means http:// and gateway_listen."),
    STRING(internal_urls, "", 0, 512,
           "Internal APIs of all control replicas, separated by commas; empty means http:// and internal_listen."),
    STRING(internal_token_file, "", 0, SETTINGS_PATH_MAX,
           "File with the token of the internal API; empty means etc/internal_token in the state directory."),
    STRING(database_url, "", 0, 512,
           "PostgreSQL connection string; empty means a private cluster in the state directory."),
    CHOICE(accelerator, "auto", "auto|kvm|tcg", "How guests run: auto takes kvm when /dev/kvm works."),
    CHOICE(kernel, "auto", "auto|stock|lean", "Guest kernel profile: auto takes lean when it has been built."),
    STRING(kernel_dir, "", 0, SETTINGS_PATH_MAX,
           "Directory with the kernel profiles stock/ and lean/; empty means kernels in the state directory."),
    STRING(qemu, "/usr/bin/qemu-system-x86_64", 2, SETTINGS_PATH_MAX, "Path of the QEMU system emulator."),
    NUMBER(uid_base, "720000", 65536, 4294000000u,
           "First of 8192 consecutive user and group ids that nothing else on the host uses."),
    NUMBER(store_size_mib, "65536", 1024, 16777216,
           "Size in MiB of the btrfs image made when the state directory cannot share file extents; it is sparse."),
    NUMBER(disk_reserve_mib, "2048", 0, 16777216, "Free space in MiB below which no sandbox is admitted."),
    NUMBER(memory_reserve_mib, "1024", 0, 16777216, "Host memory in MiB that is never given to sandboxes."),
    NUMBER(max_sandboxes, "256", 1, SETTINGS_UID_VM_LAST - SETTINGS_UID_VM_FIRST + 1,
           "Most sandboxes this node holds at once."),
    NUMBER(create_timeout_s, "120", 1, 3600,
           "Seconds after which creating a sandbox has failed, the first boot of its template included."),
    NUMBER(session_retention_s, "3600", 0, 604800,
           "Seconds for which a process that has exited is kept together with its output."),
    NUMBER(output_window_kib, "256", 16, 16384,
           "Output in KiB that is kept for each stream of a process, for readers that come late or again."),
    NUMBER(blank_vmms, "2", 0, 64,
           "VMMs a node keeps started ahead of need for each sandbox size in use; they give way to sandboxes."),
    NUMBER(pool_demand_max, "4", 0, 64,
           "Most warm VMs a node keeps by itself for a template that was asked for in the last minutes."),
    NUMBER(garbage_grace_s, "3600", 0, 31536000,
           "Seconds for which a snapshot that the control plane does not know is left on a node."),
    CHOICE(log_level, "info", "debug|info|warn|error", "Least important level of log lines that are written."),
};
const size_t settings_rows_count = ARRAY_SIZE(settings_rows);

static int bad(struct sp_error *err, const char *key, const char *why) {
    return sp_error_field(err, SP_E_INVALID, key, "%s %s", key, why);
}

/* Absolute, and free of empty, "." and ".." components: such a path names one place in every log and mount table. */
static bool is_plain_path(const char *path) {
    if (path[0] != '/')
        return false;
    while (*path) {
        size_t len;
        path++; /* the slash */
        len = strcspn(path, "/");
        if (len == 0 || (len == 1 && path[0] == '.') || (len == 2 && path[0] == '.' && path[1] == '.'))
            return false;
        path += len;
    }
    return true;
}

/* host:port or [v6]:port with a port from 1 to 65535. */
static bool is_listen_address(const char *s) {
    const char *colon = strrchr(s, ':');
    uint64_t port;
    if (!colon || colon == s || !text_to_u64(colon + 1, 1, 65535, &port))
        return false;
    if (s[0] == '[')
        return colon[-1] == ']' && colon - s > 3;
    return memchr(s, ':', (size_t)(colon - s)) == NULL;
}

static bool is_node_name(const char *s) {
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")] == '\0' && s[0] != '.';
}

static int check(const struct settings *s, struct sp_error *err) {
    const struct {
        const char *key, *value;
    } paths[] = {{"state_dir", s->state_dir},
                 {"internal_token_file", s->internal_token_file},
                 {"kernel_dir", s->kernel_dir},
                 {"qemu", s->qemu}},
      addresses[] = {{"control_listen", s->control_listen},
                     {"internal_listen", s->internal_listen},
                     {"gateway_listen", s->gateway_listen}};

    for (size_t i = 0; i < ARRAY_SIZE(paths); i++)
        if (!is_plain_path(paths[i].value))
            return bad(err, paths[i].key, "must be an absolute path without '.', '..' or '//'");
    for (size_t i = 0; i < ARRAY_SIZE(addresses); i++)
        if (!is_listen_address(addresses[i].value))
            return bad(err, addresses[i].key, "must be host:port");
    if (!is_node_name(s->node_id))
        return bad(err, "node_id", "must hold letters, digits, '-' and '.' only");
    return 0;
}

/* Fills a field that was left empty; the bounds of the rows make it fit. */
static void derive(char *field, size_t size, const char *prefix, const char *suffix) {
    bool fits = *field != '\0' || text_printf(field, size, "%s%s", prefix, suffix);
    assert(fits);
    (void)fits;
}

static void derive_all(struct settings *s) {
    derive(s->gateway_url, sizeof(s->gateway_url), "http://", s->gateway_listen);
    derive(s->internal_urls, sizeof(s->internal_urls), "http://", s->internal_listen);
    derive(s->internal_token_file, sizeof(s->internal_token_file), s->state_dir, "/etc/internal_token");
    derive(s->kernel_dir, sizeof(s->kernel_dir), s->state_dir, "/kernels");
}

static int load_file(struct settings *s, const char *path, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r = file_read(AT_FDCWD, path, CONFIG_FILE_MAX, &text, &len, err);
    if (r < 0)
        return r;
    if (strlen(text) != len)
        return sp_error_set(err, SP_E_INVALID, "%s: not a text file", path);
    return config_load_text(s, settings_rows, settings_rows_count, text, path, err);
}

int settings_print_markdown(struct buf *out) {
    (void)buf_append_str(
        out,
        "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
        "<!-- Printed from src/model/settings.c by `space-describe configuration`; `./do lint` compares. -->\n"
        "# Configuration\n\n"
        "One set of keys for every program. The values are, each overriding the one before: the default, a file "
        "(`--config FILE`,\nelse `$SPACE_CONFIG`, else `" SYSTEM_CONFIG
        "` if there is one), the environment, flags.\n\n"
        "| where | how `state_dir` is written |\n|---|---|\n"
        "| file | `state_dir = /srv/space`; `#` starts a comment line, a key may appear once |\n"
        "| environment | `SPACE_STATE_DIR=/srv/space` |\n"
        "| flag | `--state-dir /srv/space` or `--state-dir=/srv/space` |\n\n"
        "A key that is not known is an error that names the nearest one. `space up` writes the values it resolved to\n"
        "`<state_dir>/etc/space.conf`, and every daemon it starts reads that file.\n\n");
    return config_print_markdown(settings_rows, settings_rows_count, out);
}

static void print_help(const char *usage) {
    _cleanup_buf_ struct buf out = {0};
    buf_init(&out, HELP_MAX);
    (void)buf_printf(&out,
                     "%s\n\nSettings, also read from --config FILE (or $SPACE_CONFIG, or " SYSTEM_CONFIG
                     ")\nas \"key = value\" lines and from the environment as SPACE_<KEY>; flags win:\n\n",
                     usage);
    (void)config_print_help(settings_rows, settings_rows_count, &out);
    (void)fd_write_all(STDOUT_FILENO, out.data, out.len, NULL);
}

/* The leading flags split in two: what this file handles itself, and the rest for the table. */
struct arguments {
    const char *config; /* --config, borrowed from argv */
    bool help;
    char *rest[ARGS_MAX]; /* rest[0] is the program's name */
    int n_rest;
    int n_taken;
};

static int split_arguments(struct arguments *a, int argc, char **argv, struct sp_error *err) {
    if (argc > ARGS_MAX)
        return sp_error_set(err, SP_E_INVALID, "more than %d arguments", ARGS_MAX);
    *a = (struct arguments){0};
    for (int i = 0; i < argc; i++) {
        bool is_flag = i > 0 && argv[i][0] == '-' && strcmp(argv[i], "--") != 0 && strcmp(argv[i], "-") != 0;
        if (i > 0 && !is_flag) { /* the first that is no flag ends it */
            for (; i < argc; i++)
                a->rest[a->n_rest++] = argv[i];
            return 0;
        }
        if (is_flag && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
            a->help = true;
            return 0;
        }
        if (is_flag && text_starts_with(argv[i], "--config=")) {
            a->config = argv[i] + strlen("--config=");
            a->n_taken++;
        } else if (is_flag && strcmp(argv[i], "--config") == 0) {
            if (i + 1 >= argc)
                return sp_error_field(err, SP_E_INVALID, "config", "--config needs a value");
            a->config = argv[++i];
            a->n_taken += 2;
        } else {
            a->rest[a->n_rest++] = argv[i];
            if (is_flag && !strchr(argv[i], '=') && i + 1 < argc) /* its value */
                a->rest[a->n_rest++] = argv[++i];
        }
    }
    return 0;
}

static int load_sources(struct settings *s, struct arguments *a, int *ret_next, struct sp_error *err) {
    const char *file = a->config ? a->config : getenv("SPACE_CONFIG");
    int r = 0;

    config_defaults(s, settings_rows, settings_rows_count);
    if (file && *file)
        r = load_file(s, file, err);
    else if (access(SYSTEM_CONFIG, F_OK) == 0)
        r = load_file(s, SYSTEM_CONFIG, err);
    if (r < 0)
        return r;
    r = config_load_environment(s, settings_rows, settings_rows_count, (const char *const *)environ, err);
    if (r < 0)
        return r;
    return config_load_flags(s, settings_rows, settings_rows_count, a->n_rest, a->rest, ret_next, err);
}

int settings_load(struct settings *s, int argc, char **argv, const char *usage, int *ret_next, struct sp_error *err) {
    struct settings loaded = {0};
    struct arguments arguments;
    int next, r;

    r = split_arguments(&arguments, argc, argv, err);
    if (r < 0)
        return r;
    if (arguments.help) {
        print_help(usage);
        exit(0);
    }
    r = load_sources(&loaded, &arguments, &next, err);
    if (r < 0)
        return r;
    derive_all(&loaded);
    r = check(&loaded, err);
    if (r < 0)
        return r;
    *s = loaded;
    *ret_next = next + arguments.n_taken;
    return 0;
}
