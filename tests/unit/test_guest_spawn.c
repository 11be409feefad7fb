/* SPDX-License-Identifier: Apache-2.0 */
/* Promises about what a command is started with: environment by precedence, where it is looked for, bounds. */
#include "guest/identity.h"
#include "guest/process.h"
#include "guest/spawn_child.h"
#include "unit.h"
#include <errno.h>

static const struct guest_user user = {.uid = 7, .gid = 8, .name = "u", .home = "/h", .shell = "/bin/x", .n_groups = 1};

static struct spawn_plan *plan_of(char **argv, char **env, char **more, bool tty) {
    struct spawn_request req = {.argv = argv, .env = env, .env_more = more, .cwd = "", .user = &user, .tty = tty};
    struct spawn_plan *p = NULL;
    assert_int_equal(spawn_prepare(&req, &p), 0);
    return p;
}

static bool has(const struct spawn_plan *p, const char *kv) {
    for (char **e = p->env; *e; e++)
        if (strcmp(*e, kv) == 0)
            return true;
    return false;
}

static size_t count(const struct spawn_plan *p) {
    size_t n = 0;
    while (p->env[n])
        n++;
    return n;
}

static void environment_by_precedence(void **state) {
    char *argv[] = {"true", NULL};
    char *env[] = {"A=identity", "B=identity", "HOME=/else", NULL};
    char *more[] = {"A=request", "C=1", "C=2", "novalue", "=x", "EMPTY=", NULL};
    struct spawn_plan *p = plan_of(argv, env, more, false);
    (void)state;
    assert_true(has(p, "A=request") && has(p, "B=identity") && has(p, "HOME=/else") && has(p, "C=2"));
    assert_true(has(p, "USER=u") && has(p, "LOGNAME=u") && has(p, "SHELL=/bin/x") && has(p, "EMPTY="));
    assert_false(has(p, "A=identity") || has(p, "C=1") || has(p, "HOME=/h") || has(p, "novalue"));
    assert_int_equal(count(p), 9); /* A B C EMPTY HOME USER LOGNAME SHELL PATH */
    assert_string_equal(p->cwd, "/h");
    spawn_free(p);
    p = plan_of(argv, NULL, NULL, true);
    assert_true(has(p, "TERM=xterm-256color") && has(p, "HOME=/h"));
    spawn_free(p);
}

static void looked_for_in_path(void **state) {
    char *argv[] = {"cmd", "a", NULL};
    char *path[] = {"PATH=/one::/two", NULL};
    struct spawn_plan *p = plan_of(argv, NULL, path, false);
    (void)state;
    assert_int_equal(p->n_candidates, 3);
    assert_string_equal(p->candidates[0], "/one/cmd");
    assert_string_equal(p->candidates[1], "./cmd");
    assert_string_equal(p->candidates[2], "/two/cmd");
    assert_string_equal(p->shell_argv[0], "/bin/sh");
    assert_string_equal(p->shell_argv[2], "a");
    assert_null(p->shell_argv[3]);
    spawn_free(p);
    argv[0] = "./x/cmd";
    p = plan_of(argv, NULL, path, false);
    assert_int_equal(p->n_candidates, 1);
    spawn_free(p);
    argv[0] = "";
    p = plan_of(argv, NULL, path, false);
    assert_int_equal(p->n_candidates, 0);
    spawn_free(p);
}

static void bounds(void **state) {
    static char *many[SPAWN_MAX_ARGS + 2];
    char *none[] = {NULL};
    static char long_path[30000] = "PATH=";
    char *path[] = {long_path, NULL}, *argv[] = {"cmd", NULL};
    struct spawn_request req = {.argv = none, .user = &user};
    struct spawn_plan *p = NULL;
    (void)state;
    assert_int_equal(spawn_prepare(&req, &p), -E2BIG);
    for (size_t i = 0; i < SPAWN_MAX_ARGS + 1; i++)
        many[i] = "x";
    req.argv = many;
    assert_int_equal(spawn_prepare(&req, &p), -E2BIG);
    req = (struct spawn_request){.argv = argv, .env = many, .user = &user};
    assert_int_equal(spawn_prepare(&req, &p), -E2BIG);
    assert_null(p);
    memset(long_path + 5, 'd', 5000); /* a directory longer than a path can be is passed over */
    for (size_t i = 5005; i + 2 < sizeof(long_path); i += 2)
        memcpy(long_path + i, ":x", 2);
    p = plan_of(argv, NULL, path, false);
    assert_int_equal(p->n_candidates, SPAWN_MAX_CANDIDATES);
    assert_string_equal(p->candidates[0], "x/cmd");
    spawn_free(p);
}

static void names_are_checked(void **state) {
    (void)state;
    assert_true(process_id_is_good("ses_01-A.b") && !process_id_is_good("") && !process_id_is_good("a/b"));
    assert_true(identity_hostname_is_good("") && identity_hostname_is_good("box-7.local"));
    assert_false(identity_hostname_is_good("-x") || identity_hostname_is_good("UP") ||
                 identity_hostname_is_good("a b"));
    assert_false(identity_hostname_is_good("0123456789012345678901234567890123456789012345678901234567890123"));
    assert_true(identity_machine_id_is_good("") && identity_machine_id_is_good("0123456789abcdef0123456789abcdef"));
    assert_false(identity_machine_id_is_good("0123456789ABCDEF0123456789abcdef") || identity_machine_id_is_good("0"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_by_precedence),
        cmocka_unit_test(looked_for_in_path),
        cmocka_unit_test(bounds),
        cmocka_unit_test(names_are_checked),
    };
    return cmocka_run_group_tests_name("guest_spawn", tests, NULL, NULL);
}
