/* SPDX-License-Identifier: Apache-2.0 */
/* Template releases and tags. Shared ones (owner "") are changed with scope admin only. */
#include "base/text.h"
#include "control/handlers.h"
#include "control/render.h"
#include "model/limits.h"
#include "model/requests.h"
#include "store/templates.h"
#include <string.h>

#define RELEASES_SHOWN 100

static bool is_admin(const struct request *rq) {
    return (rq->auth.scopes & SCOPE_ADMIN) != 0;
}

static int needs_admin(struct request *rq) {
    return request_problem(rq, PROBLEM_FORBIDDEN, "", "a shared template is changed with scope admin only");
}

/* Whose name it is; `changes`: and the caller may change it. */
static int find_owner(struct request *rq, bool changes, char owner[32]) {
    int r = template_owner(rq->db, rq->auth.tenant_id, request_param(rq, "name"), owner, &rq->err);
    if (r < 0)
        return r;
    return changes && owner[0] == '\0' && !is_admin(rq) ? needs_admin(rq) : 0;
}

static int answer_release(struct request *rq, const char *owner, const char *name, const char *digest, int status) {
    _cleanup_result_ struct store_result *res = NULL;
    struct template t;
    int r = template_get(rq->db, owner, name, digest, &res, &t, &rq->err);
    if (r < 0)
        return r;
    (void)text_copy(rq->object_id, sizeof(rq->object_id), t.id);
    rq->answer = render_template(&t);
    rq->status = status;
    return 0;
}

/* ---- register ---- */

/* A known release must be the same in everything but its tags. */
static int check_same(struct request *rq, const char *owner, const struct template_new_row *n) {
    _cleanup_result_ struct store_result *res = NULL;
    struct template t;
    int r = template_get(rq->db, owner, n->name, n->digest, &res, &t, &rq->err);
    if (r < 0)
        return r;
    _cleanup_json_ json_t *known = json_of_text(t.manifest, json_object());
    if (!json_equal(known, json_object_get(rq->body, "manifest")) || t.size_bytes != n->size_bytes)
        return request_problem(rq, PROBLEM_CONFLICT, "digest", "the release is known with another manifest or size");
    return 0;
}

static int check_count(struct request *rq, const char *owner) {
    uint64_t n = 0;
    int r = template_count(rq->db, owner, &n, &rq->err);
    if (r < 0 || n <= LIMIT_VALUE(template_releases))
        return r;
    return request_problem(rq, PROBLEM_QUOTA_EXCEEDED, "template_releases", "there are %d template releases already",
                           (int)LIMIT_VALUE(template_releases));
}

int handle_template_register(struct request *rq) {
    json_t *manifest = json_object_get(rq->body, "manifest");
    bool shared = body_bool(rq->body, "shared", false), is_new = false;
    const char *owner = shared ? "" : rq->auth.tenant_id, *tag = body_text(rq->body, "tag");
    _cleanup_free_ char *text = json_print(manifest);
    char id[ID_SIZE];
    if (shared && !is_admin(rq))
        return needs_admin(rq);
    int r = request_check_manifest(manifest, &rq->err);
    if (r < 0)
        return r;
    id_new(id, ID_TEMPLATE);
    struct template_new_row n = {.id = id,
                                 .owner = owner,
                                 .name = body_text(rq->body, "name"),
                                 .digest = body_text(rq->body, "digest"),
                                 .manifest = text,
                                 .size_bytes = body_uint(rq->body, "size_bytes", 0)};
    r = template_insert(rq->db, &n, &is_new, &rq->err);
    if (r == 0)
        r = is_new ? check_count(rq, owner) : check_same(rq, owner, &n);
    if (r == 0 && tag)
        r = template_tag_set(rq->db, owner, n.name, tag, n.digest, &rq->err);
    return r < 0 ? r : answer_release(rq, owner, n.name, n.digest, is_new ? 201 : 200);
}

/* ---- reading ---- */

int handle_template_list(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct store_page page = request_page(rq);
    char cursor[STORE_CURSOR_SIZE] = "";
    int n = 0;
    int r = template_list(rq->db, rq->auth.tenant_id, request_query(rq, "name"), &page, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    for (int i = 0; i < n; i++) {
        struct template t;
        template_row(res, i, &t);
        (void)json_array_append_new(items, render_template(&t));
        if (i + 1 == (int)page.limit)
            (void)store_cursor_format(cursor, t.created_us, t.id);
    }
    rq->answer = render_page(items, cursor);
    rq->status = 200;
    return 0;
}

static int list_tags(struct request *rq, const char *owner, const char *name, json_t *array) {
    _cleanup_result_ struct store_result *res = NULL;
    int n = 0;
    int r = template_tags(rq->db, owner, name, &res, &n, &rq->err);
    for (int i = 0; r == 0 && i < n; i++) {
        struct template_tag t;
        template_tag_row(res, i, &t);
        (void)json_array_append_new(array, render_template_tag(name, &t));
    }
    return r;
}

static int list_releases(struct request *rq, const char *owner, const char *name, json_t *array) {
    _cleanup_result_ struct store_result *res = NULL;
    int n = 0;
    int r = template_releases(rq->db, owner, name, RELEASES_SHOWN, &res, &n, &rq->err);
    for (int i = 0; r == 0 && i < n; i++) {
        struct template t;
        template_row(res, i, &t);
        (void)json_array_append_new(array, render_template(&t));
    }
    return r;
}

int handle_template_get(struct request *rq) {
    const char *name = request_param(rq, "name");
    char owner[32];
    int r = find_owner(rq, false, owner);
    if (r < 0)
        return r;
    json_t *tags = json_array(), *releases = json_array(), *o = json_object();
    put_text(o, "name", name);
    put_bool(o, "shared", owner[0] == '\0');
    put_new(o, "tags", tags);
    put_new(o, "releases", releases);
    rq->answer = o;
    rq->status = 200;
    r = list_tags(rq, owner, name, tags);
    return r < 0 ? r : list_releases(rq, owner, name, releases);
}

int handle_release_get(struct request *rq) {
    char owner[32];
    int r = find_owner(rq, false, owner);
    return r < 0 ? r : answer_release(rq, owner, request_param(rq, "name"), request_param(rq, "digest"), 200);
}

/* ---- removal ---- */

/* digest NULL: all releases of the name, with their tags. */
static int remove_releases(struct request *rq, const char *digest) {
    const char *name = request_param(rq, "name");
    struct template_uses uses = {0};
    char owner[32];
    int r = find_owner(rq, true, owner);
    if (r == 0)
        r = template_uses(rq->db, owner, name, digest, &uses, &rq->err);
    if (r < 0)
        return r;
    if (uses.releases == 0)
        return sp_error_set(&rq->err, SP_E_NOT_FOUND, "template %s has no such release", name);
    if (uses.sandboxes > 0)
        return request_problem(rq, PROBLEM_IN_USE, "", "%llu sandboxes that are not deleted were started from it",
                               (unsigned long long)uses.sandboxes);
    if (uses.others > 0)
        return request_problem(rq, PROBLEM_IN_USE, "", "%llu snapshots and pools are made from it",
                               (unsigned long long)uses.others);
    if (digest && uses.tags > 0)
        return request_problem(rq, PROBLEM_IN_USE, "", "%llu tags name it", (unsigned long long)uses.tags);
    (void)text_copy(rq->object_id, sizeof(rq->object_id), name);
    rq->status = 204;
    return template_delete(rq->db, owner, name, digest, &rq->err);
}

int handle_template_delete(struct request *rq) {
    return remove_releases(rq, NULL);
}

int handle_release_delete(struct request *rq) {
    return remove_releases(rq, request_param(rq, "digest"));
}

/* ---- tags ---- */

static int answer_tag(struct request *rq, const char *owner) {
    _cleanup_result_ struct store_result *res = NULL;
    const char *name = request_param(rq, "name");
    struct template_tag t;
    int r = template_tag_get(rq->db, owner, name, request_param(rq, "tag"), &res, &t, &rq->err);
    if (r < 0)
        return r;
    (void)text_copy(rq->object_id, sizeof(rq->object_id), name);
    rq->answer = render_template_tag(name, &t);
    rq->status = 200;
    return 0;
}

int handle_tag_get(struct request *rq) {
    char owner[32];
    int r = find_owner(rq, false, owner);
    return r < 0 ? r : answer_tag(rq, owner);
}

int handle_tag_set(struct request *rq) {
    char owner[32];
    int r = find_owner(rq, true, owner);
    if (r == 0)
        r = template_tag_set(rq->db, owner, request_param(rq, "name"), request_param(rq, "tag"),
                             body_text(rq->body, "digest"), &rq->err);
    return r < 0 ? r : answer_tag(rq, owner);
}

int handle_tag_delete(struct request *rq) {
    char owner[32];
    int r = find_owner(rq, true, owner);
    if (r == 0)
        r = template_tag_delete(rq->db, owner, request_param(rq, "name"), request_param(rq, "tag"), &rq->err);
    (void)text_copy(rq->object_id, sizeof(rq->object_id), request_param(rq, "name"));
    rq->status = 204;
    return r;
}
