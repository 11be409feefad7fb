/* SPDX-License-Identifier: Apache-2.0 */
/* template build, ls, get, tag, rm. Building is local (template/build.h); the rest is the API. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "cli/api.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/template/build.h"
#include <string.h>

#define DEFAULT_DISK_MIB "4096"

struct reference {
    char name[65], tag[65], digest[65];
};

/* "name", "name:tag", "name@digest". */
static int parse_reference(const char *text, struct reference *ret, struct sp_error *err) {
    *ret = (struct reference){0};
    size_t n = strcspn(text, ":@");
    const char *rest = text[n] ? text + n + 1 : "";
    if (n == 0 || n > 64 || strlen(rest) > 64 || (text[n] && !*rest) || strchr(text, '/'))
        return sp_error_field(err, SP_E_INVALID, "NAME",
                              "must be NAME, NAME:TAG or NAME@DIGEST, at most 64 bytes each");
    (void)text_printf(ret->name, sizeof ret->name, "%.*s", (int)n, text);
    (void)text_copy(text[n] == '@' ? ret->digest : ret->tag, sizeof ret->tag, rest);
    return 0;
}

static void show_progress(void *user, const char *step, uint64_t done, uint64_t total) {
    static uint64_t shown_ns; /* bytes are shown once a second, steps at once */
    (void)total;
    if (done && clock_monotonic_ns() - shown_ns < NSEC_PER_SEC)
        return;
    shown_ns = clock_monotonic_ns();
    if (done)
        output_progress("%s: %s, %llu MiB", (const char *)user, step, (unsigned long long)(done >> 20));
    else
        output_progress("%s: %s", (const char *)user, step);
}

struct build_options {
    const char *from_dir, *from_tar, *from_oci, *manifest, *disk_mib;
    bool private_;
};

static int choose_source(struct build_options *o, struct template_build *b, char oci_dir[1024], struct sp_error *err) {
    int given = !!o->from_dir + !!o->from_tar + !!o->from_oci;
    if (given != 1)
        return sp_error_set(err, SP_E_INVALID, "give exactly one of --from-dir, --from-tar and --from-oci");
    b->kind = o->from_dir ? TEMPLATE_FROM_DIR : o->from_tar ? TEMPLATE_FROM_TAR : TEMPLATE_FROM_OCI;
    b->source = o->from_dir ? o->from_dir : o->from_tar;
    if (o->from_oci) {
        const char *colon = strrchr(o->from_oci, ':');
        if (!colon || !colon[1] || !text_printf(oci_dir, 1024, "%.*s", (int)(colon - o->from_oci), o->from_oci))
            return sp_error_field(err, SP_E_INVALID, "--from-oci", "must be DIRECTORY:TAG");
        b->source = oci_dir;
        b->image_tag = colon + 1;
    }
    if (!text_to_u64(o->disk_mib, TEMPLATE_DISK_MIB_MIN, TEMPLATE_DISK_MIB_MAX, &b->disk_mib))
        return sp_error_field(err, SP_E_INVALID, "--disk-mib", "must be %d to %d", TEMPLATE_DISK_MIB_MIN,
                              TEMPLATE_DISK_MIB_MAX);
    b->manifest_path = o->manifest;
    return 0;
}

static int register_template(const struct api *a, const struct reference *ref, const struct template_result *res,
                             bool shared, struct sp_error *err) {
    _cleanup_json_ json_t *body =
        json_pack("{s:s,s:s,s:s,s:I,s:O,s:b}", "name", ref->name, "tag", *ref->tag ? ref->tag : "latest", "digest",
                  res->digest, "size_bytes", (json_int_t)res->disk_bytes, "manifest", res->manifest, "shared",
                  shared ? 1 : 0);
    return body ? api_call(a, "POST", "/v1/templates", body, NULL, err)
                : sp_error_field(err, SP_E_INVALID, "NAME", "must be UTF-8");
}

int cmd_template_build(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    struct build_options o = {.disk_mib = DEFAULT_DISK_MIB};
    struct template_build b = {.progress = show_progress};
    struct template_result res = {0};
    struct reference ref;
    struct api a;
    char store[300], oci_dir[1024];
    const struct option_row rows[] = {
        {"--from-dir", 0, OPTION_VALUE, &o.from_dir}, {"--from-tar", 0, OPTION_VALUE, &o.from_tar},
        {"--from-oci", 0, OPTION_VALUE, &o.from_oci}, {"--manifest", 0, OPTION_VALUE, &o.manifest},
        {"--disk-mib", 0, OPTION_VALUE, &o.disk_mib}, {"--private", 0, OPTION_FLAG, &o.private_},
    };
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 1, 1, "NAME[:TAG]", err)) < 0 ||
        (r = parse_reference(args.argv[0], &ref, err)) < 0 || (r = choose_source(&o, &b, oci_dir, err)) < 0)
        return r;
    if (*ref.digest)
        return sp_error_field(err, SP_E_INVALID, "NAME", "a digest is the result of a build, not its name");
    if (!text_printf(store, sizeof store, "%s/store", in->settings->state_dir))
        return sp_error_field(err, SP_E_INVALID, "state_dir", "is too long");
    b.store_dir = store;
    b.progress_user = args.argv[0];
    if ((r = api_open(&a, in->settings, err)) < 0)
        return r;
    if ((r = template_build_run(&b, &res, err)) == 0)
        r = register_template(&a, &ref, &res, !o.private_, err);
    api_close(&a);
    output_progress_end();
    if (r == 0 && res.skipped)
        (void)fprintf(stderr, "space: left out %llu device nodes, sockets or FIFOs\n", (unsigned long long)res.skipped);
    if (r == 0)
        (void)printf("%s:%s@%s%s\n", ref.name, *ref.tag ? ref.tag : "latest", res.digest,
                     res.existed ? " (was there)" : "");
    template_result_done(&res);
    return r;
}

int cmd_template_ls(const struct command_args *in, int *ret_status, struct sp_error *err) {
    static const struct output_column columns[] = {
        {"NAME", "name"}, {"TAGS", "tags"}, {"DIGEST", "digest"}, {"BYTES", "size_bytes"}, {"CREATED", "created_at"}};
    _cleanup_json_ json_t *items = NULL;
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 0, 0, "no words", err);
    if (r < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = api_list(&a, "/v1/templates", &items, err);
    api_close(&a);
    if (r == 0)
        output_list(items, columns, ARRAY_SIZE(columns));
    return r;
}

int cmd_template_get(const struct command_args *in, int *ret_status, struct sp_error *err) {
    static const struct output_column columns[] = {{"name", "name"},
                                                   {"shared", "shared"},
                                                   {"tags", "tags"},
                                                   {"releases", "releases"}};
    _cleanup_json_ json_t *t = NULL;
    struct reference ref;
    char target[128];
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 1, 1, "NAME", err);
    if (r < 0 || (r = parse_reference(in->argv[0], &ref, err)) < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    (void)text_printf(target, sizeof target, "/v1/templates/%s", ref.name);
    r = api_call(&a, "GET", target, NULL, &t, err);
    api_close(&a);
    if (r == 0)
        output_object(t, columns, ARRAY_SIZE(columns));
    return r;
}

int cmd_template_tag(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct reference ref;
    char target[192];
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 2, 2, "NAME:TAG DIGEST", err);
    if (r < 0 || (r = parse_reference(in->argv[0], &ref, err)) < 0)
        return r;
    if (!*ref.tag)
        return sp_error_field(err, SP_E_INVALID, "NAME:TAG", "names no tag");
    _cleanup_json_ json_t *body = json_pack("{s:s}", "digest", in->argv[1]);
    if ((r = api_open(&a, in->settings, err)) < 0)
        return r;
    (void)text_printf(target, sizeof target, "/v1/templates/%s/tags/%s", ref.name, ref.tag);
    r = api_call(&a, "PUT", target, body, NULL, err);
    api_close(&a);
    return r;
}

int cmd_template_rm(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct reference ref;
    char target[192];
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 1, 1, "NAME[@DIGEST | :TAG]", err);
    if (r < 0 || (r = parse_reference(in->argv[0], &ref, err)) < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    (void)text_printf(target, sizeof target, "/v1/templates/%s%s%s", ref.name,
                      *ref.digest ? "/releases/"
                      : *ref.tag  ? "/tags/"
                                  : "",
                      *ref.digest ? ref.digest : ref.tag);
    r = api_call(&a, "DELETE", target, NULL, NULL, err);
    api_close(&a);
    return r;
}
