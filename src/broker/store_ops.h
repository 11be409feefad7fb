/* SPDX-License-Identifier: Apache-2.0 */
/* Templates and snapshots as requests see them: which are trusted, which are in use, removing them. */
#pragma once
#include "broker/broker.h"

/* The entry of a snapshot that exists; NULL when there is none. */
struct snapshot_entry *store_ops_snapshot(struct broker *broker, const char *key);
/* Hashes it whole, unless that was done or is under way; vm_ops_snapshot_checked() follows. */
void store_ops_check(struct broker *broker, struct snapshot_entry *snapshot);
/* Does so for every snapshot there is, one after the other. */
void store_ops_check_all(struct broker *broker);
void store_ops_sealed(struct broker *broker, const char *key);
void store_ops_remove_snapshot(struct broker *broker, const char *key, const struct reply_to *to);
void store_ops_remove_template(struct broker *broker, const char *digest, const struct reply_to *to);
/* copy_ops.c: */
void store_ops_copy(struct broker *broker, struct request *request, const struct reply_to *to);
void store_ops_stat(struct broker *broker, const char *key, const struct reply_to *to);
void store_ops_list_snapshots(struct broker *broker, const char *after, const struct reply_to *to);
/* Answers a request to make a snapshot that is there already. */
void store_ops_stat_existing(struct broker *broker, const char *key, const struct reply_to *to);
/* So many extents are slow: it is to be written anew once no VM uses it. */
void store_ops_note_extents(struct broker *broker, const char *key, uint64_t extents);
/* Does that with one, if there is one: call when a VM has gone. */
void store_ops_pack_next(struct broker *broker);
bool store_ops_is_made(const struct broker *broker, const char *key);   /* by a seal, a VM's snapshot or a copy */
bool store_ops_is_copied(const struct broker *broker, const char *key); /* is the source of a copy */
void store_ops_list(struct broker *broker, const struct reply_to *to);
void store_ops_free(struct broker *broker);
