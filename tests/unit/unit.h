/* SPDX-License-Identifier: Apache-2.0 */
/* What every unit test includes: cmocka in its required order, and a folder that goes away with the test. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* After the four above. */
#include <cmocka.h>

#include "base/error.h"
#include "base/fdio.h"
#include "base/text.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The call fails with this code and says something. */
#define assert_fails(call, code_)                                                                                      \
    do {                                                                                                               \
        struct sp_error *unit_err_ = &unit_error;                                                                      \
        memset(unit_err_, 0, sizeof(*unit_err_));                                                                      \
        assert_int_equal((call), -(int)(code_));                                                                       \
        assert_string_equal(sp_code_name(unit_error.code), sp_code_name(code_));                                       \
        assert_string_not_equal(unit_error.text, "");                                                                  \
    } while (0)
/* The call returns 0; otherwise its error is shown. */
#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        memset(&unit_error, 0, sizeof(unit_error));                                                                    \
        if ((call) < 0)                                                                                                \
            fail_msg("%s: %s: %s", #call, unit_error.op, unit_error.text);                                             \
    } while (0)

/* The error the two macros look at: pass &unit_error to the call. */
static struct sp_error unit_error __attribute__((unused));

static char unit_dir_path[64];

static inline int unit_temp_dir(void **state) {
    (void)state;
    (void)text_copy(unit_dir_path, sizeof(unit_dir_path), "/tmp/space-unit-XXXXXX");
    return mkdtemp(unit_dir_path) ? 0 : -1;
}

static inline int unit_temp_dir_remove(void **state) {
    (void)state;
    return dir_remove_tree(AT_FDCWD, unit_dir_path, NULL);
}

/* A path below the folder; good until the next call but three. */
static inline const char *unit_path(const char *name) {
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    assert_true(text_printf(path, sizeof(paths[0]), "%s/%s", unit_dir_path, name));
    return path;
}
