/* SPDX-License-Identifier: Apache-2.0 */
/* A message to the broker: parses or is refused with a reason; what parses keeps the limits of the table. */
#include "broker/request.h"
#include "fuzz.h"
#include "vm/vm_config.h"
#include <string.h>

static void check_start(const struct request *r) {
    FUZZ_CHECK(r->mode <= MODE_BOOT);
    bool from_snapshot = r->mode == MODE_CLONE || r->mode == MODE_BOOT;
    FUZZ_CHECK(id_is_valid(r->id, from_snapshot ? "sbx" : r->mode == MODE_BLANK ? "spr" : "tpb"));
    FUZZ_CHECK((r->mode != MODE_BLANK) == request_hex_is_valid(r->template, SHA256_HEX_SIZE - 1));
    FUZZ_CHECK(from_snapshot == request_key_is_valid(r->snapshot));
    FUZZ_CHECK(r->vcpus >= 1 && r->vcpus <= VM_CONFIG_VCPUS_MAX);
    FUZZ_CHECK(r->memory_mib >= VM_CONFIG_MEMORY_MIB_MIN && r->memory_mib <= VM_CONFIG_MEMORY_MIB_MAX);
    FUZZ_CHECK(r->kernel <= KERNEL_LEAN && r->accelerator <= ACCELERATOR_KVM);
    FUZZ_CHECK(json_is_object(r->config));
}

static void check_lifecycle(const struct request *r) {
    if (r->type == REQUEST_SNAPSHOT_SEAL)
        FUZZ_CHECK(request_hex_is_valid(r->snapshot, BROKER_KEY_SIZE - 1));
    if (r->type == REQUEST_SNAPSHOT_REMOVE || r->type == REQUEST_SNAPSHOT_COPY || r->type == REQUEST_SNAPSHOT_STAT)
        FUZZ_CHECK(request_key_is_valid(r->snapshot));
    if (r->type == REQUEST_SNAPSHOT_COPY)
        FUZZ_CHECK(request_key_is_sandboxes(r->to));
    if (r->type == REQUEST_VM_LOAD)
        FUZZ_CHECK(id_is_valid(r->id, "spr") && request_key_is_valid(r->snapshot) && r->config &&
                   (!r->bind[0] || id_is_valid(r->bind, "sbx")));
    if (r->type == REQUEST_VM_BIND)
        FUZZ_CHECK(id_is_valid(r->id, "spr") && id_is_valid(r->sandbox, "sbx"));
    if (r->type == REQUEST_VM_SNAPSHOT)
        FUZZ_CHECK(request_key_is_sandboxes(r->snapshot) && r->then <= THEN_STOP && r->manifest &&
                   (r->content == CONTENT_FULL || (r->content == CONTENT_DISK && r->then == THEN_RESUME)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sp_error err = {0};
    struct request r;

    if (request_parse((const char *)data, size, &r, &err) < 0) {
        FUZZ_CHECK(err.code != SP_OK && err.text[0]);
        FUZZ_CHECK(!r.config && !r.manifest && !r.known);
        return 0;
    }
    FUZZ_CHECK(size <= BROKER_MESSAGE_MAX && r.type < REQUEST_COUNT_);
    if (r.type == REQUEST_VM_START)
        check_start(&r);
    if (r.type == REQUEST_VM_STOP || r.type == REQUEST_SNAPSHOT_SEAL)
        FUZZ_CHECK(request_id_is_valid(r.id));
    check_lifecycle(&r);
    if (r.type == REQUEST_TEMPLATE_REMOVE)
        FUZZ_CHECK(request_hex_is_valid(r.template, SHA256_HEX_SIZE - 1));
    FUZZ_CHECK(r.n_known <= BROKER_KNOWN_MAX);
    for (size_t i = 0; i < r.n_known; i++)
        FUZZ_CHECK(request_id_is_valid(r.known[i]));
    request_done(&r);
    return 0;
}
