/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: the libraries of a program are those the dynamic loader would take, and a missing one is said. */
#include "base/cleanup.h"
#include "base/text.h"
#include "host/loader.h"
#include "unit.h"
#include <fcntl.h>
#include <unistd.h>

struct seen {
    unsigned n;
    char name[LOADER_NAME_SIZE], path[LOADER_PATH_SIZE];
    int answer;
};

static int note(void *ctx, const char *name, const char *path, struct sp_error *err) {
    struct seen *seen = ctx;
    seen->n++;
    (void)text_copy(seen->name, sizeof(seen->name), name);
    (void)text_copy(seen->path, sizeof(seen->path), path);
    return seen->answer ? sp_error_set(err, SP_E_IO, "enough") : 0;
}

static int parse(const char *text, struct seen *seen) {
    return loader_parse(text, strlen(text), note, seen, &unit_error);
}

static void test_parse(void **state) {
    struct seen seen = {0};
    (void)state;
    assert_ok(parse("\tlinux-vdso.so.1 (0x00007ffd)\n\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)\n"
                    "\t/lib64/ld-linux-x86-64.so.2 (0x00007f)",
                    &seen));
    assert_int_equal(seen.n, 1);
    assert_string_equal(seen.name, "libz.so.1");
    assert_string_equal(seen.path, "/lib/x86_64-linux-gnu/libz.so.1");
    assert_ok(parse("\tstatically linked\n", &seen));
    assert_int_equal(seen.n, 1);
    assert_int_equal(parse("\tlibnone.so => not found\n", &seen), -SP_E_NOT_FOUND);
    assert_non_null(strstr(unit_error.text, "libnone.so"));
    assert_int_equal(parse("\tdir/liba.so => /dir/liba.so (0x1)\n", &seen), -SP_E_UNSUPPORTED);
    seen.answer = 1;
    assert_int_equal(parse("\tliba.so => /liba.so (0x1)\n\tlibb.so => /libb.so (0x1)\n", &seen), -SP_E_IO);
    assert_string_equal(seen.name, "liba.so");
}

static void test_a_real_program(void **state) {
    _cleanup_close_ int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), text = -1;
    char interpreter[LOADER_PATH_SIZE];
    struct seen seen = {0};
    (void)state;
    assert_ok(loader_interpreter(fd, interpreter, &unit_error));
    text = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    assert_int_equal(loader_interpreter(text, interpreter, &unit_error), -SP_E_INVALID);
    if (!interpreter[0] || geteuid() != 0)
        return; /* a static build; the loader is run as somebody else */
    assert_ok(loader_list(interpreter, "/usr/bin/env", 65534, note, &seen, &unit_error));
    assert_true(seen.n >= 1 && seen.path[0] == '/');
    assert_true(loader_list(interpreter, "/nowhere", 65534, note, &seen, &unit_error) < 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parse), cmocka_unit_test(test_a_real_program)};
    return cmocka_run_group_tests_name("host_loader", tests, NULL, NULL);
}
