/* SPDX-License-Identifier: Apache-2.0 */
/* The guest's initramfs: our agent as /init, and the kernel's modules where it needs any. Made on this host for each
 * kernel profile, so that agent and host always match and a template is any root file system as it is. */
#pragma once
#include "base/error.h"
#include "model/settings.h"

/* Writes <kernel_dir>/<profile>/initrd.cpio for every profile that is there, when it would differ from what is there now.
 * *ret_profiles counts the profiles; none is SP_E_UNSUPPORTED saying how to get a kernel. */
int initrd_prepare(const struct settings *s, const char *agent_path, unsigned *ret_profiles, struct sp_error *err);
