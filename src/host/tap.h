/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sandbox's network card on the host's side: one tap in a network namespace of its own.
 *
 * Nothing passes it, and no packet filter is needed to say so. The namespace is born with a loopback that is down; the
 * only other interface ever made in it is this tap, also left down, without an address, route or neighbour. The kernel
 * refuses a frame written to a tap that is down (EIO) and sends none to it. No interface connects the namespace to any
 * other one, so there is nothing a frame could be forwarded to even if the tap were up.
 *
 * The namespace has no name and no process in it: the tap's descriptor alone keeps it, and the kernel takes the tap down with it,
 * so neither can be left behind.
 */
#pragma once
#include "base/error.h"

/* Makes the tap in the caller's network namespace, which must have been unshared (CLONE_NEWNET) for it.
 * IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, one queue, persistent within its namespace. */
int tap_create(const char *name, int *ret_fd, struct sp_error *err);
