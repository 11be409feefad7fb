/* SPDX-License-Identifier: Apache-2.0 */
/* Included by the build in front of every translation unit: unsafe libc calls are compile errors. System headers that
 * declare them come first, so that only uses fail. */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#pragma GCC poison strcpy strcat sprintf vsprintf strtok atoi atol atoll gets system popen tmpnam mktemp strncpy strncat
