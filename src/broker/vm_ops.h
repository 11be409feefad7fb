/* SPDX-License-Identifier: Apache-2.0 */
/* Starting, loading, sealing, snapshotting and removing VMs: which job runs when, and who is told. See vm_table.h for the phases. */
#pragma once
#include "broker/broker.h"

void vm_ops_start(struct broker *broker, struct request *request, const struct reply_to *to);
void vm_ops_seal(struct broker *broker, struct request *request, const struct reply_to *to);
void vm_ops_load(struct broker *broker, struct request *request, const struct reply_to *to);
void vm_ops_bind(struct broker *broker, struct request *request, const struct reply_to *to);
void vm_ops_snapshot(struct broker *broker, struct request *request, const struct reply_to *to);
/* Removes everything of an id, known or not, once no other job is at it; then tells the waiter (copied). */
void vm_ops_remove(struct broker *broker, const char *id, const struct vm_waiter *waiter);
void vm_ops_stop(struct broker *broker, const char *id, const struct reply_to *to);
/* When a job of a VM has ended: its removal, if somebody waits for it. */
void vm_ops_settle(struct vm *vm);
/* A load whose snapshot has been checked (spare_ops.c). */
void vm_ops_launch_load(struct vm *vm);
void vm_ops_refuse_load(struct vm *vm, const struct sp_error *error);
/* The entry of a snapshot that may be started from; the error says why not. */
int vm_ops_source(struct broker *broker, const char *snapshot, struct snapshot_entry **ret, struct sp_error *err);
/* Goes on with the starts that waited for this snapshot to be checked. */
void vm_ops_snapshot_checked(struct broker *broker, const struct snapshot_entry *snapshot);
/* Removes every unknown id, then answers (sweep.c). */
void vm_ops_sweep(struct broker *broker, const struct request *request, const struct reply_to *to);
