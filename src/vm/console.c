/* SPDX-License-Identifier: Apache-2.0 */
/* The guest's serial console: the last 64 KiB in a ring, whatever the guest prints. Nobody waits for it. */
#include "vm/vm.h"
#include <string.h>
#include <sys/socket.h>

void console_append(struct console *c, const char *data, size_t len) {
    if (len > VM_CONSOLE_RING) { /* only the end would stay */
        c->total += len - VM_CONSOLE_RING;
        data += len - VM_CONSOLE_RING;
        len = VM_CONSOLE_RING;
    }
    while (len > 0) {
        size_t at = (size_t)(c->total % VM_CONSOLE_RING), n = VM_CONSOLE_RING - at;
        if (n > len)
            n = len;
        memcpy(c->ring + at, data, n);
        c->total += n;
        data += n;
        len -= n;
    }
}

size_t console_tail(const struct console *c, char *dst, size_t size) {
    uint64_t have = c->total < VM_CONSOLE_RING ? c->total : VM_CONSOLE_RING;
    size_t n = have < size ? (size_t)have : size;
    for (size_t i = 0; i < n; i++)
        dst[i] = c->ring[(c->total - n + i) % VM_CONSOLE_RING];
    return n;
}

void console_read(struct vm *vm) {
    char chunk[4096];
    for (int rounds = 0; rounds < 16; rounds++) { /* a flood gets its turn again after everybody else */
        ssize_t n = recv(vm->vmm->fd_console, chunk, sizeof(chunk), MSG_DONTWAIT);
        if (n == 0)
            vm->console_closed = true;
        if (n <= 0)
            return;
        console_append(&vm->console, chunk, (size_t)n);
    }
}
