/* SPDX-License-Identifier: Apache-2.0 */
/* The field tables of every request body and query of the management API; spec/openapi.yaml says the same for clients. */
#pragma once
#include "model/validate.h"

extern const struct field_table request_sandbox_create, request_sandbox_update, request_empty, request_snapshot_create,
    request_snapshot_update, request_fork, request_rollback, request_pool_create, request_pool_update,
    request_session_create, request_template_register, request_template_tag, request_tenant_create,
    request_tenant_update, request_token_create, request_token_rotate;

/* Queries: FIELD_MAP "metadata" stands for metadata.<key>. */
extern const struct field_table query_sandboxes, query_snapshots, query_operations, query_operation, query_templates,
    query_page;

/* All of the above, for the fuzz target. */
extern const struct field_table *const request_tables[];
extern const size_t request_tables_count;

/* What the tables cannot say of a `lifecycle`; NULL is fine. */
int request_check_lifecycle(const json_t *lifecycle, struct sp_error *err);

/* The resources a template's manifest names as defaults must be in range; errors name manifest.resources.… */
int request_check_manifest(json_t *manifest, struct sp_error *err);
