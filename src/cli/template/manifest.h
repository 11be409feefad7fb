/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A template's manifest: what runs in it by default, and the hash and size of its disk image. Its canonical JSON is the
 * file manifest.json, and the SHA-256 of that file is the template's digest, so the digest covers the disk as well.
 */
#pragma once
#include "base/digest.h"
#include "base/json.h"

#define TEMPLATE_ENV_MAX 128        /* variables */
#define TEMPLATE_ENV_VALUE_MAX 4096 /* bytes of one value */
#define TEMPLATE_COMMAND_MAX 64     /* words of a command */
#define TEMPLATE_WORD_MAX 4096      /* bytes of one word */
#define TEMPLATE_MANIFEST_MAX 65536 /* bytes of the file */
#define TEMPLATE_PROBE_TIMEOUT_MAX_S 600

/* The operator's part: {env{}, workdir, user, start_command[]|null, readiness_probe{command[], timeout_s}|null}.
 * Checks every field and limit; *ret is a new object with all five keys present. */
int template_manifest_parse(const char *data, size_t len, json_t **ret, struct sp_error *err);
/* Defaults when no manifest was given: PATH and LANG, "/", root, nothing started. */
json_t *template_manifest_default(void);
/* Adds format_version and the disk, prints canonically (sorted keys, no spaces) and names it. *ret_text is heap memory. */
int template_manifest_seal(json_t *manifest, uint64_t disk_bytes, const char *disk_hash, char **ret_text,
                           char ret_digest[SHA256_HEX_SIZE], struct sp_error *err);
