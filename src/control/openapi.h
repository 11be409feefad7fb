/* SPDX-License-Identifier: Apache-2.0 */
/* spec/openapi.yaml as JSON, embedded at build time. */
#pragma once
#include <stddef.h>

extern const char openapi_json[];
extern const size_t openapi_json_len;
