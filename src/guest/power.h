/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the guest. */
#pragma once

/* Kills every command, writes everything back and ends the machine. A machine without power management cannot be
 * switched off, so this is a restart: the VMM runs with -no-reboot and exits. */
_Noreturn void power_off(void);
/* Something without which the guest is no use has failed: logged, then the machine ends, so that the host sees it. */
_Noreturn void power_fatal(const char *what, int err);
