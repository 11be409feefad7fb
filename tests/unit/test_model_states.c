/* SPDX-License-Identifier: Apache-2.0 */
/* States and their moves: names both ways, the properties the table must have, and that the database's copy is the same. */
#include "model/problems.h"
#include "model/scopes.h"
#include "model/transitions.h"
#include "unit.h"
#include <ctype.h>

static void test_names_round_trip(void **state) {
    (void)state;
    for (unsigned i = 0; i < SANDBOX_STATE_COUNT_; i++) {
        enum sandbox_state s;
        assert_true(sandbox_state_parse(sandbox_state_name((enum sandbox_state)i), &s));
        assert_int_equal(s, i);
    }
    for (unsigned i = FAILURE_NONE + 1; i < FAILURE_COUNT_; i++) {
        enum failure f;
        assert_true(failure_parse(failure_name((enum failure)i), &f));
        assert_int_equal(f, i);
        assert_string_not_equal(failure_text(f), "");
    }
    enum failure f;
    assert_false(failure_parse("of_the_future", &f));
    assert_int_equal(f, FAILURE_INTERNAL);
    enum operation_state o;
    assert_true(operation_state_parse("succeeded", &o));
    assert_true(operation_is_final(o));
    assert_false(operation_state_parse("done", &o));
    enum session_state x;
    assert_true(session_state_parse("lost", &x));
    enum operation_kind k;
    assert_false(operation_kind_parse("stop", &k));
}

static void test_moves_make_sense(void **state) {
    (void)state;
    for (unsigned from = 0; from < SANDBOX_STATE_COUNT_; from++) {
        enum sandbox_state s = (enum sandbox_state)from;
        const struct sandbox_state_row *row = sandbox_state_row(s);
        unsigned out = 0;
        assert_true(sandbox_move_is_allowed(s, s));
        for (unsigned to = 0; to < SANDBOX_STATE_COUNT_; to++)
            out += to != from && sandbox_move_is_allowed(s, (enum sandbox_state)to);
        /* Only a final state has no way out; from every other one a delete is possible. */
        assert_int_equal(out == 0, row->is_final);
        if (!row->is_final && s != SANDBOX_DELETING)
            assert_true(sandbox_move_is_allowed(s, SANDBOX_DELETING));
        if (row->takes_sessions)
            assert_true(row->may_be_ready);
        if (row->may_be_ready)
            assert_true(row->holds_vm);
    }
    /* The tombstone: nothing follows deleting but deleted, nothing follows deleted. */
    for (unsigned to = 0; to < SANDBOX_STATE_COUNT_; to++) {
        assert_int_equal(sandbox_move_is_allowed(SANDBOX_DELETING, (enum sandbox_state)to),
                         to == SANDBOX_DELETING || to == SANDBOX_DELETED);
        assert_int_equal(sandbox_move_is_allowed(SANDBOX_DELETED, (enum sandbox_state)to), to == SANDBOX_DELETED);
    }
}

static void test_no_move_is_there_twice(void **state) {
    (void)state;
    for (size_t i = 0; i < sandbox_moves_count; i++)
        for (size_t j = i + 1; j < sandbox_moves_count; j++)
            assert_false(sandbox_moves[i].from == sandbox_moves[j].from && sandbox_moves[i].to == sandbox_moves[j].to);
}

static char *read_migration(const char *name) {
    char root[400], path[512], *text, *end;
    size_t len;
    assert_true(text_copy(root, sizeof(root), getenv("UNIT_DATA"))); /* <root>/tests/unit/data, which need not exist */
    end = strstr(root, "/tests/unit/");
    assert_non_null(end);
    *end = '\0';
    assert_true(text_printf(path, sizeof(path), "%s/src/store/migrations/%s", root, name));
    assert_ok(file_read(AT_FDCWD, path, 1 << 20, &text, &len, &unit_error));
    return text;
}

/* Pairs between an INSERT and its semicolon; each is a move of the table. */
static size_t count_moves(const char *name) {
    char *text = read_migration(name), from[32], to[32];
    const char *p = strstr(text, "INSERT INTO sandbox_moves VALUES");
    size_t n = 0;
    assert_non_null(p);
    p += strlen("INSERT INTO sandbox_moves VALUES");
    while (*p != ';') {
        enum sandbox_state a, b;
        if (*p != '(') {
            p++;
            continue;
        }
        assert_int_equal(sscanf(p, "('%31[a-z]', '%31[a-z]')", from, to), 2);
        assert_true(sandbox_state_parse(from, &a));
        assert_true(sandbox_state_parse(to, &b));
        assert_true(a != b && sandbox_move_is_allowed(a, b));
        n++;
        p++;
    }
    free(text);
    return n;
}

static void test_database_has_the_same_moves(void **state) {
    (void)state;
    assert_int_equal(count_moves("0001_init.sql") + count_moves("0002_lifecycle.sql"), sandbox_moves_count);
}

/* Every name of a vocabulary is in the CHECK of its column. */
static void test_database_has_the_same_states(void **state) {
    char *text = read_migration("0001_init.sql"), *second = read_migration("0002_lifecycle.sql"),
         *third = read_migration("0003_disk_snapshots.sql"), quoted[40];
    (void)state;
    for (unsigned i = 0; i < SANDBOX_STATE_COUNT_; i++) {
        assert_true(text_printf(quoted, sizeof(quoted), "'%s'", sandbox_state_name((enum sandbox_state)i)));
        assert_non_null(strstr(text, quoted));
    }
    for (unsigned i = 0; i < OPERATION_KIND_COUNT_; i++) {
        assert_true(text_printf(quoted, sizeof(quoted), "'%s'", operation_kind_name((enum operation_kind)i)));
        assert_non_null(strstr(second, quoted));
    }
    for (unsigned i = 0; i < REASON_COUNT_; i++) {
        assert_true(text_printf(quoted, sizeof(quoted), "'%s'", operation_reason_name((enum operation_reason)i)));
        assert_non_null(strstr(second, quoted));
    }
    assert_non_null(strstr(second, "CHECK (kind IN ('snapshot', 'suspend', 'fork', 'checkpoint'))"));
    assert_non_null(strstr(second, "CHECK (state IN ('creating', 'ready', 'failed', 'deleting'))"));
    assert_non_null(strstr(third, "CHECK (start_kind IN ('warm', 'blank', 'cold', 'boot'))"));
    assert_non_null(strstr(third, "CHECK (content IN ('full', 'disk'))"));
    assert_non_null(strstr(text, "CHECK (state IN ('pending', 'running', 'succeeded', 'failed'))"));
    assert_non_null(strstr(text, "CHECK (state IN ('created', 'started', 'exited', 'lost'))"));
    free(text);
    free(second);
    free(third);
}

static void test_problems(void **state) {
    (void)state;
    for (unsigned i = 0; i < PROBLEM_CODE_COUNT_; i++) {
        const struct problem_row *row = problem_row((enum problem_code)i);
        assert_non_null(row->code);
        assert_ptr_equal(problem_find(row->code), row);
        assert_true(row->status >= 400 && row->status < 600);
        assert_string_not_equal(row->title, "");
    }
    assert_null(problem_find("nonsense"));
    for (unsigned c = SP_E_INVALID; c < SP_E_COUNT_; c++) {
        const struct problem_row *row = problem_row(problem_of_error((enum sp_code)c));
        int status = sp_code_http_status((enum sp_code)c);
        assert_true(row->status == status || (row->status == 500 && status >= 500));
    }
    assert_int_equal(problem_of_error((enum sp_code)9999), PROBLEM_INTERNAL);
}

static void test_scopes(void **state) {
    json_t *all = scopes_to_json(SCOPE_ALL), *one = json_pack("[s]", "nodes:read"),
           *bad = json_pack("[s]", "nodes:raed");
    json_t *twice = json_pack("[s, s]", "admin", "admin"), *none = json_array(), *mixed = json_pack("[i]", 1);
    uint32_t set = 0;
    (void)state;
    assert_ok(scopes_from_json(all, "scopes", &set, &unit_error));
    assert_int_equal(set, SCOPE_ALL);
    assert_ok(scopes_from_json(one, "scopes", &set, &unit_error));
    assert_int_equal(set, SCOPE_NODES_READ);
    assert_fails(scopes_from_json(bad, "scopes", &set, &unit_error), SP_E_INVALID);
    assert_non_null(strstr(unit_error.text, "did you mean nodes:read?"));
    assert_fails(scopes_from_json(twice, "scopes", &set, &unit_error), SP_E_INVALID);
    assert_fails(scopes_from_json(none, "scopes", &set, &unit_error), SP_E_INVALID);
    assert_fails(scopes_from_json(mixed, "scopes", &set, &unit_error), SP_E_INVALID);
    assert_true(scopes_allow(SCOPE_ADMIN, SCOPE_ALL));
    assert_true(scopes_allow(SCOPE_NODES_READ, 0));
    assert_true(scopes_allow(SCOPE_NODES_READ | SCOPE_TOKENS_WRITE, SCOPE_TOKENS_WRITE));
    assert_false(scopes_allow(SCOPE_NODES_READ, SCOPE_NODES_READ | SCOPE_TOKENS_WRITE));
    assert_false(scopes_allow(0, SCOPE_ADMIN));
    for (json_t **j = (json_t *[]){all, one, bad, twice, none, mixed, NULL}; *j; j++)
        json_decref(*j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_round_trip),
        cmocka_unit_test(test_moves_make_sense),
        cmocka_unit_test(test_no_move_is_there_twice),
        cmocka_unit_test(test_database_has_the_same_moves),
        cmocka_unit_test(test_database_has_the_same_states),
        cmocka_unit_test(test_problems),
        cmocka_unit_test(test_scopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
