/* SPDX-License-Identifier: Apache-2.0 */
/* The table of daemons, their pid files and logs. */
#include "cli/up/service.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "cli/up/layout.h"
#include "host/process.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#define LOG_MAX (16 << 20)

static int add_arg(struct service *sv, const char *text, struct sp_error *err) {
    size_t i = 0;
    while (sv->argv[i])
        i++;
    if (i >= SERVICE_ARGS_MAX || !text_copy(sv->text[i], sizeof sv->text[i], text))
        return sp_error_set(err, SP_E_INTERNAL, "command line of %s is too long", sv->name);
    sv->argv[i] = sv->text[i];
    return 0;
}

static int add_path_arg(struct service *sv, const struct settings *s, const char *flag, const char *sub,
                        struct sp_error *err) {
    char path[512];
    int r = layout_path(s, sub, path, sizeof path, err);
    if (r < 0 || (r = add_arg(sv, flag, err)) < 0)
        return r;
    return add_arg(sv, path, err);
}

static int service_init(struct service *sv, const struct settings *s, const char *name, const char *program,
                        struct sp_error *err) {
    char sub[64];
    *sv = (struct service){.name = name, .stop_signal = SIGTERM, .stop_grace_ms = 5000};
    int r = text_copy(sv->program, sizeof sv->program, program) ? 0 : sp_error_set(err, SP_E_INVALID, "path too long");
    if (r == 0 && text_printf(sub, sizeof sub, "run/%s.pid", name))
        r = layout_path(s, sub, sv->pid_file, sizeof sv->pid_file, err);
    if (r == 0 && text_printf(sub, sizeof sub, "log/%s.log", name))
        r = layout_path(s, sub, sv->log_file, sizeof sv->log_file, err);
    return r < 0 ? r : add_arg(sv, program, err);
}

int services_libexec(char *dst, size_t size, struct sp_error *err) {
    char exe[512];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return sp_error_errno(err, errno, "readlink", "/proc/self/exe");
    exe[n] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(exe, '/');
        if (slash)
            *slash = '\0';
    }
    return text_printf(dst, size, "%s/libexec/space", exe) ? 0 : sp_error_set(err, SP_E_INTERNAL, "path too long");
}

static int add_postgres(struct service *sv, const struct settings *s, const struct database *db, struct sp_error *err) {
    char program[512], sockets[600];
    static const char *const options[] = {"listen_addresses=",   "max_connections=80",
                                          "shared_buffers=64MB", "unix_socket_permissions=0777",
                                          "log_statement=none",  "jit=off"};
    if (!text_printf(program, sizeof program, "%s/postgres", db->bin_dir) ||
        !text_printf(sockets, sizeof sockets, "unix_socket_directories=%s", db->socket_dir))
        return sp_error_set(err, SP_E_INVALID, "path too long");
    int r = service_init(sv, s, "postgres", program, err);
    if (r == 0 && (r = add_arg(sv, "-D", err)) == 0)
        r = add_arg(sv, db->data_dir, err);
    if (r == 0 && (r = add_arg(sv, "-c", err)) == 0)
        r = add_arg(sv, sockets, err);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(options); i++)
        if ((r = add_arg(sv, "-c", err)) == 0)
            r = add_arg(sv, options[i], err);
    sv->uid = db->uid;
    sv->gid = db->gid;
    sv->stop_signal = SIGINT;
    sv->stop_grace_ms = 20000;
    return r;
}

static const struct {
    const char *name;
    enum settings_uid uid; /* 0: root */
    const char *config, *internal_token;
} ours[] = {
    {"broker", 0, "etc/space.conf", NULL},
    {"control", SETTINGS_UID_CONTROL, "etc/control/space.conf", "etc/control/internal_token"},
    {"node", SETTINGS_UID_NODE, "etc/space.conf", "etc/node/internal_token"},
    {"gateway", SETTINGS_UID_GATEWAY, "etc/space.conf", "etc/gateway/internal_token"},
};

static int add_ours(struct service *sv, const struct settings *s, const char *libexec, size_t i, struct sp_error *err) {
    char program[600];
    if (!text_printf(program, sizeof program, "%s/space-%s", libexec, ours[i].name))
        return sp_error_set(err, SP_E_INVALID, "path too long");
    int r = service_init(sv, s, ours[i].name, program, err);
    if (r == 0)
        r = add_path_arg(sv, s, "--config", ours[i].config, err);
    if (r == 0 && ours[i].internal_token)
        r = add_path_arg(sv, s, "--internal-token-file", ours[i].internal_token, err);
    if (r == 0 && ours[i].uid == SETTINGS_UID_CONTROL)
        r = add_path_arg(sv, s, "--bootstrap-token-file", "etc/control/admin_token", err);
    sv->root = ours[i].uid == 0;
    sv->uid = sv->gid = sv->root ? 0 : (uid_t)(s->uid_base + (uint64_t)ours[i].uid);
    return r;
}

int services_build(const struct settings *s, const struct database *database, struct service ret[SERVICES_MAX],
                   size_t *ret_n, struct sp_error *err) {
    char libexec[512];
    size_t n = 0;
    int r = services_libexec(libexec, sizeof libexec, err);
    if (r == 0 && database)
        r = add_postgres(&ret[n++], s, database, err);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(ours); i++)
        r = add_ours(&ret[n++], s, libexec, i, err);
    if (r == 0)
        *ret_n = n;
    return r;
}

int service_find(const struct service *sv, struct child *ret, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    size_t len;
    uint64_t pid, recorded;
    struct sp_error missing = {0};
    if (file_read(AT_FDCWD, sv->pid_file, 64, &text, &len, &missing) < 0) {
        if (missing.code == SP_E_NOT_FOUND)
            return 0;
        return sp_error_set(err, missing.code, "%s", missing.text);
    }
    text[strcspn(text, "\n")] = '\0';
    char *space = strchr(text, ' ');
    if (!space)
        return 0;
    *space = '\0';
    if (!text_to_u64(text, 1, INT32_MAX, &pid) || !text_to_u64(space + 1, 0, UINT64_MAX, &recorded))
        return 0;
    struct process_ref ref = {.pid = (pid_t)pid, .start_time = recorded};
    int fd, r = process_open(&ref, &fd, &missing);
    if (r < 0)
        return missing.code == SP_E_NOT_FOUND ? 0 : sp_error_set(err, missing.code, "%s", missing.text);
    *ret = (struct child){.pid = (pid_t)pid, .pidfd = fd};
    return 1;
}

static int open_log(const struct service *sv, struct sp_error *err) {
    struct stat st;
    char old[520];
    if (stat(sv->log_file, &st) == 0 && st.st_size > LOG_MAX && text_printf(old, sizeof old, "%s.1", sv->log_file))
        (void)rename(sv->log_file, old);
    int fd = open(sv->log_file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    return fd >= 0 ? fd : sp_error_errno(err, errno, "open", "%s", sv->log_file);
}

int service_start(const struct service *sv, struct child *ret, struct sp_error *err) {
    static const char *const env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", NULL};
    struct child c = CHILD_NONE;
    char text[64];
    struct process_ref ref;
    _cleanup_close_ int log = open_log(sv, err);
    if (log < 0)
        return log;
    struct spawn_options opt = {.program = sv->program,
                                .argv = sv->argv,
                                .env = env,
                                .cwd = "/",
                                .stdout_fd = log,
                                .stderr_fd = log,
                                .new_session = true,
                                .set_ids = !sv->root,
                                .uid = sv->uid,
                                .gid = sv->gid};
    int r = spawn_start(&opt, &c, err);
    if (r < 0)
        return sp_error_wrap(err, "%s", sv->name);
    if ((r = process_ref_get(c.pid, &ref, err)) == 0 &&
        text_printf(text, sizeof text, "%d %llu\n", (int)c.pid, (unsigned long long)ref.start_time))
        r = file_replace(AT_FDCWD, sv->pid_file, text, strlen(text), 0644, err);
    if (r < 0) {
        child_done(&c); /* unrecorded, it would be started a second time */
        return r;
    }
    *ret = c;
    return 0;
}
