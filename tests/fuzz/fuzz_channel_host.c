/* SPDX-License-Identifier: Apache-2.0 */
/* What space-vm reads: a hostile guest. */
#include "fuzz_channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_channel(CHANNEL_HOST, data, size);
    return 0;
}
