/* SPDX-License-Identifier: Apache-2.0 */
/* What the node parses: a space-vm's messages (first byte even), control's desired list and answers, files of the host. */
#include "fuzz.h"
#include "io/internal_client.h"
#include "node/capacity.h"
#include "node/desired.h"
#include "node/facts.h"
#include "node/vm_status.h"
#include <string.h>

#define ID "sbx_00000000000000000000000001"

static void try_message(const char *text, size_t len) {
    struct sp_error err = {0};
    struct vm_message m;
    if (vm_message_parse(text, len, ID, &m, &err) < 0) {
        FUZZ_CHECK(err.code == SP_E_PROTOCOL && err.text[0] && !m.status.timings && !m.done.timings);
        return;
    }
    FUZZ_CHECK(m.status.failure < FAILURE_COUNT_ && json_object_size(m.status.timings) <= VM_STATUS_TIMINGS_MAX);
    for (const char *c = m.status.message; *c; c++)
        FUZZ_CHECK((unsigned char)*c >= ' ');
    for (const char *c = m.done.message; *c; c++)
        FUZZ_CHECK((unsigned char)*c >= ' ');
    vm_message_done(&m);
}

static void try_desired(const char *text, size_t len) {
    struct sp_error err = {0};
    struct desired_list list;
    _cleanup_json_ json_t *j = NULL;
    if (json_parse(text, len, 1 << 20, &j, &err) < 0)
        return;
    if (desired_parse(j, &list, &err) < 0) {
        FUZZ_CHECK(err.text[0] && !list.items);
        return;
    }
    for (size_t i = 0; i < list.n; i++) {
        FUZZ_CHECK(id_is_valid(list.items[i].id, "sbx"));
        FUZZ_CHECK(desired_find(&list, list.items[i].id) == &list.items[i]);
        FUZZ_CHECK(list.items[i].want == WANT_DELETED || list.items[i].problem[0] || list.items[i].vcpus);
    }
    for (size_t i = 0; i < list.n_gone; i++)
        FUZZ_CHECK(id_is_valid(list.gone[i], "snp"));
    for (size_t i = 0; i < list.n_pools; i++)
        FUZZ_CHECK(list.pools[i].id[0] && list.pools[i].vcpus && list.pools[i].size <= DESIRED_POOL_SIZE_MAX);
    desired_list_done(&list);
}

static void try_files(const char *text, size_t len) {
    struct facts_kernel k;
    uint64_t mib, ns;
    char *copy = malloc(len + 1);
    memcpy(copy, text, len);
    copy[len] = '\0';
    (void)facts_kernel_parse(copy, len, "stock", &k, NULL);
    (void)capacity_meminfo_parse(copy, "MemTotal:", &mib, NULL);
    (void)desired_time_parse(copy, &ns);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data + 1;
    struct internal_answer answer;
    json_t *body;
    if (size < 2)
        return 0;
    size--;
    if (data[0] % 2 == 0) {
        try_message(text, size);
        return 0;
    }
    try_desired(text, size);
    try_files(text, size);
    internal_answer_parse(100 + data[0] * 2, text, size, &body, &answer);
    FUZZ_CHECK((body != NULL) == (answer.error.code == SP_OK));
    FUZZ_CHECK(!answer.code[0] || !answer.code[strspn(answer.code, "abcdefghijklmnopqrstuvwxyz0123456789_")]);
    json_decref(body);
    return 0;
}
