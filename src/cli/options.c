/* SPDX-License-Identifier: Apache-2.0 */
/* Options of commands, from a table of rows. */
#include "base/text.h"
#include "cli/command.h"
#include <stdio.h>
#include <string.h>

static const struct option_row *find(const struct option_row *rows, size_t n, const char *word,
                                     const char **ret_value) {
    const char *eq = strchr(word, '=');
    size_t len = eq ? (size_t)(eq - word) : strlen(word);
    *ret_value = eq ? eq + 1 : NULL;
    for (size_t i = 0; i < n; i++) {
        if (strlen(rows[i].name) == len && memcmp(rows[i].name, word, len) == 0)
            return &rows[i];
        if (rows[i].short_name && word[0] == '-' && word[1] == rows[i].short_name && word[2] == '\0')
            return &rows[i];
    }
    return NULL;
}

static int unknown_option(const struct option_row *rows, size_t n, const char *word, struct sp_error *err) {
    const char *names[32];
    size_t known = n < ARRAY_SIZE(names) ? n : ARRAY_SIZE(names);
    for (size_t i = 0; i < known; i++)
        names[i] = rows[i].name;
    const char *near = text_nearest(word, names, known);
    return sp_error_field(err, SP_E_INVALID, word, "no such option here%s%s%s", near ? "; did you mean " : "",
                          near ? near : "", near ? "?" : "");
}

static int store(const struct option_row *row, const char *value, struct sp_error *err) {
    if (row->kind == OPTION_VALUE) {
        *(const char **)row->target = value;
        return 0;
    }
    const char **list = row->target;
    size_t i = 0;
    while (list[i])
        i++;
    if (i == OPTION_LIST_MAX)
        return sp_error_field(err, SP_E_INVALID, row->name, "may be given %d times at most", OPTION_LIST_MAX);
    list[i] = value;
    return 0;
}

int command_options(struct command_args *args, const struct option_row *rows, size_t n, bool stop_at_word,
                    struct sp_error *err) {
    int kept = 0, i = 0;
    for (; i < args->argc; i++) {
        char *word = args->argv[i];
        if (strcmp(word, "--") == 0) {
            i++;
            break;
        }
        if (word[0] != '-' || word[1] == '\0') {
            args->argv[kept++] = word;
            if (stop_at_word && kept > 1) { /* the first word is the object, the second begins the command */
                i++;
                break;
            }
            continue;
        }
        const char *value;
        const struct option_row *row = find(rows, n, word, &value);
        if (!row)
            return unknown_option(rows, n, word, err);
        if (row->kind == OPTION_FLAG) {
            *(bool *)row->target = true;
            continue;
        }
        if (!value && (i + 1 >= args->argc || strcmp(args->argv[i + 1], "--") == 0))
            return sp_error_field(err, SP_E_INVALID, row->name, "needs a value");
        int r = store(row, value ? value : args->argv[++i], err);
        if (r < 0)
            return r;
    }
    for (; i < args->argc; i++)
        args->argv[kept++] = args->argv[i];
    args->argv[kept] = NULL;
    args->argc = kept;
    return 0;
}

int command_expect(const struct command_args *args, int min, int max, const char *what, struct sp_error *err) {
    if (args->argc >= min && args->argc <= max)
        return 0;
    return sp_error_set(err, SP_E_INVALID, "%s: %d given; expected %s",
                        args->argc < min ? "too few words" : "too many words", args->argc, what);
}
