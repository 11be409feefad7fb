/* SPDX-License-Identifier: Apache-2.0 */
/* Field tables, built from the limits. Order of rows is the order of the documentation. */
#include "model/requests.h"
#include "base/text.h"
#include "model/limits.h"

#define L(name) LIMIT_VALUE(name)
#define TABLE(rows) .fields = (rows), .n_fields = ARRAY_SIZE(rows)
#define NAME_FIELD(...)                                                                                                \
    { .name = "name", .type = FIELD_STRING, .min = 1, .max = L(name_bytes), .pattern = PATTERN_NAME, __VA_ARGS__ }
#define ENV_FIELD                                                                                                      \
    {                                                                                                                  \
        .name = "env", .type = FIELD_MAP, .entries = L(env_entries), .key_pattern = PATTERN_ENV_KEY,                   \
        .max = L(env_value_bytes), .total = L(env_total_bytes)                                                         \
    }
#define METADATA_FIELD(...)                                                                                            \
    {                                                                                                                  \
        .name = "metadata", .type = FIELD_MAP, .entries = L(metadata_entries), .key_pattern = PATTERN_METADATA_KEY,    \
        .max = L(metadata_value_bytes), .total = L(metadata_total_bytes), __VA_ARGS__                                  \
    }
#define TEMPLATE_NAME_FIELD(...)                                                                                       \
    {                                                                                                                  \
        .name = "name", .type = FIELD_STRING, .min = 1, .max = L(template_name_bytes),                                 \
        .pattern = PATTERN_TEMPLATE_NAME, __VA_ARGS__                                                                  \
    }
#define DIGEST_FIELD                                                                                                   \
    { .name = "digest", .type = FIELD_STRING, .required = true, .min = 1, .max = 64, .pattern = PATTERN_DIGEST }
#define PAGE_FIELDS                                                                                                    \
    {.name = "limit", .type = FIELD_UINT, .min = 1, .max = L(page_max)}, {                                             \
        .name = "cursor", .type = FIELD_STRING, .min = 1, .max = L(cursor_bytes)                                       \
    }

static const struct field resources_fields[] = {
    {.name = "vcpus", .type = FIELD_UINT, .min = 1, .max = L(vcpus_max)},
    {.name = "memory_mib", .type = FIELD_UINT, .min = L(memory_mib_min), .max = L(memory_mib_max)},
};
#define TEMPLATE_REF_FIELD(...)                                                                                        \
    {                                                                                                                  \
        .name = "template", .type = FIELD_STRING, .min = 1, .max = L(template_reference_bytes),                        \
        .pattern = PATTERN_TEMPLATE_REF, __VA_ARGS__                                                                   \
    }
#define SNAPSHOT_ID_FIELD(...)                                                                                         \
    { .name = "snapshot_id", .type = FIELD_STRING, .min = 1, .max = 32, .pattern = PATTERN_SNAPSHOT_ID, __VA_ARGS__ }
#define SECONDS_FIELD(name_)                                                                                           \
    { .name = name_, .type = FIELD_UINT, .nullable = true, .max = L(lifecycle_seconds) }
#define CONTENT_FIELD(...)                                                                                             \
    { .name = "content", .type = FIELD_STRING, .min = 1, .max = 8, .choices = "full|disk", __VA_ARGS__ }
static const struct field checkpoint_fields[] = {
    {.name = "every_s", .type = FIELD_UINT, .required = true, .nullable = true, .max = L(lifecycle_seconds)},
    CONTENT_FIELD(.nullable = true),
    {.name = "keep_last", .type = FIELD_UINT, .nullable = true, .max = L(checkpoint_keep_last)},
    {.name = "keep_hourly", .type = FIELD_UINT, .nullable = true, .max = L(checkpoint_keep_hourly)},
    {.name = "keep_daily", .type = FIELD_UINT, .nullable = true, .max = L(checkpoint_keep_daily)},
};
static const struct field lifecycle_fields[] = {
    SECONDS_FIELD("idle_pause_after_s"),
    SECONDS_FIELD("idle_suspend_after_s"),
    SECONDS_FIELD("delete_after_s"),
    SECONDS_FIELD("max_life_s"),
    {.name = "wake_on_traffic", .type = FIELD_BOOL, .nullable = true},
    {.name = "checkpoint", .type = FIELD_OBJECT, .nullable = true, TABLE(checkpoint_fields)},
};
#define LIFECYCLE_FIELD                                                                                                \
    { .name = "lifecycle", .type = FIELD_OBJECT, TABLE(lifecycle_fields) }

static const struct field sandbox_create_fields[] = {
    TEMPLATE_REF_FIELD(),
    SNAPSHOT_ID_FIELD(),
    LIFECYCLE_FIELD,
    NAME_FIELD(),
    METADATA_FIELD(),
    {.name = "resources", .type = FIELD_OBJECT, TABLE(resources_fields)},
    ENV_FIELD,
};
const struct field_table request_sandbox_create = {TABLE(sandbox_create_fields)};

static const struct field sandbox_update_fields[] = {
    NAME_FIELD(.nullable = true),
    METADATA_FIELD(.nullable = true),
    LIFECYCLE_FIELD,
};
const struct field_table request_sandbox_update = {TABLE(sandbox_update_fields), .not_empty = true};

const struct field_table request_empty = {.may_be_missing = true};
static const struct field snapshot_create_fields[] = {NAME_FIELD(), METADATA_FIELD(), CONTENT_FIELD()};
const struct field_table request_snapshot_create = {TABLE(snapshot_create_fields), .may_be_missing = true};
static const struct field snapshot_update_fields[] = {NAME_FIELD(.nullable = true), METADATA_FIELD(.nullable = true)};
const struct field_table request_snapshot_update = {TABLE(snapshot_update_fields), .not_empty = true};
static const struct field fork_fields[] = {
    {.name = "count", .type = FIELD_UINT, .min = 1, .max = L(fork_count)},
    {.name = "name", .type = FIELD_STRING, .min = 1, .max = L(fork_name_bytes), .pattern = PATTERN_NAME},
    METADATA_FIELD(),
    ENV_FIELD,
};
const struct field_table request_fork = {TABLE(fork_fields), .may_be_missing = true};
static const struct field rollback_fields[] = {SNAPSHOT_ID_FIELD(.required = true)};
const struct field_table request_rollback = {TABLE(rollback_fields)};

static const struct field pool_create_fields[] = {
    TEMPLATE_REF_FIELD(.required = true),
    {.name = "resources", .type = FIELD_OBJECT, TABLE(resources_fields)},
    {.name = "size", .type = FIELD_UINT, .required = true, .max = L(pool_size)},
};
const struct field_table request_pool_create = {TABLE(pool_create_fields)};
static const struct field pool_update_fields[] = {
    {.name = "size", .type = FIELD_UINT, .required = true, .max = L(pool_size)},
};
const struct field_table request_pool_update = {TABLE(pool_update_fields)};

static const struct field pty_fields[] = {
    {.name = "cols", .type = FIELD_UINT, .required = true, .min = 1, .max = L(pty_size)},
    {.name = "rows", .type = FIELD_UINT, .required = true, .min = 1, .max = L(pty_size)},
};
static const struct field session_create_fields[] = {
    {.name = "command", .type = FIELD_STRING, .required = true, .min = 1, .max = L(command_bytes)},
    {.name = "args", .type = FIELD_STRINGS, .entries = L(args_items), .max = L(arg_bytes)},
    ENV_FIELD,
    {.name = "cwd", .type = FIELD_STRING, .min = 1, .max = L(cwd_bytes), .pattern = PATTERN_ABSOLUTE_PATH},
    {.name = "user", .type = FIELD_STRING, .min = 1, .max = L(user_bytes), .pattern = PATTERN_USER},
    {.name = "pty", .type = FIELD_OBJECT, TABLE(pty_fields)},
    {.name = "stdin", .type = FIELD_BOOL},
    {.name = "timeout_s", .type = FIELD_UINT, .min = 1, .max = L(timeout_s)},
    {.name = "on_disconnect", .type = FIELD_STRING, .min = 1, .max = 8, .choices = "keep|kill"},
};
const struct field_table request_session_create = {TABLE(session_create_fields), .total = L(command_total_bytes)};

static const struct field template_register_fields[] = {
    TEMPLATE_NAME_FIELD(.required = true),
    {.name = "tag", .type = FIELD_STRING, .min = 1, .max = L(template_name_bytes), .pattern = PATTERN_NAME},
    DIGEST_FIELD,
    {.name = "size_bytes", .type = FIELD_UINT, .required = true, .min = 1, .max = L(template_size_bytes)},
    {.name = "manifest", .type = FIELD_JSON, .required = true, .total = L(template_manifest_bytes)},
    {.name = "shared", .type = FIELD_BOOL},
};
const struct field_table request_template_register = {TABLE(template_register_fields)};

static const struct field template_tag_fields[] = {DIGEST_FIELD};
const struct field_table request_template_tag = {TABLE(template_tag_fields)};

static const struct field quota_fields[] = {
    {.name = "max_sandboxes", .type = FIELD_UINT, .max = 100000},
    {.name = "max_vcpus", .type = FIELD_UINT, .max = 1000000},
    {.name = "max_memory_mib", .type = FIELD_UINT, .max = 1000000000},
    {.name = "max_sessions_per_sandbox", .type = FIELD_UINT, .max = 10000},
    {.name = "requests_per_second", .type = FIELD_UINT, .min = 1, .max = 100000},
};
static const struct field tenant_create_fields[] = {
    NAME_FIELD(.required = true),
    {.name = "quotas", .type = FIELD_OBJECT, TABLE(quota_fields)},
};
const struct field_table request_tenant_create = {TABLE(tenant_create_fields)};
static const struct field tenant_update_fields[] = {
    NAME_FIELD(),
    {.name = "quotas", .type = FIELD_OBJECT, TABLE(quota_fields)},
};
const struct field_table request_tenant_update = {TABLE(tenant_update_fields), .not_empty = true};

static const struct field token_create_fields[] = {
    NAME_FIELD(),
    {.name = "scopes", .type = FIELD_STRINGS, .required = true, .entries = L(token_scopes), .min = 1, .max = 32},
    {.name = "expires_in_s", .type = FIELD_UINT, .min = 1, .max = L(token_expires_s)},
    {.name = "tenant_id", .type = FIELD_STRING, .min = 1, .max = 32, .pattern = PATTERN_TENANT_ID},
};
const struct field_table request_token_create = {TABLE(token_create_fields)};
static const struct field token_rotate_fields[] = {
    {.name = "grace_s", .type = FIELD_UINT, .max = L(token_grace_s)},
};
const struct field_table request_token_rotate = {TABLE(token_rotate_fields), .may_be_missing = true};

/* ---- queries ---- */

static const struct field sandboxes_fields[] = {
    {.name = "state",
     .type = FIELD_STRING,
     .min = 1,
     .max = 16,
     .choices = "creating|running|pausing|paused|suspending|suspended|waking|deleting|deleted|failed"},
    NAME_FIELD(),
    {.name = "metadata",
     .type = FIELD_MAP,
     .entries = L(metadata_filters),
     .key_pattern = PATTERN_METADATA_KEY,
     .max = L(metadata_value_bytes)},
    PAGE_FIELDS,
};
const struct field_table query_sandboxes = {TABLE(sandboxes_fields)};
static const struct field snapshots_fields[] = {
    {.name = "sandbox_id", .type = FIELD_STRING, .min = 1, .max = 32, .pattern = PATTERN_SANDBOX_ID},
    {.name = "kind", .type = FIELD_STRING, .min = 1, .max = 16, .choices = "snapshot|suspend|fork|checkpoint"},
    {.name = "state", .type = FIELD_STRING, .min = 1, .max = 16, .choices = "creating|ready|failed|deleting"},
    PAGE_FIELDS,
};
const struct field_table query_snapshots = {TABLE(snapshots_fields)};
static const struct field operations_fields[] = {
    {.name = "sandbox_id", .type = FIELD_STRING, .min = 1, .max = 32, .pattern = PATTERN_SANDBOX_ID},
    {.name = "state", .type = FIELD_STRING, .min = 1, .max = 16, .choices = "pending|running|succeeded|failed"},
    PAGE_FIELDS,
};
const struct field_table query_operations = {TABLE(operations_fields)};
static const struct field operation_fields[] = {{.name = "wait", .type = FIELD_UINT, .max = L(wait_seconds)}};
const struct field_table query_operation = {TABLE(operation_fields)};
static const struct field templates_fields[] = {TEMPLATE_NAME_FIELD(), PAGE_FIELDS};
const struct field_table query_templates = {TABLE(templates_fields)};
static const struct field page_fields[] = {PAGE_FIELDS};
const struct field_table query_page = {TABLE(page_fields)};

const struct field_table *const request_tables[] = {
    &request_sandbox_create,  &request_sandbox_update,
    &request_empty,           &request_snapshot_create,
    &request_snapshot_update, &request_fork,
    &request_rollback,        &request_pool_create,
    &request_pool_update,     &query_snapshots,
    &request_session_create,  &request_template_register,
    &request_template_tag,    &request_tenant_create,
    &request_tenant_update,   &request_token_create,
    &request_token_rotate,    &query_sandboxes,
    &query_operations,        &query_operation,
    &query_templates,         &query_page,
};
const size_t request_tables_count = ARRAY_SIZE(request_tables);

int request_check_lifecycle(const json_t *lifecycle, struct sp_error *err) {
    const json_t *every = json_object_get(json_object_get(lifecycle, "checkpoint"), "every_s");
    json_int_t s = json_integer_value(every);
    if (s != 0 && (uint64_t)s < L(checkpoint_every_s))
        return sp_error_field(err, SP_E_INVALID, "lifecycle.checkpoint.every_s",
                              "lifecycle.checkpoint.every_s must be 0 or at least %d, is %" JSON_INTEGER_FORMAT,
                              (int)L(checkpoint_every_s), s);
    return 0;
}

int request_check_manifest(json_t *manifest, struct sp_error *err) {
    static const struct field fields[] = {
        {.name = "manifest.resources.vcpus", .type = FIELD_UINT, .min = 1, .max = L(vcpus_max)},
        {.name = "manifest.resources.memory_mib",
         .type = FIELD_UINT,
         .min = L(memory_mib_min),
         .max = L(memory_mib_max)},
    };
    json_t *resources = json_object_get(manifest, "resources");
    json_t *shown = json_object();
    int r;
    if (json_object_get(resources, "vcpus"))
        (void)json_object_set(shown, fields[0].name, json_object_get(resources, "vcpus"));
    if (json_object_get(resources, "memory_mib"))
        (void)json_object_set(shown, fields[1].name, json_object_get(resources, "memory_mib"));
    r = validate_body(&(struct field_table){TABLE(fields)}, shown, err);
    json_decref(shown);
    return r;
}
