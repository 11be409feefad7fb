/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 over memory and files (OpenSSL). Not linked into the guest agent. */
#pragma once
#include "base/error.h"
#include <stdint.h>

#define SHA256_SIZE 32
#define SHA256_HEX_SIZE 65
void sha256_memory(const void *data, size_t len, uint8_t dst[SHA256_SIZE]);
void sha256_memory_hex(const void *data, size_t len, char dst[SHA256_HEX_SIZE]);
/* From offset 0 to the end of the descriptor; position is not moved. */
int sha256_fd_hex(int fd, char dst[SHA256_HEX_SIZE], struct sp_error *err);
