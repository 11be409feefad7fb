/* SPDX-License-Identifier: Apache-2.0 */
/* Engines as requests see them: the host's own, which one a VM gets, which are in use, removing them. */
#pragma once
#include "broker/broker.h"

/* Looks at the host's own. None is no reason not to start: everything but starting VMs is possible without. */
void engine_ops_discover(struct broker *broker);
void engine_ops_free(struct broker *broker);
/* Names in the record of a VM that is about to start what it runs on: the snapshot's engine, or the host's own when there is no
 * snapshot or it names none. */
int engine_ops_choose(struct broker *broker, const struct snapshot_entry *snapshot, struct vm_record *record,
                      struct sp_error *err);
/* Whether a blank may be loaded with it. SP_E_CONFLICT in field "engine": it takes a VMM of its own. */
int engine_ops_fits(const struct vm_record *blank, const struct snapshot_entry *snapshot, struct sp_error *err);
bool engine_ops_is_current(const struct broker *broker, const char *digest);
/* One that was checked since this broker was started, or NULL. */
const struct engine_entry *engine_ops_known(const struct broker *broker, const char *digest);
void engine_ops_checked(struct broker *broker, const struct vm_record *record, const char *qemu);
void engine_ops_list(struct broker *broker, const struct reply_to *to);
void engine_ops_remove(struct broker *broker, const char *digest, const struct reply_to *to);
