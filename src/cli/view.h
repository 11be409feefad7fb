/* SPDX-License-Identifier: Apache-2.0 */
/* How long ago, how long, how much: what tables show in place of raw times and byte counts. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VIEW_SIZE 32
/* An RFC 3339 time in UTC; false when it is none. */
bool view_time(const char *text, uint64_t *ret_seconds);
/* "42s", "5m", "3h12m", "8d"; dst is returned. */
const char *view_seconds(char dst[VIEW_SIZE], uint64_t seconds);
/* "0", "800K", "35M", "1.5G" */
const char *view_bytes(char dst[VIEW_SIZE], uint64_t bytes);
/* Sets object[key] to how long ago object[from] was ("-" when it is no time). */
void view_set_age(json_t *object, const char *key, const char *from);
/* Sets object[key] to the bytes in object[from] ("-" when it is no number). */
void view_set_bytes(json_t *object, const char *key, const char *from);
/* Sets object[key] to its timings in one line, the longest first: "total 21, stop 2". */
void view_set_timings(json_t *object, const char *key);
