/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer may ask of the broker (spec/node-protocol.md §2), parsed and checked: one table row a request, one row a
 * field. Pure: bytes in, struct out. A parsed request keeps every limit named here; anything else is an error, and the
 * peer that sent it is dropped.
 */
#pragma once
#include "base/digest.h"
#include "base/error.h"
#include "base/random.h"
#include <assert.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BROKER_PROTOCOL_VERSION 1
#define BROKER_MESSAGE_MAX (48 * 1024) /* bytes of one message, either way */
#define BROKER_CONFIG_MAX (32 * 1024)  /* bytes of a config, printed compactly */
#define BROKER_MANIFEST_MAX (16 * 1024)
#define BROKER_KNOWN_MAX 900 /* ids of one sweep; what fits a message */
#define BROKER_KEY_SIZE 33   /* 32 hex digits, or an id snp_… which is shorter */
static_assert(ID_SIZE <= BROKER_KEY_SIZE, "an id is a key");

enum request_type {
    REQUEST_HELLO,
    REQUEST_VM_START,
    REQUEST_VM_LOAD,
    REQUEST_VM_BIND,
    REQUEST_VM_SNAPSHOT,
    REQUEST_VM_STOP,
    REQUEST_VM_LIST,
    REQUEST_SNAPSHOT_SEAL,
    REQUEST_SNAPSHOT_COPY,
    REQUEST_SNAPSHOT_STAT,
    REQUEST_SNAPSHOT_LIST,
    REQUEST_SNAPSHOT_REMOVE,
    REQUEST_TEMPLATE_LIST,
    REQUEST_TEMPLATE_REMOVE,
    REQUEST_ENGINE_LIST,
    REQUEST_ENGINE_REMOVE,
    REQUEST_STAT,
    REQUEST_SWEEP,
    REQUEST_COUNT_
};

enum request_mode { MODE_CLONE, MODE_TEMPLATE_BOOT, MODE_BLANK, MODE_BOOT };
enum request_kernel { KERNEL_STOCK, KERNEL_LEAN };
enum request_accelerator { ACCELERATOR_TCG, ACCELERATOR_KVM };
enum request_then { THEN_RESUME, THEN_STOP };
enum request_content { CONTENT_FULL, CONTENT_DISK }; /* of a snapshot: memory, devices and disk, or the disk alone */
extern const char *const request_then_names[], *const request_content_names[];
extern const char *const request_mode_names[], *const request_kernel_names[], *const request_accelerator_names[];

/* Only the fields of its own row are set; the others are zero. */
struct request {
    enum request_type type;
    bool has_seq;
    uint64_t seq;
    uint64_t version;
    char id[ID_SIZE];
    char bind[ID_SIZE], sandbox[ID_SIZE]; /* of a sandbox; bind: "" when not given */
    char after[BROKER_KEY_SIZE];          /* "" when not given */
    uint64_t then, content;               /* the enums above */
    char to[BROKER_KEY_SIZE];
    uint64_t mode, kernel, accelerator; /* the enums above */
    char template[SHA256_HEX_SIZE];
    char engine[SHA256_HEX_SIZE];
    char snapshot[BROKER_KEY_SIZE];
    uint64_t vcpus, memory_mib;
    json_t *config;         /* owned */
    json_t *manifest;       /* owned */
    char (*known)[ID_SIZE]; /* owned */
    size_t n_known;
};

/* On failure *ret is zeroed, except for has_seq and seq when they could be read. */
int request_parse(const char *data, size_t len, struct request *ret, struct sp_error *err);
void request_done(struct request *request);
const char *request_type_name(enum request_type type);
bool request_hex_is_valid(const char *hex, size_t digits); /* exactly so many lowercase hex digits */
/* Of a snapshot: a template's or a sandbox's (snp_…). */
bool request_key_is_valid(const char *key);
bool request_key_is_sandboxes(const char *key);
/* Of a VM of any kind: sbx_…, tpb_…, spr_…. */
bool request_id_is_valid(const char *id);
