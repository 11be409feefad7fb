/* SPDX-License-Identifier: Apache-2.0 */
/* ELF program headers for the interpreter, its own words for the rest. */
#include "host/loader.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "io/spawn.h"
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM_HEADERS_MAX 64
#define LIST_TIMEOUT_MS 10000
#define LIST_OUTPUT_MAX (64u * 1024u)

static int read_interpreter(int fd, const Elf64_Phdr *segment, char dst[LOADER_PATH_SIZE], struct sp_error *err) {
    char path[LOADER_PATH_SIZE];
    size_t size = (size_t)segment->p_filesz;

    if (size < 2 || segment->p_filesz > sizeof(path) ||
        pread(fd, path, size, (off_t)segment->p_offset) != (ssize_t)size || path[0] != '/' || path[size - 1] != '\0')
        return sp_error_set(err, SP_E_INVALID, "the program's interpreter has no usable path");
    (void)text_copy(dst, LOADER_PATH_SIZE, path);
    return 0;
}

int loader_interpreter(int fd, char dst[LOADER_PATH_SIZE], struct sp_error *err) {
    Elf64_Ehdr header;

    if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header) ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > PROGRAM_HEADERS_MAX)
        return sp_error_set(err, SP_E_INVALID, "it is no 64 bit ELF program");
    for (unsigned i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment;
        off_t at = (off_t)header.e_phoff + (off_t)(i * sizeof(segment));
        if (pread(fd, &segment, sizeof(segment), at) != (ssize_t)sizeof(segment))
            return sp_error_set(err, SP_E_INVALID, "its program headers cannot be read");
        if (segment.p_type == PT_INTERP)
            return read_interpreter(fd, &segment, dst, err);
    }
    dst[0] = '\0';
    return 0;
}

/* "\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f…)"; the interpreter and the kernel's own have no arrow. */
static int parse_line(char *line, loader_found *found, void *ctx, struct sp_error *err) {
    static const char arrow[] = " => ";
    char *name = line + strspn(line, "\t "), *path = strstr(name, arrow), *end;

    if (!path)
        return 0;
    *path = '\0';
    path += sizeof(arrow) - 1;
    end = strstr(path, " (0x");
    if (path[0] != '/' || !end)
        return sp_error_set(err, SP_E_NOT_FOUND, "the library %.80s is not to be found", name);
    *end = '\0';
    if (!*name || strchr(name, '/') || strlen(name) >= LOADER_NAME_SIZE || strlen(path) >= LOADER_PATH_SIZE)
        return sp_error_set(err, SP_E_UNSUPPORTED, "a library of the name %.80s is more than is handled", name);
    return found(ctx, name, path, err);
}

int loader_parse(const char *text, size_t len, loader_found *found, void *ctx, struct sp_error *err) {
    char line[LOADER_NAME_SIZE + LOADER_PATH_SIZE + 64];
    const char *end = text + len;
    int r = 0;

    while (text < end && r == 0) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((newline ? newline : end) - text);
        if (n >= sizeof(line) || memchr(text, '\0', n))
            return sp_error_set(err, SP_E_PROTOCOL, "the dynamic loader wrote a line that is none");
        memcpy(line, text, n);
        line[n] = '\0';
        r = parse_line(line, found, ctx, err);
        text += n + (newline != NULL);
    }
    return r;
}

int loader_list(const char *interpreter, const char *path, uid_t uid, loader_found *found, void *ctx,
                struct sp_error *err) {
    const char *const argv[] = {interpreter, "--list", path, NULL}, *const env[] = {"LC_ALL=C", NULL};
    const struct spawn_options options = {.argv = argv, .env = env, .set_ids = true, .uid = uid, .gid = uid};
    _cleanup_buf_ struct buf out = {0};
    int r;

    buf_init(&out, LIST_OUTPUT_MAX);
    r = spawn_run(&options, NULL, 0, deadline_in_ms(LIST_TIMEOUT_MS), &out, NULL, err);
    if (r == 0 && out.failed)
        r = sp_error_set(err, SP_E_TOO_LARGE, "it has more libraries than are handled");
    if (r == 0)
        r = loader_parse(out.data, out.len, found, ctx, err);
    return r < 0 ? sp_error_wrap(err, "libraries of %s", path) : 0;
}
