/* SPDX-License-Identifier: Apache-2.0 */
/* What `ld.so --list` wrote: names without a slash and absolute paths come out, bounded, or it is refused with a reason. */
#include "fuzz.h"
#include "host/loader.h"
#include <string.h>

static int found(void *ctx, const char *name, const char *path, struct sp_error *err) {
    (void)ctx;
    (void)err;
    FUZZ_CHECK(*name && !strchr(name, '/') && strlen(name) < LOADER_NAME_SIZE);
    FUZZ_CHECK(*path == '/' && strlen(path) < LOADER_PATH_SIZE);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sp_error err = {0};
    if (loader_parse((const char *)data, size, found, NULL, &err) < 0)
        FUZZ_CHECK(err.code != SP_OK && err.text[0]);
    return 0;
}
