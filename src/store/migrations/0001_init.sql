-- SPDX-License-Identifier: Apache-2.0
-- The control plane's whole memory. Desired state is in sandboxes (state, node_id) and operations; observed state is what
-- nodes reported (ready, error, timings, released_at). Texts that hold JSON nobody queries are text, so that they come back
-- as they were.

CREATE TABLE tenants (
    id text PRIMARY KEY,
    name text NOT NULL CONSTRAINT tenants_name UNIQUE,
    max_sandboxes bigint NOT NULL,
    max_vcpus bigint NOT NULL,
    max_memory_mib bigint NOT NULL,
    max_sessions_per_sandbox bigint NOT NULL,
    requests_per_second bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Management tokens. Only SHA-256 of the text is here; a rotated one keeps its old hash until the grace is over.
CREATE TABLE tokens (
    id text PRIMARY KEY,
    tenant_id text NOT NULL REFERENCES tenants ON DELETE CASCADE,
    name text,
    hash bytea NOT NULL CONSTRAINT tokens_hash UNIQUE CHECK (length(hash) = 32),
    previous_hash bytea CHECK (length(previous_hash) = 32),
    previous_until timestamptz,
    scopes integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    rotated_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
);
CREATE UNIQUE INDEX tokens_previous_hash ON tokens (previous_hash) WHERE previous_hash IS NOT NULL;
CREATE INDEX tokens_tenant ON tokens (tenant_id, created_at DESC, id DESC);

-- Template releases. owner: a tenant's id, or '' for those shared with all.
CREATE TABLE templates (
    id text PRIMARY KEY,
    owner text NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    size_bytes bigint NOT NULL,
    manifest text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT templates_release UNIQUE (owner, name, digest)
);
CREATE INDEX templates_list ON templates (owner, created_at DESC, id DESC);

CREATE TABLE template_tags (
    owner text NOT NULL,
    name text NOT NULL,
    tag text NOT NULL,
    template_id text NOT NULL CONSTRAINT template_tags_template REFERENCES templates,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (owner, name, tag)
);
CREATE INDEX template_tags_template_id ON template_tags (template_id);

CREATE TABLE nodes (
    id text PRIMARY KEY,
    boot_id text NOT NULL,
    hostname text NOT NULL,
    version text NOT NULL,
    accelerator text NOT NULL,
    vmm text NOT NULL,
    kernels text NOT NULL,
    vcpus bigint NOT NULL,
    memory_mib bigint NOT NULL,
    disk_mib bigint NOT NULL,
    max_sandboxes bigint NOT NULL,
    gateway_url text NOT NULL,
    desired_revision bigint NOT NULL DEFAULT 1,
    registered_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE sandboxes (
    id text PRIMARY KEY,
    tenant_id text NOT NULL REFERENCES tenants ON DELETE CASCADE,
    name text,
    state text NOT NULL CHECK (state IN ('creating', 'running', 'pausing', 'paused', 'suspending', 'suspended', 'waking',
                                         'deleting', 'deleted', 'failed')),
    ready boolean NOT NULL DEFAULT false,
    -- null once a deleted sandbox's release was removed; while it is not deleted this keeps the release
    template_id text CONSTRAINT sandboxes_template REFERENCES templates ON DELETE SET NULL,
    template_name text NOT NULL,
    template_tag text,
    digest text NOT NULL,
    vcpus bigint NOT NULL,
    memory_mib bigint NOT NULL,
    metadata jsonb NOT NULL,
    env text NOT NULL,
    hostname text NOT NULL,
    machine_id text NOT NULL,
    generation bigint NOT NULL DEFAULT 1,
    node_id text REFERENCES nodes,
    released_at timestamptz, -- when the node said that it holds nothing of it any more
    operation_id text,       -- the lifecycle operation on its way
    delete_operation_id text,
    error_code text,
    error_message text,
    accelerator text,
    kernel text,
    vmm text,
    timings text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    deleted_at timestamptz,
    CHECK (NOT ready OR state = 'running'),
    CHECK ((state = 'failed') = (error_code IS NOT NULL) OR state IN ('deleting', 'deleted')),
    CHECK (state <> 'deleted' OR deleted_at IS NOT NULL)
);
CREATE INDEX sandboxes_list ON sandboxes (tenant_id, created_at DESC, id DESC) WHERE state <> 'deleted';
CREATE INDEX sandboxes_list_deleted ON sandboxes (tenant_id, created_at DESC, id DESC) WHERE state = 'deleted';
CREATE INDEX sandboxes_node ON sandboxes (node_id) WHERE released_at IS NULL;
CREATE INDEX sandboxes_template_id ON sandboxes (template_id) WHERE template_id IS NOT NULL;
CREATE INDEX sandboxes_moving ON sandboxes (id) WHERE state IN ('creating', 'deleting');
CREATE INDEX sandboxes_deleted_at ON sandboxes (deleted_at) WHERE state = 'deleted';

-- Copy of src/model/transitions.c; a unit test holds them equal.
CREATE TABLE sandbox_moves (from_state text, to_state text, PRIMARY KEY (from_state, to_state));
INSERT INTO sandbox_moves VALUES
    ('creating', 'running'), ('creating', 'failed'), ('creating', 'deleting'), ('creating', 'deleted'),
    ('running', 'pausing'), ('running', 'suspending'), ('running', 'failed'), ('running', 'deleting'),
    ('pausing', 'paused'), ('pausing', 'running'), ('pausing', 'failed'), ('pausing', 'deleting'),
    ('paused', 'waking'), ('paused', 'suspending'), ('paused', 'failed'), ('paused', 'deleting'),
    ('suspending', 'suspended'), ('suspending', 'running'), ('suspending', 'paused'), ('suspending', 'failed'),
    ('suspending', 'deleting'),
    ('suspended', 'waking'), ('suspended', 'deleting'),
    ('waking', 'running'), ('waking', 'paused'), ('waking', 'suspended'), ('waking', 'failed'), ('waking', 'deleting'),
    ('deleting', 'deleted'),
    ('failed', 'waking'), ('failed', 'deleting'), ('failed', 'deleted');

CREATE FUNCTION check_sandbox_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> OLD.state
       AND NOT EXISTS (SELECT 1 FROM sandbox_moves WHERE from_state = OLD.state AND to_state = NEW.state) THEN
        RAISE EXCEPTION 'sandbox % may not move from % to %', OLD.id, OLD.state, NEW.state;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER sandbox_move BEFORE UPDATE OF state ON sandboxes FOR EACH ROW EXECUTE FUNCTION check_sandbox_move();

CREATE TABLE operations (
    id text PRIMARY KEY,
    tenant_id text NOT NULL,
    sandbox_id text NOT NULL REFERENCES sandboxes ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('create', 'delete')),
    state text NOT NULL CHECK (state IN ('pending', 'running', 'succeeded', 'failed')),
    error_code text,
    error_message text,
    accepted_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    deadline_at timestamptz,
    CHECK ((state IN ('succeeded', 'failed')) = (finished_at IS NOT NULL)),
    CHECK ((state = 'failed') = (error_code IS NOT NULL))
);
-- One lifecycle operation at a time.
CREATE UNIQUE INDEX operations_one_at_a_time ON operations (sandbox_id) WHERE state IN ('pending', 'running');
CREATE INDEX operations_list ON operations (tenant_id, accepted_at DESC, id DESC);
CREATE INDEX operations_sandbox ON operations (sandbox_id, accepted_at DESC, id DESC);
CREATE INDEX operations_deadline ON operations (deadline_at) WHERE state IN ('pending', 'running');
CREATE INDEX operations_finished_at ON operations (finished_at) WHERE state IN ('succeeded', 'failed');

CREATE TABLE sessions (
    id text PRIMARY KEY,
    tenant_id text NOT NULL,
    sandbox_id text NOT NULL REFERENCES sandboxes ON DELETE CASCADE,
    process_id text NOT NULL UNIQUE,
    token_hash bytea NOT NULL CHECK (length(token_hash) = 32),
    state text NOT NULL CHECK (state IN ('created', 'started', 'exited', 'lost')),
    command text NOT NULL, -- the request's fields as JSON
    attach_url text NOT NULL,
    pid bigint,
    exit_code bigint,
    signal bigint,
    reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    exited_at timestamptz,
    expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_list ON sessions (sandbox_id, created_at DESC, id DESC);
CREATE INDEX sessions_over ON sessions (expires_at) WHERE state <> 'started';

-- Kept answers. The row is inserted first and filled in the same transaction, so a row that can be seen is whole.
CREATE TABLE idempotency (
    tenant_id text NOT NULL REFERENCES tenants ON DELETE CASCADE,
    key_hash bytea NOT NULL,
    route text NOT NULL, -- method and path
    body_hash bytea NOT NULL,
    status integer,
    answer bytea, -- the body; encrypted when sealed
    sealed boolean NOT NULL DEFAULT false,
    operation_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, key_hash, route)
);
CREATE INDEX idempotency_created_at ON idempotency (created_at);

CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    tenant_id text NOT NULL,
    token_id text NOT NULL,
    action text NOT NULL, -- operationId of the route
    object_id text,
    peer text NOT NULL
);
CREATE INDEX audit_at ON audit (at);

-- Work for the reconciler: a sandbox that a mutation touched. Taken with SKIP LOCKED; the periodic pass finds what is lost.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sandbox_id text NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
