/* SPDX-License-Identifier: Apache-2.0 */
/* The handlers behind the routes (routes.c), one file a kind of object. Their contract is request.h's. */
#pragma once
#include "control/request.h"

/* handle_sandboxes.c */
int handle_sandbox_create(struct request *rq);
int handle_sandbox_list(struct request *rq);
int handle_sandbox_get(struct request *rq);
int handle_sandbox_update(struct request *rq);
int handle_sandbox_delete(struct request *rq);
/* handle_accepted.c */
int refresh_accepted(struct request *rq);
/* handle_lifecycle.c */
int handle_pause(struct request *rq);
int handle_suspend(struct request *rq);
int handle_wake(struct request *rq);
int handle_snapshot(struct request *rq);
int handle_rollback(struct request *rq);
/* handle_fork.c */
int handle_fork(struct request *rq);
/* handle_snapshots.c */
int handle_snapshot_list(struct request *rq);
int handle_snapshot_get(struct request *rq);
int handle_snapshot_update(struct request *rq);
int handle_snapshot_delete(struct request *rq);
/* handle_pools.c */
int handle_pool_create(struct request *rq);
int handle_pool_list(struct request *rq);
int handle_pool_update(struct request *rq);
int handle_pool_delete(struct request *rq);
/* handle_operations.c */
int handle_operation_list(struct request *rq);
int handle_operation_get(struct request *rq);
int refresh_operation(struct request *rq);
/* handle_sessions.c */
int handle_session_create(struct request *rq);
int handle_session_list(struct request *rq);
int handle_session_get(struct request *rq);
/* handle_templates.c */
int handle_template_register(struct request *rq);
int handle_template_list(struct request *rq);
int handle_template_get(struct request *rq);
int handle_template_delete(struct request *rq);
int handle_release_get(struct request *rq);
int handle_release_delete(struct request *rq);
int handle_tag_get(struct request *rq);
int handle_tag_set(struct request *rq);
int handle_tag_delete(struct request *rq);
/* handle_tenants.c */
int handle_tenant_create(struct request *rq);
int handle_tenant_list(struct request *rq);
int handle_tenant_get(struct request *rq);
int handle_tenant_update(struct request *rq);
int handle_tenant_delete(struct request *rq);
/* handle_tokens.c */
int handle_token_create(struct request *rq);
int handle_token_list(struct request *rq);
int handle_token_revoke(struct request *rq);
int handle_token_rotate(struct request *rq);
/* handle_service.c */
int handle_node_list(struct request *rq);
int handle_health(struct request *rq);
int handle_ready(struct request *rq);
int handle_openapi(struct request *rq);
int handle_metrics(struct request *rq);
/* handle_internal.c */
int handle_register(struct request *rq);
int handle_desired(struct request *rq);
int refresh_desired(struct request *rq);
int handle_observed(struct request *rq);
int handle_node_snapshots(struct request *rq);
int handle_clock(struct request *rq);
/* handle_attach.c */
int handle_attach(struct request *rq);
int handle_session_state(struct request *rq);
