/* SPDX-License-Identifier: Apache-2.0 */
/* Request targets, percent-coding, query strings, route patterns and absolute URLs. Pure and total over any bytes. */
#include "wire/url.h"
#include <assert.h>
#include <string.h>

bool url_target_split(const char *target, struct url_target *ret) {
    if (target[0] != '/')
        return false;
    size_t path_len = strcspn(target, "?");
    const char *query = target + path_len;
    if (*query)
        query++;
    *ret = (struct url_target){.path = target, .path_len = path_len, .query = query, .query_len = strlen(query)};
    return true;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One decoded byte at src[*i], which moves on; -1 for a bad escape or NUL. */
static int next_byte(const char *src, size_t len, size_t *i, bool plus_is_space) {
    char c = src[(*i)++];
    if (c == '+' && plus_is_space)
        return ' ';
    if (c != '%')
        return c ? (unsigned char)c : -1;
    if (len - *i < 2)
        return -1;
    int high = hex_digit(src[*i]), low = hex_digit(src[*i + 1]);
    *i += 2;
    if (high < 0 || low < 0 || (high | low) == 0)
        return -1;
    return high << 4 | low;
}

bool url_decode(char *dst, size_t size, const char *src, size_t len, bool plus_is_space, size_t *ret_len) {
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        int c = next_byte(src, len, &i, plus_is_space);
        if (c < 0 || n + 1 >= size)
            return false;
        dst[n++] = (char)c;
    }
    if (size == 0)
        return false;
    dst[n] = '\0';
    if (ret_len)
        *ret_len = n;
    return true;
}

/* A segment without its slashes: decodes, is no '.' or '..', hides no separator. */
static bool segment_is_clean(const char *s, size_t len) {
    size_t n = 0, dots = 0;
    for (size_t i = 0; i < len;) {
        bool escaped = s[i] == '%';
        int c = next_byte(s, len, &i, false);
        if (c < 0 || c == '\\' || (escaped && c == '/'))
            return false;
        n++;
        dots += c == '.';
    }
    return !(dots == n && (n == 1 || n == 2));
}

bool url_path_is_clean(const char *path, size_t len) {
    if (len == 0 || path[0] != '/')
        return false;
    for (size_t at = 1; at <= len;) {
        const char *slash = memchr(path + at, '/', len - at);
        size_t n = slash ? (size_t)(slash - path) - at : len - at;
        if ((n == 0 && slash) || !segment_is_clean(path + at, n))
            return false;
        at += n + 1;
    }
    return true;
}

static bool add_param(struct url_params *p, const char *name, size_t name_len, const char *value, size_t len) {
    assert(p->n < URL_PARAMS_MAX);
    if (len == 0 || !url_decode(p->item[p->n].value, sizeof(p->item[0].value), value, len, false, NULL))
        return false;
    p->item[p->n].name = name;
    p->item[p->n++].name_len = name_len;
    return true;
}

bool url_match(const char *pattern, const char *path, size_t len, struct url_params *ret) {
    const char *end = path + len;
    ret->n = 0;
    ret->tail = NULL;
    ret->tail_len = 0;
    while (*pattern == '/') {
        if (strcmp(pattern, "/{...}") == 0) {
            ret->tail = path;
            ret->tail_len = (size_t)(end - path);
            return path == end || *path == '/';
        }
        if (path == end || *path != '/')
            return false;
        pattern++;
        path++;
        size_t want = strcspn(pattern, "/");
        const char *slash = memchr(path, '/', (size_t)(end - path));
        size_t have = (size_t)((slash ? slash : end) - path);
        if (want > 2 && pattern[0] == '{') {
            if (!add_param(ret, pattern + 1, want - 2, path, have))
                return false;
        } else if (want != have || memcmp(pattern, path, want) != 0) {
            return false;
        }
        pattern += want;
        path += have;
    }
    return path == end;
}

const char *url_param(const struct url_params *p, const char *name) {
    size_t len = strlen(name);
    for (unsigned i = 0; i < p->n; i++)
        if (p->item[i].name_len == len && memcmp(p->item[i].name, name, len) == 0)
            return p->item[i].value;
    return NULL;
}

int url_query_next(const char *query, size_t len, size_t *pos, char *key, size_t key_size, char *value,
                   size_t value_size) {
    while (*pos < len && query[*pos] == '&')
        (*pos)++;
    if (*pos >= len)
        return 0;
    const char *pair = query + *pos;
    const char *amp = memchr(pair, '&', len - *pos);
    size_t n = amp ? (size_t)(amp - pair) : len - *pos;
    const char *eq = memchr(pair, '=', n);
    size_t key_len = eq ? (size_t)(eq - pair) : n;
    *pos += n;
    if (!url_decode(key, key_size, pair, key_len, true, NULL))
        return -SP_E_INVALID;
    if (!url_decode(value, value_size, eq ? eq + 1 : "", eq ? n - key_len - 1 : 0, true, NULL))
        return -SP_E_INVALID;
    return 1;
}

/* Whether an encoded key is `key`. */
static bool key_is(const char *src, size_t len, const char *key) {
    size_t k = 0;
    for (size_t i = 0; i < len; k++) {
        int c = next_byte(src, len, &i, true);
        if (c < 0 || (unsigned char)key[k] != c)
            return false;
    }
    return key[k] == '\0';
}

int url_query_get(const char *query, size_t len, const char *key, char *value, size_t size) {
    int found = 0;
    for (size_t at = 0; at < len;) {
        const char *pair = query + at;
        const char *amp = memchr(pair, '&', len - at);
        size_t n = amp ? (size_t)(amp - pair) : len - at;
        const char *eq = memchr(pair, '=', n);
        size_t key_len = eq ? (size_t)(eq - pair) : n;
        at += n + 1;
        if (n == 0 || !key_is(pair, key_len, key))
            continue;
        if (found || !url_decode(value, size, eq ? eq + 1 : "", eq ? n - key_len - 1 : 0, true, NULL))
            return -SP_E_INVALID;
        found = 1;
    }
    return found;
}

static int put_encoded(struct buf *out, const char *s, const char *also) {
    for (; *s; s++) {
        char c = *s;
        bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || strchr(also, c);
        int r = plain ? buf_append_byte(out, (uint8_t)c) : buf_printf(out, "%%%02X", (unsigned)(unsigned char)c);
        if (r < 0)
            return r;
    }
    return 0;
}

int url_put_encoded(struct buf *out, const char *s) {
    return put_encoded(out, s, "-._~");
}

int url_put_path(struct buf *out, const char *s) {
    return put_encoded(out, s, "-._~/");
}

int url_put_query(struct buf *out, const char *key, const char *value) {
    int r = buf_append_byte(out, memchr(out->data, '?', out->len) ? '&' : '?');
    if (r == 0)
        r = url_put_encoded(out, key);
    if (r == 0)
        r = buf_append_byte(out, '=');
    return r == 0 ? url_put_encoded(out, value) : r;
}

static bool parse_port(const char *s, uint16_t *ret) {
    uint32_t v = 0;
    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || v > 6553)
            return false;
        v = v * 10 + (uint32_t)(*s - '0');
    }
    if (v == 0 || v > 65535)
        return false;
    *ret = (uint16_t)v;
    return true;
}

/* Copies a host lower-cased; letters, digits and the bytes of `also` only. */
static bool copy_host(char host[URL_HOST_MAX + 1], const char *s, size_t len, const char *also) {
    if (len == 0 || len > URL_HOST_MAX)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (c >= 'A' && c <= 'Z')
            c = (char)(c | 0x20);
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c && strchr(also, c));
        if (!plain)
            return false;
        host[i] = c;
    }
    host[len] = '\0';
    return true;
}

bool url_parse_authority(const char *text, uint16_t fallback_port, char host[URL_HOST_MAX + 1], uint16_t *ret_port) {
    const char *rest;
    uint16_t port = fallback_port;
    if (text[0] == '[') {
        size_t len = strcspn(text + 1, "]");
        if (text[1 + len] != ']' || !memchr(text, ':', len) || !copy_host(host, text + 1, len, ":."))
            return false;
        rest = text + len + 2;
    } else {
        size_t len = strcspn(text, ":");
        if (!copy_host(host, text, len, "-._"))
            return false;
        rest = text + len;
    }
    if (*rest && (*rest != ':' || !parse_port(rest + 1, &port)))
        return false;
    *ret_port = port;
    return true;
}

static bool has_bad_byte(const char *s) {
    for (; *s; s++)
        if (*s <= ' ' || *s == 0x7f || *s == '#' || *s == '"' || *s == '<' || *s == '>')
            return true;
    return false;
}

int url_parse(const char *text, struct url *ret, struct sp_error *err) {
    struct url u = {.target = "/"};
    char authority[URL_HOST_MAX + 16];
    if (has_bad_byte(text))
        return sp_error_set(err, SP_E_INVALID, "URL holds a space, control byte, fragment or non-ASCII byte");
    if (strncmp(text, "unix:/", 6) == 0) {
        size_t len = strlen(text + 5);
        if (len > URL_HOST_MAX)
            return sp_error_set(err, SP_E_INVALID, "unix socket path in URL is too long");
        memcpy(u.host, text + 5, len + 1);
        u.scheme = URL_UNIX;
        *ret = u;
        return 0;
    }
    bool tls = strncmp(text, "https://", 8) == 0;
    if (!tls && strncmp(text, "http://", 7) != 0)
        return sp_error_set(err, SP_E_INVALID, "URL must begin with http://, https:// or unix:/");
    u.scheme = tls ? URL_HTTPS : URL_HTTP;
    text += tls ? 8 : 7;
    size_t len = strcspn(text, "/?");
    if (len >= sizeof(authority) || text[len] == '?')
        return sp_error_set(err, SP_E_INVALID, "URL has no valid host");
    memcpy(authority, text, len);
    authority[len] = '\0';
    if (!url_parse_authority(authority, tls ? 443 : 80, u.host, &u.port))
        return sp_error_set(err, SP_E_INVALID, "URL has no valid host and port");
    if (text[len])
        u.target = text + len;
    *ret = u;
    return 0;
}
