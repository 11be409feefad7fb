/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to a space-vm and what it answers. */
#include "broker/vm_talk.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "io/unix_socket.h"
#include <errno.h>
#include <sys/socket.h>

#define CONNECT_MS 2000
#define CODE_MAX 48
#define MESSAGE_MAX 2048 /* of an error's text */

struct vm_talk *vm_talk_open(const struct layout *layout, const char *id, struct sp_error *err) {
    struct vm_talk *talk = calloc(1, sizeof(*talk));
    char path[108];
    int r;

    if (!talk)
        abort();
    talk->fd = -1;
    if (text_printf(path, sizeof(path), "%s/%s/control.sock", layout->run_vm_path, id))
        r = unix_connect(path, SOCK_SEQPACKET, deadline_in_ms(CONNECT_MS), &talk->fd, err);
    else
        r = sp_error_set(err, SP_E_INTERNAL, "path of control.sock is too long");
    if (r < 0) {
        (void)sp_error_set(err, SP_E_VMM, "space-vm of %s does not answer", id);
        return vm_talk_close(talk);
    }
    return talk;
}

struct vm_talk *vm_talk_close(struct vm_talk *talk) {
    if (talk)
        (void)close_fd(talk->fd);
    free(talk);
    return NULL;
}

int vm_talk_send(struct vm_talk *talk, const char *request, bool anew, json_t *fields, const int *fds, size_t n_fds,
                 struct sp_error *err) {
    _cleanup_json_ json_t *obj = fields ? fields : json_object();
    _cleanup_free_ char *text = NULL;

    talk->seq += anew;
    (void)json_object_set_new(obj, "request", json_string(request));
    (void)json_object_set_new(obj, "seq", json_integer((json_int_t)talk->seq));
    text = json_print(obj);
    return fd_send_message(talk->fd, text, strlen(text), fds, n_fds, err);
}

/* The codes of spec/internal-api.md that say more than that the VM refused. */
static enum sp_code code_of(const char *name) {
    static const struct {
        const char *name;
        enum sp_code code;
    } rows[] = {{"host_disk_full", SP_E_NO_SPACE}, {"no_space", SP_E_NO_SPACE}, {"io", SP_E_IO},
                {"busy", SP_E_CONFLICT},           {"conflict", SP_E_CONFLICT}, {"invalid_state", SP_E_CONFLICT},
                {"not_running", SP_E_CONFLICT},    {"guest_busy", SP_E_GUEST},  {"timeout", SP_E_TIMEOUT},
                {"snapshot_broken", SP_E_CORRUPT}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].code;
    return SP_E_VMM;
}

static int refused(const json_t *obj, struct sp_error *err) {
    json_t *error = NULL;
    const char *code = "", *message = "";
    char shown[200];
    int r = json_get_opt_object(obj, "", "error", &error, err);

    if (r == 0 && error)
        r = json_get_string(error, "error", "code", 1, CODE_MAX - 1, &code, err);
    if (r == 0 && error)
        r = json_get_opt_string(error, "error", "message", 0, MESSAGE_MAX, "", &message, err);
    if (r < 0 || !error)
        return sp_error_set(err, SP_E_VMM, "space-vm said no and not why");
    return sp_error_field(err, code_of(code), code, "%s", text_escape(shown, sizeof(shown), message, strlen(message)));
}

/* 1: it is what is waited for, 0: something else. */
static int look(const struct vm_talk *talk, const json_t *obj, const char *step, struct sp_error *err) {
    const char *event, *named;
    uint64_t seq;
    bool ok = false;
    int r = json_get_string(obj, "", "event", 1, 32, &event, err);

    if (r < 0)
        return r;
    if (strcmp(event, "done") != 0 && strcmp(event, "snapshot") != 0)
        return 0;
    r = json_get_u64(obj, "", "seq", 0, INT64_MAX, &seq, err);
    if (r < 0 || seq != talk->seq)
        return r;
    if (strcmp(event, "snapshot") == 0) {
        r = json_get_string(obj, "", "step", 1, 32, &named, err);
        return r < 0 ? r : step && strcmp(named, step) == 0;
    }
    r = json_get_opt_bool(obj, "", "ok", false, &ok, err);
    if (r == 0 && !ok)
        r = refused(obj, err);
    if (r == 0 && step)
        r = sp_error_set(err, SP_E_PROTOCOL, "space-vm is done before it was %s", step);
    return r < 0 ? r : 1;
}

int vm_talk_wait(struct vm_talk *talk, const char *step, struct deadline deadline, json_t **ret, struct sp_error *err) {
    for (;;) {
        _cleanup_json_ json_t *obj = NULL;
        size_t len = 0;
        int r = packet_recv(talk->fd, talk->buffer, sizeof(talk->buffer), deadline, &len, err);

        if (r == 0 && len == 0)
            r = sp_error_set(err, SP_E_VMM, "space-vm ended the connection");
        if (r == 0)
            r = json_parse(talk->buffer, len, sizeof(talk->buffer), &obj, err);
        if (r == 0)
            r = look(talk, obj, step, err);
        if (r < 0)
            return r;
        if (r > 0) {
            if (ret)
                *ret = TAKE_PTR(obj);
            return 0;
        }
    }
}
