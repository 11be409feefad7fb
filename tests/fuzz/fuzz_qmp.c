/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a taken-over VMM may send on its control connection. First byte: how the rest is cut into pieces. The parser must
 * bound what it holds, give only objects, and every event must map to something or be ignored.
 */
#include "fuzz.h"
#include "vmm/qemu/qemu.h"
#include <string.h>

static void look_at(const json_t *message) {
    const char *name = json_string_value(json_object_get(message, "event"));
    json_t *data = json_object_get(message, "data");
    struct qmp_event e = {.data = json_is_object(data) ? data : NULL};
    struct vmm_event ev;
    if (!name || strlen(name) >= sizeof(e.name))
        return;
    memcpy(e.name, name, strlen(name));
    if (qemu_event_from_qmp(&e, &ev))
        FUZZ_CHECK(memchr(ev.detail, 0, sizeof(ev.detail)));
    (void)qemu_status_from_name(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct qmp_parser p;
    size_t piece = size > 0 ? (size_t)data[0] * 16 + 1 : 1;
    int r = 0;
    qmp_parser_init(&p);
    for (size_t at = 1; at < size && r >= 0; at += piece) {
        json_t *message = NULL;
        r = qmp_parser_feed(&p, data + at, size - at < piece ? size - at : piece, NULL);
        while (r >= 0 && (r = qmp_parser_next(&p, &message, NULL)) > 0) {
            FUZZ_CHECK(json_is_object(message));
            look_at(message);
            json_decref(message);
        }
        FUZZ_CHECK(p.in.len <= QMP_LINE_MAX);
    }
    qmp_parser_done(&p);
    return 0;
}
