/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every limit of the management API and the control plane, by name: value, unit, the error it gives, and why.
 * docs/reference/limits.md is printed from this table; validation rows and SQL take their numbers from here.
 */
#pragma once
#include "base/buf.h"
#include <stddef.h>
#include <stdint.h>

/* X(name, value, unit, error code, text) */
#define LIMITS(X)                                                                                                      \
    X(body_bytes, 262144, "bytes", "too_large", "request body of the management API")                                  \
    X(json_depth, 32, "levels", "malformed", "nesting of a JSON body")                                                 \
    X(internal_body_bytes, 4194304, "bytes", "too_large", "body of the internal API, either way")                      \
    X(idempotency_key_bytes, 255, "bytes", "invalid", "`Idempotency-Key`: 1 to 255 printable ASCII characters")        \
    X(wait_seconds, 60, "seconds", "invalid", "`wait` of an operation and of `Prefer`")                                \
    X(page_default, 50, "items", "invalid", "`limit` of a list when it is not given")                                  \
    X(page_max, 200, "items", "invalid", "`limit` of a list, from 1")                                                  \
    X(cursor_bytes, 128, "bytes", "invalid", "`cursor` of a list")                                                     \
    X(metadata_filters, 8, "filters", "invalid", "`metadata.<key>` filters of one list call")                          \
    X(name_bytes, 64, "bytes", "invalid", "name of a sandbox, snapshot, tenant or token")                              \
    X(metadata_entries, 32, "entries", "invalid", "metadata of a sandbox")                                             \
    X(metadata_key_bytes, 64, "bytes", "invalid", "key of a metadata entry")                                           \
    X(metadata_value_bytes, 256, "bytes", "invalid", "value of a metadata entry")                                      \
    X(metadata_total_bytes, 8192, "bytes", "invalid", "keys and values of all metadata together")                      \
    X(env_entries, 64, "entries", "invalid", "environment variables of a sandbox or a session")                        \
    X(env_key_bytes, 128, "bytes", "invalid", "name of an environment variable")                                       \
    X(env_value_bytes, 4096, "bytes", "invalid", "value of an environment variable")                                   \
    X(env_total_bytes, 8192, "bytes", "invalid", "names and values of all variables together")                         \
    X(vcpus_max, 32, "vCPUs", "invalid", "`resources.vcpus`, from 1; default 1")                                       \
    X(memory_mib_min, 128, "MiB", "invalid", "least `resources.memory_mib`")                                           \
    X(memory_mib_max, 65536, "MiB", "invalid", "`resources.memory_mib`; default 512")                                  \
    X(template_reference_bytes, 160, "bytes", "invalid", "`template` of a create call")                                \
    X(template_name_bytes, 64, "bytes", "invalid", "name or tag of a template")                                        \
    X(template_size_bytes, 1099511627776, "bytes", "invalid", "`size_bytes` of a template")                            \
    X(template_manifest_bytes, 16384, "bytes", "invalid", "manifest of a template, as compact JSON")                   \
    X(template_releases, 1000, "releases", "quota_exceeded", "template releases of a tenant")                          \
    X(command_bytes, 4096, "bytes", "invalid", "`command` of a session")                                               \
    X(args_items, 256, "items", "invalid", "`args` of a session")                                                      \
    X(arg_bytes, 32768, "bytes", "invalid", "one item of `args`")                                                      \
    X(command_total_bytes, 57344, "bytes", "invalid", "command, arguments and environment of a session together")      \
    X(cwd_bytes, 1024, "bytes", "invalid", "`cwd` of a session; an absolute path")                                     \
    X(user_bytes, 32, "bytes", "invalid", "`user` of a session")                                                       \
    X(pty_size, 4096, "cells", "invalid", "`pty.cols` and `pty.rows`, from 1")                                         \
    X(timeout_s, 604800, "seconds", "invalid", "`timeout_s` of a session, from 1")                                     \
    X(attachment_seconds, 86400, "seconds", "gone", "life of an attachment token")                                     \
    X(token_scopes, 8, "items", "invalid", "scopes of a token, from 1")                                                \
    X(token_expires_s, 315360000, "seconds", "invalid", "`expires_in_s` of a token, from 1")                           \
    X(token_grace_s, 604800, "seconds", "invalid", "`grace_s` of a rotation; default 3600")                            \
    X(tokens_per_tenant, 1000, "tokens", "quota_exceeded", "tokens of a tenant that are neither revoked nor expired")  \
    X(quota_sandboxes, 100, "sandboxes", "quota_exceeded", "default `max_sandboxes` of a tenant")                      \
    X(quota_vcpus, 400, "vCPUs", "quota_exceeded", "default `max_vcpus` of a tenant")                                  \
    X(quota_memory_mib, 409600, "MiB", "quota_exceeded", "default `max_memory_mib` of a tenant")                       \
    X(quota_sessions, 64, "sessions", "quota_exceeded",                                                                \
      "default `max_sessions_per_sandbox`: sessions that have not ended")                                              \
    X(quota_requests, 200, "requests/s", "rate_limited",                                                               \
      "default `requests_per_second` of a tenant on each replica; bursts of twice as many")                            \
    X(waiting_requests, 512, "requests", "unavailable", "requests waiting for a database connection, each replica")    \
    X(node_lost_ms, 30000, "ms", "", "silence after which a node counts as lost: its sandboxes are not ready")         \
    X(desired_hold_s, 20, "seconds", "", "longest hold of a node's poll for its desired state")                        \
    X(desired_sandboxes, 4096, "sandboxes", "no_capacity", "sandboxes of one node")                                    \
    X(observed_sandboxes, 1024, "sandboxes", "invalid", "sandboxes in one report of a node")                           \
    X(nodes, 1000, "nodes", "quota_exceeded", "registered nodes")                                                      \
    X(lifecycle_seconds, 31536000, "seconds", "invalid", "each time of `lifecycle`")                                   \
    X(checkpoint_every_s, 60, "seconds", "invalid", "least `lifecycle.checkpoint.every_s`; 0 turns it off")            \
    X(checkpoint_keep_last, 100, "checkpoints", "invalid", "`lifecycle.checkpoint.keep_last`")                         \
    X(checkpoint_keep_hourly, 168, "hours", "invalid", "`lifecycle.checkpoint.keep_hourly`")                           \
    X(checkpoint_keep_daily, 366, "days", "invalid", "`lifecycle.checkpoint.keep_daily`")                              \
    X(fork_count, 100, "sandboxes", "invalid", "`count` of a fork, from 1; default 1")                                 \
    X(fork_name_bytes, 60, "bytes", "invalid", "`name` of a fork: `-100` must fit behind it")                          \
    X(snapshots_per_tenant, 10000, "snapshots", "quota_exceeded", "snapshots of a tenant")                             \
    X(pools, 100, "pools", "quota_exceeded", "pools in all")                                                           \
    X(pool_size, 256, "machines", "invalid", "`size` of a pool")                                                       \
    X(pause_timeout_s, 60, "seconds", "deadline_exceeded", "deadline of pause, and of wake from `paused`")             \
    X(snapshot_timeout_s, 300, "seconds", "deadline_exceeded",                                                         \
      "deadline of suspend, snapshot, fork, rollback, and of wake from a snapshot")                                    \
    X(snapshots_gone, 1000, "snapshots", "", "snapshots a node is told to remove at a time")                           \
    X(observed_snapshots, 4096, "snapshots", "invalid", "snapshot ids in one call of a node")                          \
    X(keep_idempotency_h, 25, "hours", "", "kept answers of `Idempotency-Key`")                                        \
    X(keep_operations_h, 168, "hours", "not_found", "operations after their end")                                      \
    X(keep_sessions_h, 168, "hours", "not_found", "sessions after their end")                                          \
    X(keep_deleted_h, 168, "hours", "not_found", "sandboxes after their deletion, with their operations")              \
    X(keep_failed_snapshots_h, 168, "hours", "not_found", "snapshots that failed")                                     \
    X(keep_tokens_h, 720, "hours", "not_found", "tokens after revocation or expiry")                                   \
    X(keep_audit_h, 2160, "hours", "", "audit records")

enum limit {
#define X(name, value, unit, code, text) LIMIT_##name,
    LIMITS(X)
#undef X
        LIMIT_COUNT_
};

/* The value as a constant: LIMIT_VALUE(body_bytes). */
enum limit_value {
#define X(name, value, unit, code, text) LIMIT_VALUE_##name = (value),
    LIMITS(X)
#undef X
};
#define LIMIT_VALUE(name) ((uint64_t)LIMIT_VALUE_##name)

struct limit_row {
    const char *name;
    uint64_t value;
    const char *unit;
    const char *code; /* problem code, "" when it gives none */
    const char *text;
};
const struct limit_row *limit_row(enum limit l);
/* The whole of docs/reference/limits.md. */
int limits_print_markdown(struct buf *out);
