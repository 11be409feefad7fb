/* SPDX-License-Identifier: Apache-2.0 */
/* What space-guest reads: a hostile host. */
#include "fuzz_channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_channel(CHANNEL_GUEST, data, size);
    return 0;
}
