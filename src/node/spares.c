/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a spare; whatever goes wrong with one leads to vm_stop, and the next one is asked for by the pools. */
#include "node/spares.h"
#include "base/log.h"
#include "base/text.h"
#include <stdlib.h>
#include <string.h>

#define RETRY_MS 1000u
#define START_MS 30000u /* a VMM is there, or one is restored and exercised */
#define MISSES_MAX 3u
#define TAG_AT 4u /* behind "spr_" */
#define SHAPE_AT (TAG_AT + SPARE_TAG_SIZE - 1)
#define MEMORY_DIGITS 4u

struct spares {
    struct loop *loop;
    struct broker_client *broker;
    const struct vm_request_base *base;
    void (*on_change)(void *ctx);
    void *ctx;
    struct spare *first;
    uint64_t failed_ms; /* when the making of one last failed; 0: never */
};

/* ---- ids ---- */

static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz"; /* Crockford's */

void spare_id_make(char dst[ID_SIZE], const char tag[SPARE_TAG_SIZE], const struct vm_shape *shape) {
    id_generate(dst, "spr");
    memcpy(dst + TAG_AT, tag, SPARE_TAG_SIZE - 1);
    dst[SHAPE_AT] = digits[shape->vcpus % 32];
    for (unsigned i = 0; i < MEMORY_DIGITS; i++)
        dst[SHAPE_AT + 1 + i] = digits[(shape->memory_mib >> (5 * i)) % 32];
}

static unsigned digit(char c) {
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (unsigned)(at - digits) : 0;
}

bool spare_id_read(const char *id, const char tag[SPARE_TAG_SIZE], struct vm_shape *ret_shape) {
    struct vm_shape shape = {0};
    if (!id_is_valid(id, "spr") || memcmp(id + TAG_AT, tag, SPARE_TAG_SIZE - 1) != 0)
        return false;
    shape.vcpus = digit(id[SHAPE_AT]) ? digit(id[SHAPE_AT]) : 32;
    for (unsigned i = 0; i < MEMORY_DIGITS; i++)
        shape.memory_mib |= digit(id[SHAPE_AT + 1 + i]) << (5 * i);
    *ret_shape = shape;
    return shape.memory_mib != 0;
}

/* Everything a VMM was started with that is not its size. */
static void engine_tag(const struct vm_request_base *b, char tag[SPARE_TAG_SIZE]) {
    char text[512], hex[SHA256_HEX_SIZE];
    (void)text_printf(text, sizeof(text), "%s|%s|%s|%s|%s", b->facts->kernel->sha256, b->facts->kernel->initrd_sha256,
                      b->facts->engine, b->accelerator, SPACE_VERSION);
    sha256_memory_hex(text, strlen(text), hex);
    (void)text_printf(tag, SPARE_TAG_SIZE, "0%.*s", (int)SPARE_TAG_SIZE - 2, hex);
}

/* ---- states ---- */

static const char *const state_names[] = {"starting", "rising", "blank", "loading", "warming", "warm", "stopping"};

static void set_state(struct spare *p, enum spare_state to) {
    p->call = broker_call_forget(p->call);
    if (to == SPARE_STARTING || to == SPARE_STOPPING)
        p->link = vm_link_free(p->link);
    if (to < SPARE_LOADING)
        p->key[0] = '\0';
    loop_timer_stop(p->timer);
    log_event(LOG_L_DEBUG, "spare_step", "vm_id", p->id, "from", state_names[p->state], "to", state_names[to], NULL);
    p->state = to;
    p->since_ms = loop_now_ms(p->all->loop);
    p->missed = 0;
    p->all->on_change(p->all->ctx);
}

static void on_timer(void *ctx);

static struct spare *spare_add(struct spares *s, const char *id, enum spare_state state) {
    struct spare *p = calloc(1, sizeof(*p));
    struct spare **last = &s->first;
    if (!p)
        abort();
    *p = (struct spare){.all = s, .state = state, .since_ms = loop_now_ms(s->loop)};
    (void)text_copy(p->id, sizeof(p->id), id);
    p->timer = loop_timer_new(s->loop, on_timer, p);
    while (*last) /* the oldest first: that is who is taken */
        last = &(*last)->next;
    *last = p;
    return p;
}

static void spare_free(struct spare *p) {
    struct spare **at = &p->all->first;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    broker_call_forget(p->call);
    vm_link_free(p->link);
    loop_timer_free(p->timer);
    free(p);
}

static struct spare *find(const struct spares *s, const char *id) {
    struct spare *p = s->first;
    while (p && strcmp(p->id, id) != 0)
        p = p->next;
    return p;
}

/* ---- the end ---- */

static void on_stopped(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct spare *p = ctx;
    struct spares *s = p->all;
    (void)reply;
    p->call = NULL;
    if (err) {
        if (err->code != SP_E_UNAVAILABLE)
            log_error(LOG_L_ERROR, "vm_stop_failed", err, "vm_id", p->id, NULL);
        loop_timer_start(p->timer, RETRY_MS, 0);
        return;
    }
    spare_free(p);
    s->on_change(s->ctx);
}

static void ask_stop(struct spare *p) {
    if (!p->call && broker_client_is_up(p->all->broker) &&
        broker_call_start(p->all->broker, "vm_stop", json_pack("{s:s}", "id", p->id), on_stopped, p, &p->call, NULL) <
            0)
        loop_timer_start(p->timer, RETRY_MS, 0);
}

static void stop(struct spare *p, const char *why) {
    if (p->state == SPARE_STOPPING)
        return;
    if (p->state != SPARE_BLANK && p->state != SPARE_WARM && !p->adopted)
        p->all->failed_ms = loop_now_ms(p->all->loop);
    log_event(LOG_L_INFO, "spare_stopped", "vm_id", p->id, "state", state_names[p->state], "why", why, NULL);
    set_state(p, SPARE_STOPPING);
    ask_stop(p);
}

static void on_timer(void *ctx) {
    struct spare *p = ctx;
    if (p->state == SPARE_STOPPING)
        ask_stop(p);
    else
        stop(p, "it did not come up in time");
}

/* ---- what it says ---- */

/* One that another run of the node made is what it says it is. */
static void take_in_status(struct spare *p, const struct vm_status *status) {
    if (status->phase == VM_PHASE_WARM && p->key[0])
        set_state(p, SPARE_WARM);
    else if (status->phase == VM_PHASE_BLANK)
        set_state(p, SPARE_BLANK);
    else if (status->phase != VM_PHASE_COMING)
        stop(p, "it was bound halfway");
}

static void on_status(void *ctx, const struct vm_status *status) {
    struct spare *p = ctx;
    p->missed = 0;
    p->phase = status->phase;
    if (status->phase == VM_PHASE_FAILED)
        stop(p, status->message);
    else if (p->state == SPARE_RISING && p->adopted)
        take_in_status(p, status);
    else if (p->state == SPARE_RISING && status->phase == VM_PHASE_BLANK)
        set_state(p, SPARE_BLANK);
    else if (p->state == SPARE_WARMING && status->phase == VM_PHASE_WARM)
        set_state(p, SPARE_WARM);
    else if (p->state == SPARE_WARM && status->phase != VM_PHASE_WARM)
        stop(p, "it is not warm any more");
}

static void on_pong(void *ctx, bool alive) {
    struct spare *p = ctx;
    (void)alive; /* a guest that stands still has no say */
    p->missed = 0;
}

static void on_gone(void *ctx, const char *why) {
    stop(ctx, why);
}

static void watch(struct spare *p) {
    static const struct vm_link_events events = {.on_status = on_status, .on_pong = on_pong, .on_gone = on_gone};
    struct sp_error err = {0};
    set_state(p, SPARE_RISING);
    loop_timer_start(p->timer, START_MS, 0);
    if (vm_link_new(p->all->loop, p->all->base->settings->state_dir, p->id, &events, p, &p->link, &err) < 0)
        stop(p, err.text);
}

/* ---- making ---- */

static void on_started(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct spare *p = ctx;
    (void)reply;
    p->call = NULL;
    if (err)
        stop(p, err->text);
    else
        watch(p);
}

void spares_begin(struct spares *s, const struct vm_shape *shape) {
    char id[ID_SIZE], tag[SPARE_TAG_SIZE];
    struct sp_error err = {0};
    struct spare *p;
    json_t *fields;
    engine_tag(s->base, tag);
    spare_id_make(id, tag, shape);
    if (vm_request_blank(s->base, shape, id, START_MS, &fields, &err) < 0) {
        log_error(LOG_L_ERROR, "spare_request", &err, NULL);
        return;
    }
    p = spare_add(s, id, SPARE_STARTING);
    p->shape = *shape;
    if (broker_call_start(s->broker, "vm_start", fields, on_started, p, &p->call, NULL) < 0)
        spare_free(p);
    s->on_change(s->ctx);
}

static void on_loaded(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct spare *p = ctx;
    (void)reply;
    p->call = NULL;
    if (err) {
        stop(p, err->text);
        return;
    }
    set_state(p, p->phase == VM_PHASE_WARM ? SPARE_WARM : SPARE_WARMING); /* its word may be here before the answer */
    if (p->state == SPARE_WARMING)
        loop_timer_start(p->timer, START_MS, 0);
}

static bool is_well(const struct spare *p) {
    return vm_link_is_up(p->link) && p->missed < MISSES_MAX;
}

static struct spare *find_blank(const struct spares *s, const struct vm_shape *shape) {
    struct spare *p = s->first;
    while (p && !(p->state == SPARE_BLANK && p->shape.vcpus == shape->vcpus &&
                  p->shape.memory_mib == shape->memory_mib && is_well(p)))
        p = p->next;
    return p;
}

bool spares_load(struct spares *s, const struct template_spec *spec) {
    const struct vm_shape shape = {.vcpus = spec->vcpus, .memory_mib = spec->memory_mib};
    struct spare *p = find_blank(s, &shape);
    struct sp_error err = {0};
    json_t *fields;
    if (!p)
        return false;
    if (vm_request_warm(s->base, spec, p->id, START_MS, &fields, &err) < 0) {
        log_error(LOG_L_ERROR, "spare_request", &err, "snapshot", spec->key, NULL);
        return false;
    }
    set_state(p, SPARE_LOADING);
    (void)text_copy(p->key, sizeof(p->key), spec->key);
    if (broker_call_start(s->broker, "vm_load", fields, on_loaded, p, &p->call, NULL) < 0)
        stop(p, "the broker does not answer");
    return true;
}

/* ---- taking ---- */

static void take(struct spare *p, char ret_id[ID_SIZE], struct vm_link **ret_link) {
    struct spares *s = p->all;
    (void)text_copy(ret_id, ID_SIZE, p->id);
    *ret_link = p->link;
    p->link = NULL;
    spare_free(p);
    s->on_change(s->ctx);
}

bool spares_take_blank(struct spares *s, const struct vm_shape *shape, char ret_id[ID_SIZE],
                       struct vm_link **ret_link) {
    struct spare *p = find_blank(s, shape);
    if (!p)
        return false;
    take(p, ret_id, ret_link);
    return true;
}

bool spares_take_warm(struct spares *s, const char *key, char ret_id[ID_SIZE], struct vm_link **ret_link) {
    for (struct spare *p = s->first; p; p = p->next)
        if (p->state == SPARE_WARM && strcmp(p->key, key) == 0 && is_well(p)) {
            take(p, ret_id, ret_link);
            return true;
        }
    return false;
}

void spares_discard(struct spares *s, const char *id) {
    struct spare *p = find(s, id);
    if (!p)
        p = spare_add(s, id, SPARE_BLANK);
    stop(p, "it was of no use");
}

void spares_give_back(struct spares *s, const char *id) {
    char tag[SPARE_TAG_SIZE];
    struct spare *p = find(s, id);
    if (!p)
        p = spare_add(s, id, SPARE_STARTING);
    p->adopted = true;
    engine_tag(s->base, tag);
    if (spare_id_read(id, tag, &p->shape))
        watch(p);
    else
        stop(p, "it was made for another engine");
}

void spares_stop(struct spares *s, const struct spare *spare) {
    struct spare *p = find(s, spare->id);
    if (p)
        stop(p, "there is no need of it");
}

void spares_ping(struct spares *s) {
    for (struct spare *p = s->first; p; p = p->next) {
        if (p->state != SPARE_BLANK && p->state != SPARE_WARM)
            continue;
        if (p->missed++ >= MISSES_MAX)
            stop(p, "it does not answer");
        else
            vm_link_ping(p->link);
    }
}

/* ---- the broker ---- */

static void take_in(struct spares *s, const char *id, const json_t *vm) {
    const char *key = json_string_value(json_object_get(vm, "snapshot"));
    char tag[SPARE_TAG_SIZE];
    struct spare *p = spare_add(s, id, SPARE_STARTING);
    p->adopted = true;
    engine_tag(s->base, tag);
    if (!json_is_true(json_object_get(vm, "alive"))) {
        stop(p, "it had ended when the node came back");
    } else if (!spare_id_read(id, tag, &p->shape)) {
        stop(p, "it was made for another engine");
    } else {
        watch(p);
        if (key && !text_copy(p->key, sizeof(p->key), key))
            p->key[0] = '\0';
    }
}

void spares_sync(struct spares *s, const json_t *vms) {
    const char *id;
    json_t *vm;
    char tag[SPARE_TAG_SIZE];
    struct vm_shape shape;
    engine_tag(s->base, tag);
    for (struct spare *p = s->first, *next; p; p = next) {
        next = p->next;
        if (p->state == SPARE_STOPPING)
            ask_stop(p);
        else if (!spare_id_read(p->id, tag, &shape))
            stop(p, "it was made for another engine"); /* the broker was started anew with it */
        else if (!p->call && (p->state == SPARE_STARTING || p->state == SPARE_LOADING))
            stop(p, "the broker did not answer");
    }
    json_object_foreach ((json_t *)(uintptr_t)vms, id, vm)
        if (id_is_valid(id, "spr") && !find(s, id))
            take_in(s, id, vm);
}

void spares_put_known(const struct spares *s, json_t *ids) {
    for (const struct spare *p = s->first; p; p = p->next)
        (void)json_array_append_new(ids, json_string(p->id));
}

const struct spare *spares_first(const struct spares *s) {
    return s->first;
}

struct spares *spares_new(struct loop *l, struct broker_client *broker, const struct vm_request_base *base,
                          void (*on_change)(void *ctx), void *ctx) {
    struct spares *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    *s = (struct spares){.loop = l, .broker = broker, .base = base, .on_change = on_change, .ctx = ctx};
    return s;
}

struct spares *spares_free(struct spares *s) {
    while (s && s->first)
        spare_free(s->first);
    free(s);
    return NULL;
}

uint64_t spares_failed_ms(const struct spares *s) {
    return s->failed_ms;
}
