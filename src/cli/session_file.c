/* SPDX-License-Identifier: Apache-2.0 */
/* Files of detached sessions. */
#include "cli/session_file.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/random.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_SIZE 1024

static int session_path(const char *id, bool make, char *dst, size_t size, struct sp_error *err) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char dir[PATH_SIZE];
    if (!id_is_valid(id, "ses"))
        return sp_error_field(err, SP_E_INVALID, "SESSION", "%.40s is no session id", id);
    bool ok = state && *state == '/'
                  ? text_printf(dir, sizeof dir, "%s/space/sessions", state)
                  : text_printf(dir, sizeof dir, "%s/.local/state/space/sessions", home ? home : "/root");
    if (!ok || !text_printf(dst, size, "%s/%s.json", dir, id))
        return sp_error_set(err, SP_E_INVALID, "the home directory's path is too long");
    for (char *p = dir + 1; make && (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        if (mkdir(dir, 0700) < 0 && errno != EEXIST)
            return sp_error_errno(err, errno, "mkdir", "%s", dir);
    }
    if (make && mkdir(dir, 0700) < 0 && errno != EEXIST)
        return sp_error_errno(err, errno, "mkdir", "%s", dir);
    return 0;
}

int session_file_write(const struct exec_session *session, struct sp_error *err) {
    char path[PATH_SIZE];
    int r = session_path(session->id, true, path, sizeof path, err);
    if (r < 0)
        return r;
    _cleanup_json_ json_t *j =
        json_pack("{s:s,s:s}", "attach_url", session->attach_url, "attachment_token", session->token);
    _cleanup_free_ char *text = j ? json_print(j) : NULL;
    if (!text)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    r = file_replace(AT_FDCWD, path, text, strlen(text), 0600, err);
    text_wipe(text, strlen(text));
    return r;
}

int session_file_read(const char *session_id, struct exec_session *ret, struct sp_error *err) {
    char path[PATH_SIZE];
    _cleanup_free_ char *text = NULL;
    _cleanup_json_ json_t *j = NULL;
    const char *url, *token;
    size_t len;
    int r = session_path(session_id, false, path, sizeof path, err);
    if (r < 0)
        return r;
    if ((r = file_read(AT_FDCWD, path, 4096, &text, &len, err)) < 0)
        return sp_error_wrap(err, "only sessions started here with exec --detach can be shown");
    if ((r = json_parse(text, len, 4096, &j, err)) < 0 ||
        (r = json_get_string(j, "", "attach_url", 1, sizeof ret->attach_url - 1, &url, err)) < 0 ||
        (r = json_get_string(j, "", "attachment_token", 1, sizeof ret->token - 1, &token, err)) < 0)
        return r;
    (void)text_copy(ret->id, sizeof ret->id, session_id);
    (void)text_copy(ret->attach_url, sizeof ret->attach_url, url);
    (void)text_copy(ret->token, sizeof ret->token, token);
    return 0;
}
