/* SPDX-License-Identifier: Apache-2.0 */
/* Between snapshot.c and snapshot_seal.c. */
#pragma once
#define SNAPSHOT_FILES 3
#define SNAPSHOT_MANIFEST_MAX 32768
extern const char *const snapshot_files[SNAPSHOT_FILES];
