/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: users and groups are what the template's files say, and no file can make the agent take a wrong one. */
#include "guest/users.h"
#include "unit.h"

static const char passwd[] = "root:x:0:0:root:/root:/bin/bash\n"
                             "# comment\n"
                             "\n"
                             "short:x:5\n"
                             "bad:x:-1:0::/:/bin/sh\n"
                             "huge:x:4294967295:0::/:/bin/sh\n"
                             "user:x:1000:1000:A User,,,:/home/user:\n"
                             "rel:x:1001:1001::home:/bin/zsh\n"
                             "nocomment:x:1002:1002::/n:/bin/sh:extra:fields:too\n"
                             "last:x:1003:1003::/last:/bin/ksh";
static const char group[] = "root:x:0:\nsudo:x:27:user,last\nuser:x:1000:user\nwheel:x:10:other,user\nbad:x:zz:user\n"
                            "empty:x:11:\nprefix:x:12:use,user2,users\nlast:x:13:user";

static void finds_by_name(void **state) {
    struct guest_user u;
    (void)state;
    assert_true(users_parse(passwd, group, "user", &u));
    assert_int_equal(u.uid, 1000);
    assert_string_equal(u.home, "/home/user");
    assert_string_equal(u.shell, "/bin/sh");
    assert_int_equal(u.n_groups, 4);
    assert_int_equal(u.groups[0], 1000);
    assert_int_equal(u.groups[1], 27);
    assert_int_equal(u.groups[2], 10);
    assert_int_equal(u.groups[3], 13);
    assert_true(users_parse(passwd, group, "last", &u));
    assert_string_equal(u.shell, "/bin/ksh");
    assert_true(users_parse(passwd, group, "rel", &u));
    assert_string_equal(u.home, "/");
    assert_true(users_parse(passwd, group, "nocomment", &u));
}

static void finds_by_number(void **state) {
    struct guest_user u;
    (void)state;
    assert_true(users_parse(passwd, group, "1000", &u));
    assert_string_equal(u.name, "user");
    assert_true(users_parse(passwd, group, "4242", &u));
    assert_int_equal(u.uid, 4242);
    assert_int_equal(u.gid, 4242);
    assert_string_equal(u.home, "/");
    assert_int_equal(u.n_groups, 1);
}

static void empty_name_is_root(void **state) {
    struct guest_user u;
    (void)state;
    assert_true(users_parse(passwd, group, "", &u));
    assert_string_equal(u.shell, "/bin/bash");
    assert_true(users_parse("", "", "", &u)); /* a template without a passwd file */
    assert_int_equal(u.uid, 0);
    assert_string_equal(u.home, "/");
}

static void refuses_what_is_not_there_or_malformed(void **state) {
    static const char *const names[] = {"ghost",      "short", "bad",    "huge",
                                        "4294967295", "-1",    "user:x", "99999999999999999999"};
    struct guest_user u;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        assert_false(users_parse(passwd, group, names[i], &u));
}

static void too_many_groups_are_cut(void **state) {
    static char many[20000];
    struct guest_user u;
    size_t n = 0;
    (void)state;
    for (int i = 0; i < 500; i++)
        n += (size_t)snprintf(many + n, sizeof(many) - n, "g%d:x:%d:user\n", i, 2000 + i);
    assert_true(users_parse(passwd, many, "user", &u));
    assert_int_equal(u.n_groups, USERS_MAX_GROUPS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_by_name),           cmocka_unit_test(finds_by_number),
        cmocka_unit_test(empty_name_is_root),      cmocka_unit_test(refuses_what_is_not_there_or_malformed),
        cmocka_unit_test(too_many_groups_are_cut),
    };
    return cmocka_run_group_tests_name("guest_users", tests, NULL, NULL);
}
