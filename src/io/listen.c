/* SPDX-License-Identifier: Apache-2.0 */
/* TCP listeners and addresses as text. Numeric addresses only: nothing here can wait. */
#include "io/listen.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "wire/url.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#define BACKLOG 1024

/* Cuts "host:port"; the port may be 0, which no URL may have. */
static bool split(const char *text, char *host, size_t size, char *service, size_t service_size) {
    const char *colon = strrchr(text, ':');
    uint64_t port;
    if (!colon || colon == text || !text_to_u64(colon + 1, 0, 65535, &port))
        return false;
    if (!text_copy(service, service_size, colon + 1))
        return false;
    size_t len = (size_t)(colon - text);
    if (text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    } else if (memchr(text, ':', len)) {
        return false;
    }
    if (len == 0 || len >= size)
        return false;
    memcpy(host, text, len);
    host[len] = '\0';
    return true;
}

int address_parse(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len, struct sp_error *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    struct addrinfo *list;
    char host[ADDRESS_SIZE], service[8];
    if (!split(text, host, sizeof(host), service, sizeof(service)))
        return sp_error_set(err, SP_E_INVALID, "address must be host:port or [ipv6]:port, got \"%.100s\"", text);
    const char *name = host;
    if (strcmp(host, "localhost") == 0)
        name = "127.0.0.1";
    else if (strcmp(host, "*") == 0)
        name = "0.0.0.0";
    if (getaddrinfo(name, service, &hints, &list) != 0)
        return sp_error_set(err, SP_E_INVALID, "\"%.80s\" is no numeric address", host);
    memcpy(ret, list->ai_addr, list->ai_addrlen);
    *ret_len = list->ai_addrlen;
    freeaddrinfo(list);
    return 0;
}

const char *address_format(char dst[ADDRESS_SIZE], const struct sockaddr_storage *sa, socklen_t len) {
    char host[64] = "?", service[8] = "?";
    if (sa->ss_family == AF_UNIX) {
        const struct sockaddr_un *un = (const struct sockaddr_un *)sa;
        size_t max = len > offsetof(struct sockaddr_un, sun_path) ? len - offsetof(struct sockaddr_un, sun_path) : 0;
        size_t n = strnlen(un->sun_path, max);
        (void)snprintf(dst, ADDRESS_SIZE, "unix:%.*s", (int)(n < 70 ? n : 70), un->sun_path);
        return dst;
    }
    if (getnameinfo((const struct sockaddr *)sa, len, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        (void)snprintf(dst, ADDRESS_SIZE, "?");
    else
        (void)snprintf(dst, ADDRESS_SIZE, sa->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, service);
    return dst;
}

const char *address_local(char dst[ADDRESS_SIZE], int fd) {
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    if (getsockname(fd, (struct sockaddr *)&sa, &len) == 0)
        return address_format(dst, &sa, len);
    (void)text_copy(dst, ADDRESS_SIZE, "?");
    return dst;
}

const char *address_peer(char dst[ADDRESS_SIZE], int fd) {
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    if (getpeername(fd, (struct sockaddr *)&sa, &len) == 0)
        return address_format(dst, &sa, len);
    (void)text_copy(dst, ADDRESS_SIZE, "?");
    return dst;
}

uint16_t listen_port(int fd) {
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    if (getsockname(fd, (struct sockaddr *)&sa, &len) < 0)
        return 0;
    if (sa.ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)&sa)->sin_port);
    return sa.ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)&sa)->sin6_port) : 0;
}

int listen_tcp(const char *host_port, int *ret_fd, struct sp_error *err) {
    static const int on = 1;
    struct sockaddr_storage sa = {0};
    socklen_t len;
    int r = address_parse(host_port, &sa, &len, err);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return sp_error_errno(err, errno, "socket", "cannot listen on %s", host_port);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (const struct sockaddr *)&sa, len) < 0) {
        int in_use = errno == EADDRINUSE;
        r = sp_error_errno(err, errno, "bind", "cannot listen on %s", host_port);
        if (in_use && err)
            err->code = SP_E_CONFLICT;
        return in_use ? -SP_E_CONFLICT : r;
    }
    if (listen(fd, BACKLOG) < 0)
        return sp_error_errno(err, errno, "listen", "cannot listen on %s", host_port);
    *ret_fd = TAKE_FD(fd);
    return 0;
}
