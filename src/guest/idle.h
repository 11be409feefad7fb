/* SPDX-License-Identifier: Apache-2.0 */
/* Turns off what would wake an idle machine for nothing. An emulated one pays most of its idle time for that. */
#pragma once

void idle_quietly(void); /* once at boot, /proc and /sys mounted; what cannot be done is left */
