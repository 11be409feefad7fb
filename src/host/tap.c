/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a tap. Gives it no address, does not bring it up: see tap.h for what that guarantees. */
#include "host/tap.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>

int tap_create(const char *name, int *ret_fd, struct sp_error *err) {
    /* The namespace of a tap is the one the device was opened in. */
    _cleanup_close_ int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    struct ifreq req = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};

    if (fd < 0)
        return sp_error_errno(err, errno, "open", "/dev/net/tun");
    if (!text_copy(req.ifr_name, sizeof(req.ifr_name), name))
        return sp_error_set(err, SP_E_INTERNAL, "interface name %s is too long", name);
    if (ioctl(fd, TUNSETIFF, &req) < 0)
        return sp_error_errno(err, errno, "TUNSETIFF", "%s", name);
    /* Else the end of whoever closes it last waits for the kernel to take the device down; so its namespace does that, later. */
    if (ioctl(fd, TUNSETPERSIST, 1) < 0)
        return sp_error_errno(err, errno, "TUNSETPERSIST", "%s", name);
    *ret_fd = TAKE_FD(fd);
    return 0;
}
