/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines: one JSON object, one write(2) to stderr. A line is composed on the stack, so logging works when memory
 * is gone; what does not fit is cut and the line says so. The rate table is the only shared state: one slot for each
 * (level, event), and one that all share once it is full (the vocabulary is closed, it should never be).
 */
#include "base/log.h"
#include "base/clock.h"
#include "base/text.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_ 8192u
#define VALUE_MAX 2048u /* escaped bytes of one value */
#define TAIL_ROOM 64u   /* kept for `"dropped"`, `"truncated"` and the end */
#define FIELDS_MAX 32
#define RATE_SLOTS 256u
#define RATE_PER_SECOND 50u
#define EVENT_MAX 48u

static const char *const level_names[] = {"debug", "info", "warn", "error"};

static const char *program_name = "space";
static atomic_int min_level = LOG_L_INFO;

struct rate_slot {
    char event[EVENT_MAX];
    enum log_level level;
    uint64_t second;
    unsigned lines;
    unsigned long long dropped;
};
static pthread_mutex_t rate_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rate_slot rate_slots[RATE_SLOTS]; /* [0] is shared by what finds no slot */

struct line {
    char text[LINE_MAX_];
    size_t len;
    bool cut;
};

void log_init(const char *program, enum log_level level) {
    program_name = program;
    log_set_level(level);
}

void log_set_level(enum log_level level) {
    atomic_store(&min_level, (int)level);
}

bool log_level_from_name(const char *name, enum log_level *ret) {
    for (size_t i = 0; i < ARRAY_SIZE(level_names); i++)
        if (strcmp(level_names[i], name) == 0) {
            *ret = (enum log_level)i;
            return true;
        }
    return false;
}

static struct rate_slot *rate_slot(enum log_level level, const char *event) {
    uint32_t h = 2166136261u + (uint32_t)level;
    for (const char *p = event; *p; p++)
        h = (h ^ (unsigned char)*p) * 16777619u;
    for (uint32_t i = 0; i < RATE_SLOTS - 1; i++) {
        struct rate_slot *s = &rate_slots[1 + (h + i) % (RATE_SLOTS - 1)];
        if (!s->event[0]) {
            if (!text_copy(s->event, sizeof(s->event), event))
                break;
            s->level = level;
            return s;
        }
        if (s->level == level && strcmp(s->event, event) == 0)
            return s;
    }
    return &rate_slots[0];
}

/* Whether this line may go out; then *ret_dropped is how many of its kind did not since the last one. */
static bool rate_pass(enum log_level level, const char *event, unsigned long long *ret_dropped) {
    uint64_t second = clock_monotonic_ns() / NSEC_PER_SEC;
    struct rate_slot *s;
    bool pass;

    (void)pthread_mutex_lock(&rate_lock);
    s = rate_slot(level, event);
    if (s->second != second) {
        s->second = second;
        s->lines = 0;
    }
    pass = s->lines < RATE_PER_SECOND;
    *ret_dropped = s->dropped;
    if (pass) {
        s->lines++;
        s->dropped = 0;
    } else
        s->dropped++;
    (void)pthread_mutex_unlock(&rate_lock);
    return pass;
}

/* Escape of the byte p[0] inside a JSON string; valid UTF-8 passes, other high bytes become visible text \\xNN. */
static size_t escape_json(char e[8], unsigned char c, bool utf8) {
    if (c == '"' || c == '\\') {
        e[0] = '\\';
        e[1] = (char)c;
        return 2;
    }
    if (c < 0x20 || c == 0x7f)
        return (size_t)snprintf(e, 8, "\\u%04x", c);
    if (c >= 0x80 && !utf8)
        return (size_t)snprintf(e, 8, "\\\\x%02x", c);
    e[0] = (char)c;
    return 1;
}

static bool put_raw(struct line *l, const char *s, size_t len) {
    if (len > sizeof(l->text) - TAIL_ROOM - l->len)
        return false;
    memcpy(l->text + l->len, s, len);
    l->len += len;
    return true;
}

static bool put_string(struct line *l, const char *s) {
    size_t len = strnlen(s, VALUE_MAX + 4), start = l->len;
    bool utf8 = text_is_utf8(s, len);

    if (!put_raw(l, "\"", 1))
        return false;
    for (size_t i = 0; i < len; i++) {
        char e[8];
        size_t n = escape_json(e, (unsigned char)s[i], utf8);
        /* Cut only between characters: a sequence that started is finished (VALUE_MAX is far below the line's end). */
        if (l->len - start + n > VALUE_MAX && ((unsigned char)s[i] & 0xc0) != 0x80) {
            l->cut = true;
            break;
        }
        if (!put_raw(l, e, n))
            return false;
    }
    return put_raw(l, "\"", 1);
}

/* A field goes in whole or not at all. */
static void put_field(struct line *l, const char *key, const char *value) {
    size_t before = l->len;
    if (put_raw(l, before > 1 ? "," : "", before > 1) && put_string(l, key) && put_raw(l, ":", 1) &&
        put_string(l, value ? value : ""))
        return;
    l->len = before;
    l->cut = true;
}

static void line_begin(struct line *l, enum log_level level, const char *event) {
    char now[CLOCK_RFC3339_SIZE];
    l->len = 0;
    l->cut = false;
    (void)put_raw(l, "{", 1);
    put_field(l, "time", clock_rfc3339(now, clock_realtime_ns()));
    put_field(l, "level", level_names[level]);
    put_field(l, "program", program_name);
    put_field(l, "event", event);
}

static void put_fields(struct line *l, va_list ap) {
    for (int i = 0; i < FIELDS_MAX; i++) {
        const char *key = va_arg(ap, const char *), *value;
        if (!key)
            return;
        value = va_arg(ap, const char *);
        put_field(l, key, value);
    }
}

static void line_end(struct line *l, unsigned long long dropped) {
    size_t left = sizeof(l->text) - l->len; /* at least TAIL_ROOM */
    int n;
    if (dropped)
        n = snprintf(l->text + l->len, left, "%s,\"dropped\":%llu}\n", l->cut ? ",\"truncated\":true" : "", dropped);
    else
        n = snprintf(l->text + l->len, left, "%s}\n", l->cut ? ",\"truncated\":true" : "");
    if (n > 0)
        l->len += (size_t)n;
    while (write(STDERR_FILENO, l->text, l->len) < 0 && errno == EINTR)
        ;
}

void log_event(enum log_level level, const char *event, ...) {
    struct line l;
    unsigned long long dropped;
    va_list ap;
    int saved = errno;

    if ((int)level >= atomic_load(&min_level) && rate_pass(level, event, &dropped)) {
        line_begin(&l, level, event);
        va_start(ap, event);
        put_fields(&l, ap);
        va_end(ap);
        line_end(&l, dropped);
    }
    errno = saved;
}

static void put_error(struct line *l, const struct sp_error *err) {
    put_field(l, "code", sp_code_name(err->code));
    if (err->op[0])
        put_field(l, "op", err->op);
    if (err->field[0])
        put_field(l, "field", err->field);
    put_field(l, "text", err->text);
    if (err->err_no)
        put_field(l, "errno", strerror(err->err_no));
}

void log_error(enum log_level level, const char *event, const struct sp_error *err, ...) {
    struct line l;
    unsigned long long dropped;
    va_list ap;
    int saved = errno;

    if ((int)level >= atomic_load(&min_level) && rate_pass(level, event, &dropped)) {
        line_begin(&l, level, event);
        va_start(ap, err);
        put_fields(&l, ap);
        va_end(ap);
        put_error(&l, err);
        line_end(&l, dropped);
    }
    errno = saved;
}
