/* SPDX-License-Identifier: Apache-2.0 */
/* Who a command runs as: a bounded reader of the template's /etc/passwd and /etc/group. Text in, no other I/O in the
 * parsing half, so that it can be tested on any text. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define USERS_FILE_MAX (1024u * 1024u)
#define USERS_MAX_GROUPS 64u

struct guest_user {
    uid_t uid;
    gid_t gid;
    char name[64];
    char home[256];
    char shell[128];
    gid_t groups[USERS_MAX_GROUPS]; /* supplementary, the primary one first */
    size_t n_groups;
};

/* name: a login name or a decimal uid ("" is root). False when there is no such user; a uid that no line names is good
 * as it is (gid = uid, home "/"), as is root when there is no passwd file. Malformed lines are passed over. */
bool users_parse(const char *passwd, const char *group, const char *name, struct guest_user *ret);
/* The same on the files. 0, -ENOENT no such user, or another negative errno. */
int users_lookup(const char *name, struct guest_user *ret);
