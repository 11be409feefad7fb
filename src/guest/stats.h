/* SPDX-License-Identifier: Apache-2.0 */
/* Figures about the agent and its kernel for a full PING. Read anew each time, from /proc and /sys. */
#pragma once
#include <stddef.h>
#include <stdint.h>

const char *stats_boot_id(char *dst, size_t size);     /* "" when unknown; returns dst */
const char *stats_clocksource(char *dst, size_t size); /* likewise */
uint64_t stats_fds(void);                              /* descriptors the agent has open */
uint64_t stats_rss_kib(void);                          /* of the agent */
uint64_t stats_zombies(void);                          /* in the whole guest */
