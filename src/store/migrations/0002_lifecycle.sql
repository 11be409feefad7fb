-- SPDX-License-Identifier: Apache-2.0
-- Pause, suspend, wake, snapshots, forks, rollback, pools, and what happens by itself.

-- The clock of the policies. Its offset is moved by tests only; everything else goes by now().
CREATE TABLE policy_clock (id integer PRIMARY KEY CHECK (id = 1), offset_s bigint NOT NULL);
INSERT INTO policy_clock VALUES (1, 0);
CREATE FUNCTION policy_now() RETURNS timestamptz LANGUAGE sql STABLE AS
    $$ SELECT now() + (SELECT offset_s FROM policy_clock WHERE id = 1) * interval '1 second' $$;

-- Copy of src/model/transitions.c; a unit test holds them equal.
INSERT INTO sandbox_moves VALUES
    ('running', 'waking');

ALTER TABLE sandboxes
    ADD COLUMN lifecycle text NOT NULL DEFAULT '{"idle_pause_after_s": 0, "idle_suspend_after_s": 21600, "delete_after_s": 0, "max_life_s": 0, "wake_on_traffic": true, "checkpoint": null}',
    -- the least of its idle times, its life and the time between checkpoints, in seconds; null: none. Only to find those that
    -- are worth a look
    ADD COLUMN idle_s bigint DEFAULT 21600,
    ADD COLUMN life_s bigint,
    ADD COLUMN checkpoint_s bigint,
    ADD COLUMN born_at timestamptz NOT NULL DEFAULT policy_now(),
    ADD COLUMN active_at timestamptz NOT NULL DEFAULT policy_now(),
    ADD COLUMN node_active_at timestamptz, -- as the node said it last
    ADD COLUMN streams bigint NOT NULL DEFAULT 0,
    ADD COLUMN checkpoint_at timestamptz,   -- of the last one that was begun, by the clock of the policies
    ADD COLUMN start_snapshot_id text,      -- what its VM is to be started from; null: the template
    ADD COLUMN last_snapshot_id text,       -- the last good one
    ADD COLUMN start_kind text CHECK (start_kind IN ('warm', 'blank', 'cold')),
    ADD COLUMN parent_sandbox_id text,
    ADD COLUMN parent_snapshot_id text,
    ADD COLUMN parent_at timestamptz;       -- when that snapshot was made
CREATE INDEX sandboxes_start_snapshot ON sandboxes (start_snapshot_id) WHERE start_snapshot_id IS NOT NULL AND state <> 'deleted';
CREATE INDEX sandboxes_last_snapshot ON sandboxes (last_snapshot_id) WHERE last_snapshot_id IS NOT NULL AND state <> 'deleted';

ALTER TABLE operations
    DROP CONSTRAINT operations_kind_check,
    ADD CONSTRAINT operations_kind_check
        CHECK (kind IN ('create', 'delete', 'pause', 'suspend', 'wake', 'snapshot', 'fork', 'rollback')),
    ADD COLUMN reason text NOT NULL DEFAULT 'client'
        CHECK (reason IN ('client', 'idle_pause', 'idle_suspend', 'max_life', 'delete_after', 'checkpoint', 'traffic')),
    ADD COLUMN from_state text,             -- of the sandbox, when it was accepted
    ADD COLUMN snapshot_id text,            -- the one it makes, or starts from
    ADD COLUMN fork_id text,                -- of a child's create: the fork it belongs to
    ADD COLUMN fork_index bigint,           -- its number among them
    ADD COLUMN timings text,                -- as the node said, JSON
    ADD COLUMN start_kind text CHECK (start_kind IN ('warm', 'blank', 'cold'));
CREATE INDEX operations_fork ON operations (fork_id) WHERE fork_id IS NOT NULL;
CREATE INDEX sandboxes_settled ON sandboxes (active_at) WHERE state IN ('running', 'paused', 'suspended', 'failed');

-- They outlive their sandbox, so nothing here refers to its row.
CREATE TABLE snapshots (
    id text PRIMARY KEY,
    tenant_id text NOT NULL,
    sandbox_id text NOT NULL,
    node_id text NOT NULL REFERENCES nodes,
    operation_id text,                      -- the one that makes it
    name text,
    kind text NOT NULL CHECK (kind IN ('snapshot', 'suspend', 'fork', 'checkpoint')),
    state text NOT NULL CHECK (state IN ('creating', 'ready', 'failed', 'deleting')),
    generation bigint NOT NULL,
    parent_id text,
    memory_bytes bigint,
    disk_bytes bigint,
    exclusive_bytes bigint,
    stall_us bigint,
    template_id text CONSTRAINT snapshots_template REFERENCES templates ON DELETE SET NULL,
    template_name text NOT NULL,
    template_tag text,
    digest text NOT NULL,
    vcpus bigint NOT NULL,
    memory_mib bigint NOT NULL,
    error_code text,
    error_message text,
    metadata jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    taken_at timestamptz NOT NULL DEFAULT policy_now(),
    used_at timestamptz NOT NULL DEFAULT now(), -- something was started from it, or is about to be
    ready_at timestamptz,
    CHECK (state <> 'failed' OR error_code IS NOT NULL),
    CHECK (state <> 'ready' OR ready_at IS NOT NULL)
);
CREATE INDEX snapshots_list ON snapshots (tenant_id, created_at DESC, id DESC);
CREATE INDEX snapshots_sandbox ON snapshots (sandbox_id, created_at DESC, id DESC);
CREATE INDEX snapshots_going ON snapshots (node_id) WHERE state = 'deleting';
CREATE INDEX snapshots_operation ON snapshots (operation_id) WHERE state = 'creating';
CREATE INDEX snapshots_of_the_platform ON snapshots (kind) WHERE state = 'ready' AND kind <> 'snapshot';
CREATE INDEX snapshots_template_id ON snapshots (template_id) WHERE template_id IS NOT NULL;

CREATE TABLE pools (
    id text PRIMARY KEY,
    template_id text NOT NULL CONSTRAINT pools_template REFERENCES templates,
    template_name text NOT NULL,
    template_tag text,
    digest text NOT NULL,
    vcpus bigint NOT NULL,
    memory_mib bigint NOT NULL,
    size bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pools_one_each UNIQUE (digest, vcpus, memory_mib)
);
-- What each node said of it last.
CREATE TABLE pool_nodes (
    pool_id text NOT NULL REFERENCES pools ON DELETE CASCADE,
    node_id text NOT NULL REFERENCES nodes ON DELETE CASCADE,
    warm bigint NOT NULL,
    filling bigint NOT NULL,
    target bigint NOT NULL,
    hits bigint NOT NULL,
    misses bigint NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pool_id, node_id)
);

ALTER TABLE nodes
    ADD COLUMN garbage_snapshots bigint,
    ADD COLUMN garbage_bytes bigint;
