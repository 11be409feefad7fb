/* SPDX-License-Identifier: Apache-2.0 */
/* Any passwd and group text (input: name NUL passwd NUL group): a user found is one the kernel can be given. */
#include "base/cleanup.h"
#include "fuzz.h"
#include "guest/users.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    _cleanup_free_ char *text = malloc(size + 3);
    struct guest_user user;

    if (!text)
        abort();
    memcpy(text, data, size);
    memset(text + size, 0, 3);
    const char *passwd = text + strlen(text) + 1;
    const char *group = passwd + (passwd < text + size ? strlen(passwd) + 1 : 0);
    if (!users_parse(passwd < text + size ? passwd : "", group < text + size ? group : "", text, &user))
        return 0;
    FUZZ_CHECK(user.uid != (uid_t)-1 && user.gid != (gid_t)-1);
    FUZZ_CHECK(user.home[0] == '/' && user.shell[0]);
    FUZZ_CHECK(user.n_groups >= 1 && user.n_groups <= USERS_MAX_GROUPS && user.groups[0] == user.gid);
    for (size_t i = 1; i < user.n_groups; i++)
        FUZZ_CHECK(user.groups[i] != user.gid);
    return 0;
}
