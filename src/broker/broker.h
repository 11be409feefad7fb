/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The broker's whole state. requests.c answers what the loop hands it, vm_ops.c, sweep.c and store_ops.c run the jobs
 * behind it, main.c starts and ends it all.
 */
#pragma once
#include "broker/engine.h"
#include "broker/job.h"
#include "broker/layout.h"
#include "broker/server.h"
#include "broker/vm_table.h"
#include "host/cgroup.h"
#include "host/jail_filter.h"
#include "model/settings.h"

/* Whether a snapshot's memory and disk have been hashed since this broker started. Nothing is loaded before. */
enum snapshot_trust { TRUST_UNCHECKED, TRUST_CHECKING, TRUST_GOOD, TRUST_BROKEN, TRUST_REMOVING };
struct snapshot_entry {
    char key[BROKER_KEY_SIZE];
    enum snapshot_trust trust;
    bool tried;          /* by store_ops_check_all() */
    bool scattered;      /* its memory is in very many extents */
    struct sp_error why; /* BROKEN: what is wrong; UNCHECKED: why the last check came to nothing */
    char engine[SHA256_HEX_SIZE],
        qemu_version[RECORD_VERSION_SIZE]; /* what it is restored with; "": whatever there is */
    bool engine_unknown;                   /* its manifest could not be read */
    struct snapshot_entry *next;
};

struct broker {
    struct settings settings;
    struct layout layout;
    struct cgroup_root *cgroups;
    struct jail_filter filter;
    char boot_id[PROCESS_BOOT_ID_SIZE];
    bool test_mode; /* --enable-faults */
    bool has_kvm;
    int reactor;
    struct server *server;
    struct jobs *jobs;
    struct vm_table vms;
    struct snapshot_entry *snapshots;
    struct copy_op *copies;                  /* under way */
    bool packing;                            /* a memory file is written anew */
    char removing_template[SHA256_HEX_SIZE]; /* "" when none is */
    struct engine engine;                    /* the host's own; without a digest there is none, and why is said by: */
    struct sp_error engine_missing;
    struct engine_entry *engines_checked;  /* bundles whose bytes this broker has seen to be right */
    char removing_engine[SHA256_HEX_SIZE]; /* "" when none is */
};

/* From the server, for every request that was permitted (requests.c). */
void broker_on_request(void *ctx, struct request *request, const struct reply_to *to);
