/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to the guest's agent: one record each on a stream of its own, the first record back is the answer. Nothing
 * here waits; the lifecycle turns the loop until call_is_pending() says no. An answer is copied out, at most 64 KiB.
 */
#include "base/random.h"
#include "base/text.h"
#include "vm/vm.h"
#include <errno.h>
#include <string.h>

int call_init(struct agent_call *call) {
    *call = (struct agent_call){.user.kind = STREAM_OF_CALL};
    buf_init(&call->request, RECORD_HEADER_SIZE + RECORD_MAX_PAYLOAD);
    buf_init(&call->answer, RECORD_MAX_PAYLOAD);
    return 0;
}

void call_done(struct agent_call *call) {
    record_reader_done(&call->reader);
    buf_done(&call->request);
    buf_done(&call->answer);
}

bool call_is_pending(const struct agent_call *call) {
    return call->state == CALL_SENDING || call->state == CALL_WAITING;
}

struct record call_answer(const struct agent_call *call) {
    return (struct record){
        .type = call->answer_type,
        .payload = {.p = (const uint8_t *)call->answer.data, .len = call->answer.len},
    };
}

static void call_end(struct agent_call *call, enum call_state state) {
    call->state = state;
    call->id = 0;
    record_reader_done(&call->reader);
    call->reader = (struct record_reader){0};
}

static void call_fail(struct vm *vm, struct agent_call *call, enum sp_code code, const char *text) {
    (void)sp_error_set(&call->error, code, "%s", text);
    if (call->id)
        channel_reset(&vm->channel, call->id, CHANNEL_CANCELLED);
    call_end(call, CALL_FAILED);
}

void call_begin(struct agent_call *call, enum record_type type) {
    buf_reset(&call->request);
    buf_reset(&call->answer);
    call->error = (struct sp_error){0};
    call->answer_type = 0;
    call->holds = false;
    (void)record_begin(&call->request, type); /* the mark is 0: the buffer was empty */
}

void call_begin_identity(const struct vm *vm, struct agent_call *call) {
    const struct vm_config *c = &vm->config;
    struct buf *b = &call->request;
    uint8_t entropy[64];
    call_begin(call, REC_IDENTITY);
    (void)record_put_u64(b, TAG_GENERATION, c->generation);
    random_bytes(entropy, sizeof(entropy));
    (void)record_put_bytes(b, TAG_ENTROPY, entropy, sizeof(entropy));
    text_wipe(entropy, sizeof(entropy));
    (void)record_put_string(b, TAG_HOSTNAME, c->hostname);
    (void)record_put_string(b, TAG_MACHINE_ID, c->machine_id);
    for (char **env = c->env; *env; env++)
        (void)record_put_string(b, TAG_ENV, *env);
    (void)record_put_string(b, TAG_SANDBOX_ID, c->id);
    (void)record_put_u64(b, TAG_OUTPUT_WINDOW, c->output_window);
    if (c->session_retention_ms > 0)
        (void)record_put_u64(b, TAG_SESSION_RETENTION_MS, c->session_retention_ms);
    (void)record_put_u64(b, TAG_REALTIME_NS, clock_realtime_ns()); /* last: it ages from here */
}

/* Opens the stream and sends the record as soon as the channel has room for it. */
static void call_push(struct vm *vm, struct agent_call *call) {
    struct view part = {.p = (const uint8_t *)call->request.data, .len = call->request.len};
    if (call->id == 0) {
        int r = channel_open(&vm->channel, CHANNEL_PORT_AGENT, call, &call->id);
        if (r == -EAGAIN)
            return;
        if (r < 0) {
            call_fail(vm, call, r == -EMFILE ? SP_E_QUOTA : SP_E_GUEST, "no stream to the agent");
            return;
        }
    }
    if (!channel_send_all(&vm->channel, call->id, &part, 1))
        return;
    call->state = CALL_WAITING;
    if (call->holds)
        bridge_hold(vm);
    text_wipe(call->request.data, call->request.len); /* it may hold entropy and environment */
}

void call_send(struct vm *vm, struct agent_call *call, struct deadline d) {
    call->state = CALL_SENDING;
    call->deadline = d;
    if (record_end(&call->request, 0) < 0) {
        call_fail(vm, call, SP_E_TOO_LARGE, "a question does not fit into a record");
        return;
    }
    call_push(vm, call);
}

void call_cancel(struct vm *vm, struct agent_call *call) {
    if (call_is_pending(call))
        call_fail(vm, call, SP_E_UNAVAILABLE, "cancelled");
}

static void call_take(struct vm *vm, struct agent_call *call, const struct record *rec) {
    const char *missing = record_missing(rec);
    if (missing || buf_append(&call->answer, rec->payload.p, rec->payload.len) < 0) {
        call_fail(vm, call, SP_E_PROTOCOL, missing ? "the agent's answer lacks a field" : "out of memory");
        return;
    }
    call->answer_type = rec->type;
    channel_reset(&vm->channel, call->id, CHANNEL_CANCELLED); /* one answer is all we want of this stream */
    call_end(call, CALL_DONE);
}

/* An answer that says no: its code and words, escaped. */
static void call_take_error(struct vm *vm, struct agent_call *call, const struct record *rec) {
    char code[64], message[256], text[200], escaped_code[40];
    (void)record_get_string(rec, TAG_CODE, code, sizeof(code));
    (void)record_get_string(rec, TAG_MESSAGE, message, sizeof(message));
    (void)text_escape(escaped_code, sizeof(escaped_code), code, strlen(code));
    (void)text_escape(text, sizeof(text), message, strlen(message));
    call_fail(vm, call, SP_E_GUEST, "");
    (void)sp_error_set(&call->error, SP_E_GUEST, "the agent refused: %s: %s", escaped_code, text);
}

void call_event(struct vm *vm, struct agent_call *call, const struct channel_event *ev) {
    struct view data = ev->data;
    struct record rec;
    int r;
    if (!call_is_pending(call) || ev->id != call->id)
        return;
    switch (ev->type) {
    case CHANNEL_EV_DATA:
        channel_consume(&vm->channel, ev->id, ev->data.len);
        r = record_next(&call->reader, &data, &rec);
        if (r < 0)
            call_fail(vm, call, SP_E_PROTOCOL, "the agent's answer is no record");
        else if (r > 0 && rec.type == REC_ERROR)
            call_take_error(vm, call, &rec);
        else if (r > 0)
            call_take(vm, call, &rec);
        break;
    case CHANNEL_EV_SHUTDOWN:
    case CHANNEL_EV_RESET:
        call->id = ev->type == CHANNEL_EV_RESET ? 0 : call->id;
        call_fail(vm, call, SP_E_GUEST, "the agent closed the stream without an answer");
        break;
    case CHANNEL_EV_OPENED:
    case CHANNEL_EV_CREDIT:
    case CHANNEL_EV_CONNECTED:
    case CHANNEL_EV_OPEN:
    case CHANNEL_EV_LOST:
        break;
    }
}

void call_tick(struct vm *vm, struct agent_call *call) {
    if (call->state == CALL_SENDING)
        call_push(vm, call);
    if (call_is_pending(call) && deadline_passed(call->deadline))
        call_fail(vm, call, SP_E_TIMEOUT, "the agent does not answer");
}
