/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every configuration key of the product, in one struct; the table with types, defaults, ranges and docs is in
 * settings.c and feeds the parser, --help and docs/reference/configuration.md. `space up` writes the resolved values
 * to <state_dir>/etc/space.conf and starts every daemon with --config of that file.
 */
#pragma once
#include "base/config.h"
#include "base/error.h"

#define SETTINGS_PATH_MAX 255

struct settings {
    char state_dir[SETTINGS_PATH_MAX + 1]; /* absolute; default /var/lib/space; at most 48 bytes (unix socket paths) */
    char node_id[64 + 1];                  /* default "local" */
    char control_listen[64 + 1];           /* public management API, host:port; default 127.0.0.1:7070 */
    char internal_listen[64 + 1];          /* internal API for nodes and gateways; default 127.0.0.1:7071 */
    char gateway_listen[64 + 1];           /* data plane; default 127.0.0.1:7072 */
    char gateway_url[SETTINGS_PATH_MAX + 1]; /* how clients reach the data plane; default http://<gateway_listen> */
    char internal_urls[512 + 1];             /* comma-separated internal APIs, one per control replica */
    char internal_token_file[SETTINGS_PATH_MAX + 1]; /* default <state_dir>/etc/internal_token */
    char database_url[512 + 1];                      /* empty: private cluster in <state_dir>/db */
    char accelerator[32];                            /* auto|kvm|tcg */
    char kernel[32];                                 /* auto|stock|lean: auto takes lean when it is there */
    char kernel_dir[SETTINGS_PATH_MAX + 1];          /* holds stock/ and lean/; default <state_dir>/kernels */
    char qemu[SETTINGS_PATH_MAX + 1]; /* path of qemu-system-x86_64; default /usr/bin/qemu-system-x86_64 */
    uint64_t uid_base;                /* first of 8192 uids that are ours alone; default 720000 */
    uint64_t store_size_mib;          /* size of the loop-mounted btrfs when one is made; default 65536 (sparse) */
    uint64_t disk_reserve_mib;        /* free space below which no sandbox is admitted; default 2048 */
    uint64_t memory_reserve_mib;      /* host memory never given to sandboxes; default 1024 */
    uint64_t max_sandboxes;           /* per node; default 256 */
    uint64_t create_timeout_s;        /* deadline of a create operation, cold template boot included; default 120 */
    uint64_t session_retention_s;     /* how long an exited process is kept with its output; default 3600 */
    uint64_t output_window_kib;       /* retained window per stream of a process in the guest; default 256 */
    uint64_t blank_vmms;              /* VMMs kept started for each size in use; default 2, 0: none */
    uint64_t pool_demand_max;         /* warm VMs kept for a template in demand; default 4, 0: configured pools only */
    uint64_t garbage_grace_s;         /* how long a snapshot nobody knows is kept; default 3600 */
    char log_level[32];               /* debug|info|warn|error */
};

/* Fixed uids below uid_base; also the gids. */
enum settings_uid {
    SETTINGS_UID_CONTROL = 1,
    SETTINGS_UID_NODE = 2,
    SETTINGS_UID_GATEWAY = 3,
    SETTINGS_UID_BUILD = 4,
    SETTINGS_UID_VM_FIRST = 64,
    SETTINGS_UID_VM_LAST = 8191
};

extern const struct config_row settings_rows[];
extern const size_t settings_rows_count;

/* The whole of docs/reference/configuration.md. */
int settings_print_markdown(struct buf *out);

/* Defaults, then --config FILE (or $SPACE_CONFIG, or /etc/space/space.conf when it exists), environment, flags.
 * Derived defaults (gateway_url, internal_urls, *_file, kernel_dir) are filled in last.
 * --help prints and exits 0. *ret_next: index of the first argument that is no flag. */
int settings_load(struct settings *s, int argc, char **argv, const char *usage, int *ret_next, struct sp_error *err);
