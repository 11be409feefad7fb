/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of files that share their blocks (FICLONE). The store must be on a file system that has them. */
#pragma once
#include "base/error.h"
#include <stdbool.h>

/* Makes dst_fd (open for writing) share every block of src_fd. `what` names the copy in errors.
 * SP_E_UNSUPPORTED: no reflink file system, or the two are on different ones; SP_E_NO_SPACE; SP_E_IO. */
int reflink_clone(int dst_fd, int src_fd, const char *what, struct sp_error *err);
/* Tried with two unnamed files in the directory, because no flag of a file system says it. */
bool reflink_is_supported(int dirfd);
