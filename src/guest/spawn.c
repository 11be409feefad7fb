/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/spawn.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "guest/spawn_child.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define N_DEFAULTS 6u
#define MAX_PATH 4096u

/* Of the kernel's linux/sched.h, which musl does not bring. */
struct clone3_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#define CLONE3_VM 0x00000100ull
#define CLONE3_CLEAR_SIGHAND 0x100000000ull
#define CLONE3_INTO_CGROUP 0x200000000ull

/* One block: the plan, the pointer arrays, then the strings. Measured first, filled second, by the same code. */
struct layout {
    char *at;    /* NULL: measuring */
    size_t used; /* bytes of strings */
};

static char *put(struct layout *l, const char *a, size_t a_len, const char *b) {
    size_t len = a_len + strlen(b) + 1;
    char *dst = l->at ? l->at + l->used : NULL;

    if (dst) {
        memcpy(dst, a, a_len);
        memcpy(dst + a_len, b, len - a_len);
    }
    l->used += len;
    return dst;
}

static size_t count(char *const *list) {
    size_t n = 0;
    while (list && list[n])
        n++;
    return n;
}

static size_t key_length(const char *kv) {
    return strcspn(kv, "=");
}

/* The entry of a list with the same key, or NULL; the last one wins. */
static const char *find_key(char *const *list, size_t n, const char *kv, size_t key) {
    while (n > 0) {
        const char *have = list[--n];
        if (strncmp(have, kv, key) == 0 && have[key] == '=')
            return have;
    }
    return NULL;
}

static size_t add_env(char **dst, size_t n, char *const *list, size_t len, char *const *over, size_t over_len,
                      struct layout *l) {
    for (size_t i = 0; i < len; i++) {
        size_t key = key_length(list[i]);
        if (list[i][key] != '=' || key == 0)
            continue;
        if (find_key(over, over_len, list[i], key) || find_key(list + i + 1, len - i - 1, list[i], key))
            continue;
        dst[n++] = put(l, "", 0, list[i]);
    }
    return n;
}

/* Defaults that neither list names, then env, then env_more. */
static void build_env(struct spawn_plan *p, const struct spawn_request *req, struct layout *l) {
    const struct guest_user *u = req->user;
    const char *const defaults[N_DEFAULTS][2] = {{"HOME=", u->home},      {"USER=", u->name},
                                                 {"LOGNAME=", u->name},   {"SHELL=", u->shell},
                                                 {"PATH=", DEFAULT_PATH}, {"TERM=", "xterm-256color"}};
    size_t n_env = count(req->env), n_more = count(req->env_more), n = 0;

    for (size_t i = 0; i < N_DEFAULTS; i++) {
        size_t key = strlen(defaults[i][0]) - 1;
        if (i == N_DEFAULTS - 1 && !req->tty)
            continue;
        if (find_key(req->env, n_env, defaults[i][0], key) || find_key(req->env_more, n_more, defaults[i][0], key))
            continue;
        p->env[n++] = put(l, defaults[i][0], key + 1, defaults[i][1]);
    }
    n = add_env(p->env, n, req->env, n_env, req->env_more, n_more, l);
    n = add_env(p->env, n, req->env_more, n_more, NULL, 0, l);
    p->env[n] = NULL;
}

static const char *search_path(const struct spawn_request *req) {
    const char *have = find_key(req->env_more, count(req->env_more), "PATH", 4);
    if (!have)
        have = find_key(req->env, count(req->env), "PATH", 4);
    return have ? have + 5 : DEFAULT_PATH;
}

/* Where execvp would look: the name itself when it has a slash, else every directory of PATH ("" is "."). */
static void build_candidates(struct spawn_plan *p, const struct spawn_request *req, struct layout *l) {
    const char *name = req->argv[0], *path = search_path(req);

    p->n_candidates = 0;
    if (name[0] == '\0')
        return;
    if (strchr(name, '/')) {
        p->candidates[p->n_candidates++] = put(l, "", 0, name);
        return;
    }
    for (const char *dir = path; p->n_candidates < SPAWN_MAX_CANDIDATES;) {
        size_t len = strcspn(dir, ":");
        char head[MAX_PATH];
        if (len + 2 < sizeof(head)) {
            memcpy(head, len ? dir : ".", len ? len : 1);
            head[len ? len : 1] = '/';
            p->candidates[p->n_candidates++] = put(l, head, (len ? len : 1) + 1, name);
        }
        if (dir[len] == '\0')
            break;
        dir += len + 1;
    }
}

static void build(struct spawn_plan *p, const struct spawn_request *req, struct layout *l) {
    size_t argc = count(req->argv);

    for (size_t i = 0; i < argc; i++)
        p->argv[i] = put(l, "", 0, req->argv[i]);
    p->argv[argc] = NULL;
    p->shell_argv[0] = put(l, "", 0, "/bin/sh");
    p->shell_argv[1] = p->argv[0];
    for (size_t i = 1; i <= argc; i++)
        p->shell_argv[i + 1] = p->argv[i];
    p->cwd = put(l, "", 0, req->cwd && req->cwd[0] ? req->cwd : req->user->home);
    build_env(p, req, l);
    build_candidates(p, req, l);
}

static void fill_fixed(struct spawn_plan *p, const struct spawn_request *req) {
    p->fds[0] = req->stdin_fd;
    p->fds[1] = req->stdout_fd;
    p->fds[2] = req->stderr_fd;
    p->tty = req->tty;
    p->cgroup_fd = req->cgroup_fd;
    p->status_fd = p->status_end = -1;
    p->uid = req->user->uid;
    p->gid = req->user->gid;
    p->n_groups = req->user->n_groups;
    memcpy(p->groups, req->user->groups, sizeof(p->groups));
}

int spawn_prepare(const struct spawn_request *req, struct spawn_plan **ret) {
    size_t argc = count(req->argv), n_env = count(req->env), n_more = count(req->env_more);
    size_t pointers = (argc + 1) + (argc + 2) + (n_env + n_more + N_DEFAULTS + 1);
    struct layout l = {0};
    _cleanup_free_ char **scratch = NULL;
    struct spawn_plan *p, measure = {0};

    if (argc == 0 || argc > SPAWN_MAX_ARGS || n_env > SPAWN_MAX_ENV || n_more > SPAWN_MAX_ENV)
        return -E2BIG;
    scratch = malloc(pointers * sizeof(char *));
    if (!scratch)
        return -ENOMEM;
    measure.argv = scratch;
    measure.shell_argv = scratch + argc + 1;
    measure.env = measure.shell_argv + argc + 2;
    build(&measure, req, &l);

    p = aligned_alloc(16, (sizeof(*p) + pointers * sizeof(char *) + l.used + 15) / 16 * 16);
    if (!p)
        return -ENOMEM;
    p->argv = (char **)(void *)(p + 1);
    p->shell_argv = p->argv + argc + 1;
    p->env = p->shell_argv + argc + 2;
    l = (struct layout){.at = (char *)(p->argv + pointers)};
    fill_fixed(p, req);
    build(p, req, &l);
    *ret = p;
    return 0;
}

void spawn_free(struct spawn_plan *plan) {
    free(plan);
}

#if defined(__x86_64__)
/* The child never returns here: it starts on its own stack, in spawn_child. */
static long clone_child(struct clone3_args *args, struct spawn_plan *plan) {
    register void (*fn)(void *) __asm__("r8") = spawn_child;
    register void *arg __asm__("r9") = plan;
    long ret;

    args->flags |= CLONE3_VM;
    args->stack = (uint64_t)(uintptr_t)plan->stack;
    args->stack_size = SPAWN_STACK;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %%r9, %%rdi\n\t"
                     "call *%%r8\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(ret)
                     : "a"((long)SYS_clone3), "D"(args), "S"(sizeof(*args)), "r"(fn), "r"(arg)
                     : "rcx", "r11", "memory");
    return ret;
}
#else
static long clone_child(struct clone3_args *args, struct spawn_plan *plan) {
    long ret = syscall(SYS_clone3, args, sizeof(*args));
    if (ret == 0)
        spawn_child(plan);
    return ret < 0 ? -errno : ret;
}
#endif

int spawn_start(struct spawn_plan *plan, pid_t *ret_pid, int *ret_status_fd) {
    struct clone3_args args = {.flags = CLONE3_CLEAR_SIGHAND | CLONE3_INTO_CGROUP, .exit_signal = SIGCHLD};
    int ends[2];
    long pid;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    plan->status_fd = ends[1];
    args.cgroup = (uint64_t)plan->cgroup_fd;
    plan->join_cgroup = false;
    pid = clone_child(&args, plan);
    if (pid == -EINVAL || pid == -E2BIG || pid == -EOPNOTSUPP) {
        args.flags = CLONE3_CLEAR_SIGHAND;
        plan->join_cgroup = true;
        pid = clone_child(&args, plan);
    }
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        return (int)pid;
    }
    *ret_pid = (pid_t)pid;
    *ret_status_fd = ends[0];
    return 0;
}
