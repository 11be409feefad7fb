/* SPDX-License-Identifier: Apache-2.0 */
/* The state directory as `space up` lays it out: directories with their owners, secrets, configuration files. */
#pragma once
#include "base/error.h"
#include "model/settings.h"

/* A path below the state directory; SP_E_INVALID when it does not fit. */
int layout_path(const struct settings *s, const char *sub, char *dst, size_t size, struct sp_error *err);
/* Everything but the store and the database; safe to repeat, keeps what is there. */
int layout_ensure(const struct settings *s, struct sp_error *err);
/* A secret "<prefix>_<43 characters of base64url>" kept in <state_dir>/<sub>, made on the first call, readable by root only. */
int layout_secret(const struct settings *s, const char *sub, const char *prefix, char *dst, size_t size,
                  struct sp_error *err);
/* A copy of a secret or configuration for one daemon: <state_dir>/etc/<daemon>/<name>, 0400, owned by it. */
int layout_give(const struct settings *s, const char *daemon, enum settings_uid uid, const char *name, const char *text,
                struct sp_error *err);
/* <state_dir>/etc/space.conf for every daemon, and the control plane's own with the database's address. */
int layout_write_config(const struct settings *s, const char *database_url, struct sp_error *err);
/* What the CLI reads to find the API: <state_dir>/etc/client.json, root only. */
int layout_write_client(const struct settings *s, const char *admin_token, struct sp_error *err);
