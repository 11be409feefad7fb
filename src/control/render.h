/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as the JSON of spec/openapi.yaml. Every function gives a new object; out of memory aborts. */
#pragma once
#include "base/json.h"
#include "store/nodes.h"
#include "store/operations.h"
#include "store/pools.h"
#include "store/sandboxes.h"
#include "store/sessions.h"
#include "store/snapshots.h"
#include "store/templates.h"
#include "store/tenants.h"
#include "store/tokens.h"

json_t *render_sandbox(const struct sandbox *b);
json_t *render_operation(const struct operation *o);
json_t *render_snapshot(const struct snapshot *x);
json_t *render_pool(const struct pool *p);
json_t *render_session(const struct session *x);
json_t *render_template(const struct template *t);
json_t *render_template_tag(const char *name, const struct template_tag *t);
json_t *render_tenant(const struct tenant *t);
json_t *render_token(const struct token *t);
json_t *render_node(const struct node *n);
/* {items, next_cursor}; takes items. cursor "": there is no further page. */
json_t *render_page(json_t *items, const char *cursor);

/* Members; a NULL text is null, a time of 0 is null. */
void put_text(json_t *obj, const char *key, const char *value);
void put_int(json_t *obj, const char *key, int64_t value);
void put_bool(json_t *obj, const char *key, bool value);
void put_time(json_t *obj, const char *key, int64_t ms);
void put_new(json_t *obj, const char *key, json_t *value);
/* JSON text out of the database; `fallback` (taken) when it is NULL or unreadable. */
json_t *json_of_text(const char *text, json_t *fallback);
