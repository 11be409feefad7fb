/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's log: lines on /dev/kmsg with the prefix "space-guest:", which the host sees on the console. Rate-limited:
 * at most 20 lines in 5 seconds, what was dropped is said with the next line. Never pass bytes of a user's program. */
#pragma once

enum klog_level { KLOG_ERROR = 3, KLOG_WARN = 4, KLOG_INFO = 6 };

void klog_init(void); /* after /dev is there; before it lines go to descriptor 2 */
void klog(enum klog_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
