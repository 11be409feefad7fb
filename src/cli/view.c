/* SPDX-License-Identifier: Apache-2.0 */
/* Times, sizes and timings for people; see view.h. */
#include "cli/view.h"
#include "base/clock.h"
#include "base/text.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIMINGS_SHOWN 24

bool view_time(const char *text, uint64_t *ret_seconds) {
    struct tm tm = {0};
    const char *rest = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (!rest || (*rest != '.' && *rest != 'Z'))
        return false;
    time_t t = timegm(&tm);
    if (t < 0)
        return false;
    *ret_seconds = (uint64_t)t;
    return true;
}

const char *view_seconds(char dst[VIEW_SIZE], uint64_t seconds) {
    unsigned long long s = seconds;
    if (s < 60)
        (void)text_printf(dst, VIEW_SIZE, "%llus", s);
    else if (s < 3600)
        (void)text_printf(dst, VIEW_SIZE, "%llum", s / 60);
    else if (s < 86400)
        (void)text_printf(dst, VIEW_SIZE, "%lluh%02llum", s / 3600, s / 60 % 60);
    else
        (void)text_printf(dst, VIEW_SIZE, "%llud%02lluh", s / 86400, s / 3600 % 24);
    return dst;
}

const char *view_bytes(char dst[VIEW_SIZE], uint64_t bytes) {
    static const char units[] = "KMGT";
    double v = (double)bytes / 1024;
    size_t u = 0;
    if (bytes == 0) {
        (void)text_copy(dst, VIEW_SIZE, "0");
        return dst;
    }
    while (v >= 1024 && u + 2 < sizeof units) {
        v /= 1024;
        u++;
    }
    (void)text_printf(dst, VIEW_SIZE, v < 10 && u > 1 ? "%.1f%c" : "%.0f%c", v < 1 ? 1 : v, units[u]);
    return dst;
}

void view_set_age(json_t *object, const char *key, const char *from) {
    char text[VIEW_SIZE] = "-";
    uint64_t then, now = clock_realtime_ns() / NSEC_PER_SEC;
    if (view_time(json_string_value(json_object_get(object, from)), &then))
        (void)view_seconds(text, now > then ? now - then : 0);
    (void)json_object_set_new(object, key, json_string(text));
}

void view_set_bytes(json_t *object, const char *key, const char *from) {
    char text[VIEW_SIZE] = "-";
    const json_t *v = json_object_get(object, from);
    if (json_is_integer(v) && json_integer_value(v) >= 0)
        (void)view_bytes(text, (uint64_t)json_integer_value(v));
    (void)json_object_set_new(object, key, json_string(text));
}

struct timing {
    const char *name;
    double ms;
};

static int longest_first(const void *a, const void *b) {
    double x = ((const struct timing *)a)->ms, y = ((const struct timing *)b)->ms;
    return (x < y) - (x > y);
}

void view_set_timings(json_t *object, const char *key) {
    struct timing all[TIMINGS_SHOWN];
    char line[190] = "";
    const char *name;
    json_t *value;
    size_t n = 0, at = 0;
    json_object_foreach (json_object_get(object, "timings"), name, value)
        if (n < TIMINGS_SHOWN && json_is_number(value))
            all[n++] = (struct timing){name, json_number_value(value)};
    if (n == 0)
        return;
    qsort(all, n, sizeof all[0], longest_first);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(all[i].name);
        int shown = (int)(len > 3 && strcmp(all[i].name + len - 3, "_ms") == 0 ? len - 3 : len);
        if (!text_printf(line + at, sizeof line - at, "%s%.*s %.1f", at ? ", " : "", shown, all[i].name, all[i].ms)) {
            line[at] = '\0';
            break;
        }
        at = strlen(line);
    }
    (void)json_object_set_new(object, key, json_string(line));
}
