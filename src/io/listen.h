/* SPDX-License-Identifier: Apache-2.0 */
/* TCP listening sockets and the text form of addresses. Descriptors are CLOEXEC and non-blocking. */
#pragma once
#include "base/error.h"
#include <stdint.h>
#include <sys/socket.h>

#define ADDRESS_SIZE 80 /* "[ipv6%scope]:port" with NUL */

/* "127.0.0.1:7070", "[::1]:0", "localhost:7070", "*:7070" (IPv4 any). Numeric addresses and localhost only: a daemon
 * must not hang in a resolver. Port 0 lets the kernel choose. */
int address_parse(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len, struct sp_error *err);
/* "127.0.0.1:7070", "[::1]:7070", "unix:/path", "unix:" for an unnamed one. Returns dst. */
const char *address_format(char dst[ADDRESS_SIZE], const struct sockaddr_storage *sa, socklen_t len);
/* Address a socket is bound to / connected to, as text; "?" when there is none. */
const char *address_local(char dst[ADDRESS_SIZE], int fd);
const char *address_peer(char dst[ADDRESS_SIZE], int fd);
/* Port of a bound TCP socket, 0 when it has none. */
uint16_t listen_port(int fd);
/* bind + listen, SO_REUSEADDR. *ret_fd is the caller's. Address in use: SP_E_CONFLICT. */
int listen_tcp(const char *host_port, int *ret_fd, struct sp_error *err);
