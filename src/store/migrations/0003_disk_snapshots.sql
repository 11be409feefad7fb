-- SPDX-License-Identifier: Apache-2.0
-- Snapshots of the disk alone, and the start that begins with a boot.

ALTER TABLE snapshots
    ADD COLUMN content text NOT NULL DEFAULT 'full' CHECK (content IN ('full', 'disk')),
    -- what a suspended sandbox stands on, and the children of a fork go on from, holds memory
    ADD CONSTRAINT snapshots_disk CHECK (content = 'full' OR kind IN ('snapshot', 'checkpoint'));

ALTER TABLE sandboxes
    DROP CONSTRAINT sandboxes_start_kind_check,
    ADD CONSTRAINT sandboxes_start_kind_check CHECK (start_kind IN ('warm', 'blank', 'cold', 'boot'));
ALTER TABLE operations
    DROP CONSTRAINT operations_start_kind_check,
    ADD CONSTRAINT operations_start_kind_check CHECK (start_kind IN ('warm', 'blank', 'cold', 'boot'));
