/* SPDX-License-Identifier: Apache-2.0 */
/* What the host has left: room on the store, memory. */
#pragma once
#include "base/error.h"
#include <stdint.h>

struct host_stat {
    uint64_t store_free_mib, store_total_mib, memory_available_mib;
};

int host_stat_get(int store_fd, struct host_stat *ret, struct sp_error *err);
/* MemAvailable of a /proc/meminfo text, in MiB; SP_E_INTERNAL when it is not there. */
int host_stat_parse_meminfo(const char *text, uint64_t *ret_mib, struct sp_error *err);
