/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state directory as the broker sees it (spec/node-protocol.md §1): one descriptor a directory, held for life, so
 * that nothing is looked up by path twice. Also the files that are not below it: kernels, space-vm, the preload.
 */
#pragma once
#include "base/error.h"
#include "host/store_fs.h"
#include "model/settings.h"
#include <stdbool.h>

struct layout {
    int store, templates, snapshots, sandboxes, engines; /* directories */
    int run, run_vm, log;
    char run_path[SETTINGS_PATH_MAX + 16], run_vm_path[SETTINGS_PATH_MAX + 16];
    char store_path[SETTINGS_PATH_MAX + 16], image_path[SETTINGS_PATH_MAX + 16];
    const char *kernel_dir; /* borrowed from the settings */
    /* Programs, opened once: a VM is started from what was there when the broker started. */
    int vm_program;         /* space-vm */
    bool vm_program_static; /* needs no loader, so its root holds nothing */
    int preload;
};

#define LAYOUT_DISK "disk.img"
#define LAYOUT_MEMORY "memory"
#define LAYOUT_DEVICES "devices"
#define LAYOUT_MANIFEST "manifest.json"
#define LAYOUT_RECORD "vm.json"

struct layout_programs {
    const char *vm, *preload; /* NULL: beside this program, else in libexec */
};

void layout_init(struct layout *layout); /* every descriptor -1 */
void layout_close(struct layout *layout);
/* First: where everything is; needs no directory to be there. */
void layout_name(struct layout *layout, const struct settings *settings);
struct store_fs layout_store_fs(const struct layout *layout, const struct settings *settings);
/* Makes the directories outside the store, with their modes; opens run, run/vm and log. */
int layout_open_run(struct layout *layout, const struct settings *settings, struct sp_error *err);
/* Then: mounts the store, makes its directories, opens them and the programs. */
int layout_open(struct layout *layout, const struct settings *settings, const struct layout_programs *programs,
                enum store_fs_kind *ret_kind, struct sp_error *err);

struct layout_boot_files {
    int kernel, initrd; /* O_PATH; readable by anyone */
};
int layout_open_boot_files(const struct layout *layout, const char *profile, struct layout_boot_files *ret,
                           struct sp_error *err);
