/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template releases and tags. A name belongs to an owner: a tenant's id, or "" for those shared with all. A tenant that has
 * any release of a name sees its own; otherwise the shared ones of that name.
 */
#pragma once
#include "model/validate.h"
#include "store/store.h"

struct template {
    const char *id, *owner, *name, *digest, *manifest; /* manifest: JSON text */
    const char *tags;                                  /* JSON array text */
    uint64_t size_bytes;
    int64_t created_ms, created_us;
};
void template_row(const struct store_result *res, int row, struct template *ret);

/* Whose `name` the tenant sees: copied to ret_owner. SP_E_NOT_FOUND. */
int template_owner(struct store *s, const char *tenant_id, const char *name, char ret_owner[32], struct sp_error *err);
/* What a reference of the tenant names; held against removal until the transaction ends. SP_E_NOT_FOUND. */
int template_resolve(struct store *s, const char *tenant_id, const struct template_ref *ref,
                     struct store_result **ret_res, struct template *ret, struct sp_error *err);
struct template_new_row {
    const char *id, *owner, *name, *digest, *manifest;
    uint64_t size_bytes;
};
/* *ret_is_new is false when the release was known; its row is untouched then. */
int template_insert(struct store *s, const struct template_new_row *t, bool *ret_is_new, struct sp_error *err);
int template_get(struct store *s, const char *owner, const char *name, const char *digest,
                 struct store_result **ret_res, struct template *ret, struct sp_error *err);
int template_list(struct store *s, const char *tenant_id, const char *name, const struct store_page *page,
                  struct store_result **ret_res, int *ret_n, struct sp_error *err);
/* The newest releases of one name. */
int template_releases(struct store *s, const char *owner, const char *name, unsigned limit,
                      struct store_result **ret_res, int *ret_n, struct sp_error *err);
int template_count(struct store *s, const char *owner, uint64_t *ret, struct sp_error *err);

struct template_tag {
    const char *tag, *digest;
    int64_t updated_ms;
};
void template_tag_row(const struct store_result *res, int row, struct template_tag *ret);
int template_tags(struct store *s, const char *owner, const char *name, struct store_result **ret_res, int *ret_n,
                  struct sp_error *err);
int template_tag_get(struct store *s, const char *owner, const char *name, const char *tag,
                     struct store_result **ret_res, struct template_tag *ret, struct sp_error *err);
/* SP_E_NOT_FOUND: no such release. */
int template_tag_set(struct store *s, const char *owner, const char *name, const char *tag, const char *digest,
                     struct sp_error *err);
int template_tag_delete(struct store *s, const char *owner, const char *name, const char *tag, struct sp_error *err);

struct template_uses {
    uint64_t releases;
    uint64_t sandboxes; /* not deleted */
    uint64_t others;    /* snapshots and pools */
    uint64_t tags;
};
/* Of one release (digest) or all of a name (digest NULL), which are locked. */
int template_uses(struct store *s, const char *owner, const char *name, const char *digest, struct template_uses *ret,
                  struct sp_error *err);
int template_delete(struct store *s, const char *owner, const char *name, const char *digest, struct sp_error *err);
