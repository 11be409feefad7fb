/* SPDX-License-Identifier: Apache-2.0 */
/* What is said to space-vm on control.sock. */
#include "base/json.h"
#include "fuzz.h"
#include "vm/request.h"
#include "vm/vm_config.h"
#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sp_error err = {0};
    struct request request;
    size_t n_fds = size > 0 ? data[0] % 5 : 0;
    if (size == 0)
        return 0;
    if (request_parse((const char *)data + 1, size - 1, n_fds, data[0] & 0x80, &request, &err) == 0) {
        struct vm_config c = {.mode = VM_MODE_BLANK};
        assert(request.kind != REQUEST_NONE);
        assert((request.kind != REQUEST_LOAD && request.kind != REQUEST_SNAPSHOT) || (data[0] & 0x80));
        assert(request.kind != REQUEST_LOAD || n_fds > 0);
        assert(request.kind != REQUEST_SNAPSHOT || request.disk_alone == (n_fds == 0));
        if (request.kind == REQUEST_LOAD)
            (void)vm_config_load(&c, request.body, &err);
        if (request.kind == REQUEST_IDENTIFY)
            (void)vm_config_identity(&c, request.body, &err);
        vm_config_done(&c);
    } else {
        assert(request.kind == REQUEST_NONE && !request.body);
    }
    request_done(&request);
    return 0;
}
