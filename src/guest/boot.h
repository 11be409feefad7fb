/* SPDX-License-Identifier: Apache-2.0 */
/* From the initramfs to the template's root: file systems, modules, root disk, loopback, the channel's port. Everything
 * here runs once, in order, before the agent's loop; a failure of an essential step ends the machine. */
#pragma once

#define BOOT_CGROUP_ROOT "/sys/fs/cgroup"

void boot_system(void);   /* returns with the template's root as / */
int boot_open_port(void); /* the channel's port, non-blocking; waits up to 5 s for it */
