/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration text: what loads prints to something that loads to the same settings; what does not leaves an
 * error of one line. */
#include "base/cleanup.h"
#include "base/text.h"
#include "fuzz.h"
#include "model/settings.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    _cleanup_free_ char *text = malloc(size + 1);
    struct settings first, second;
    struct sp_error err = {0};
    _cleanup_buf_ struct buf printed = {0}, again = {0};

    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    buf_init(&printed, 65536);
    buf_init(&again, 65536);
    config_defaults(&first, settings_rows, settings_rows_count);
    config_defaults(&second, settings_rows, settings_rows_count);
    if (config_load_text(&first, settings_rows, settings_rows_count, text, "fuzz.conf", &err) < 0) {
        FUZZ_CHECK(err.code == SP_E_INVALID && err.text[0]);
        FUZZ_CHECK(text_is_utf8(err.text, strlen(err.text)) && !strpbrk(err.text, "\r\n\x1b"));
        return 0;
    }
    FUZZ_CHECK(config_print_values(&first, settings_rows, settings_rows_count, &printed) == 0);
    FUZZ_CHECK(config_load_text(&second, settings_rows, settings_rows_count, printed.data, "again", &err) == 0);
    FUZZ_CHECK(config_print_values(&second, settings_rows, settings_rows_count, &again) == 0);
    FUZZ_CHECK(strcmp(printed.data, again.data) == 0);
    return 0;
}
