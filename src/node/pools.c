/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools by snapshot key, sizes by when they were last in use, and the one decision: what is the next step, if any. Demand is
 * counted in two windows that take turns, so it fades after one to two of them.
 */
#include "node/pools.h"
#include "base/log.h"
#include "base/text.h"
#include <stdlib.h>
#include <string.h>

#define WINDOW_MS 150000u    /* of the demand: it is what came in one to two of them */
#define SHAPE_FOR_MS 600000u /* a size counts as in use for so long */
#define SHAPES_MAX 8u
#define POOLS_MAX 128u
#define BACKOFF_MS 30000u     /* after a template that would not boot */
#define FAILED_MS 5000u       /* after a spare that did not come up */
#define ADOPTED_FOR_MS 60000u /* what another run of the node kept warm has so long to be asked for */
#define DEFAULT_VCPUS 1u      /* before any size was seen: the API's defaults */
#define DEFAULT_MEMORY_MIB 512u

struct pool {
    struct pools *all;
    struct pool *next;
    struct template_spec spec;
    unsigned configured; /* the largest of control's for this key */
    unsigned window[2];  /* starts: in this window, in the one before */
    unsigned hits, misses;
    uint64_t not_before_ms; /* a step failed */
    struct template_waiter waiter;
};

/* A row of control's list. */
struct pool_row {
    char id[DESIRED_POOL_ID_MAX + 1];
    char key[SNAPSHOT_KEY_SIZE];
};

struct shape_use {
    struct vm_shape shape;
    uint64_t used_ms; /* 0: free */
};

struct pools {
    struct loop *loop;
    const struct vm_request_base *base;
    struct spares *spares;
    struct template_cache *templates;
    const struct pools_events *events;
    void *ctx;
    struct pool *first;
    unsigned n;
    struct pool_row rows[DESIRED_POOLS_MAX];
    size_t n_rows;
    struct shape_use shapes[SHAPES_MAX];
    struct loop_timer *look, *turn; /* the next look at what is missing; the windows' turn */
    uint64_t busy_ms;               /* when something was last in flight */
    bool known;                     /* control has said what it wants */
};

unsigned pools_demand(unsigned recent, unsigned most) {
    return recent < most ? recent : most;
}

/* ---- pools and sizes ---- */

static struct pool *find(const struct pools *p, const char *key) {
    struct pool *pool = p->first;
    while (pool && strcmp(pool->spec.key, key) != 0)
        pool = pool->next;
    return pool;
}

static void on_template(void *ctx, const struct fault *fault);

static struct pool *pool_add(struct pools *p, const struct template_spec *spec) {
    struct pool *pool;
    if (p->n >= POOLS_MAX)
        return NULL;
    pool = calloc(1, sizeof(*pool));
    if (!pool)
        abort();
    *pool = (struct pool){.all = p, .next = p->first, .spec = *spec};
    json_incref(pool->spec.manifest);
    pool->waiter.done = on_template;
    pool->waiter.ctx = pool;
    p->first = pool;
    p->n++;
    return pool;
}

static void pool_free(struct pool *pool) {
    struct pool **at = &pool->all->first;
    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
    pool->all->n--;
    template_cache_cancel(&pool->waiter);
    template_spec_done(&pool->spec);
    free(pool);
}

static unsigned target_of(const struct pool *pool) {
    unsigned demand =
        pools_demand(pool->window[0] + pool->window[1], (unsigned)pool->all->base->settings->pool_demand_max);
    return pool->configured > demand ? pool->configured : demand;
}

void pools_note_shape(struct pools *p, const struct vm_shape *shape) {
    struct shape_use *slot = &p->shapes[0];
    for (size_t i = 0; i < SHAPES_MAX; i++) {
        struct shape_use *use = &p->shapes[i];
        if (use->used_ms && use->shape.vcpus == shape->vcpus && use->shape.memory_mib == shape->memory_mib) {
            slot = use;
            break;
        }
        if (use->used_ms < slot->used_ms)
            slot = use;
    }
    *slot = (struct shape_use){.shape = *shape, .used_ms = loop_now_ms(p->loop) + 1};
}

void pools_note_start(struct pools *p, const struct template_spec *spec) {
    const struct vm_shape shape = {.vcpus = spec->vcpus, .memory_mib = spec->memory_mib};
    struct pool *pool = find(p, spec->key);
    pools_note_shape(p, &shape);
    if (!pool)
        pool = pool_add(p, spec);
    if (pool)
        pool->window[0]++;
}

void pools_note_taken(struct pools *p, const char *key, bool hit) {
    struct pool *pool = find(p, key);
    if (pool)
        hit ? pool->hits++ : pool->misses++;
}

static void on_turn(void *ctx) {
    struct pools *p = ctx;
    for (struct pool *pool = p->first, *next; pool; pool = next) {
        next = pool->next;
        pool->window[1] = pool->window[0];
        pool->window[0] = 0;
        if (!target_of(pool))
            pool_free(pool);
    }
    pools_poke(p);
}

void pools_apply(struct pools *p, const struct desired_list *list) {
    p->known = true;
    p->n_rows = 0;
    for (struct pool *pool = p->first; pool; pool = pool->next)
        pool->configured = 0;
    for (size_t i = 0; i < list->n_pools && p->base->accelerator; i++) {
        const struct desired_pool *want = &list->pools[i];
        struct desired like = {.manifest = want->manifest, .vcpus = want->vcpus, .memory_mib = want->memory_mib};
        struct template_spec spec;
        struct pool *pool;
        (void)text_copy(like.template_digest, sizeof(like.template_digest), want->template_digest);
        template_spec_init(&spec, &like, p->base->facts, p->base->accelerator);
        pool = find(p, spec.key);
        if (!pool)
            pool = pool_add(p, &spec);
        if (pool) {
            struct pool_row *row = &p->rows[p->n_rows++];
            pool->configured = want->size > pool->configured ? want->size : pool->configured;
            (void)text_copy(row->id, sizeof(row->id), want->id);
            (void)text_copy(row->key, sizeof(row->key), spec.key);
        }
        template_spec_done(&spec);
    }
    pools_poke(p);
}

/* ---- counting ---- */

struct census {
    unsigned blanks, warm, filling; /* of the size; of the key */
};

static struct census count(const struct pools *p, const struct vm_shape *shape, const char *key) {
    struct census c = {0};
    for (const struct spare *s = spares_first(p->spares); s; s = s->next) {
        if (s->shape.vcpus == shape->vcpus && s->shape.memory_mib == shape->memory_mib)
            c.blanks += s->state <= SPARE_BLANK;
        if (strcmp(s->key, key) == 0 && s->state != SPARE_STOPPING) {
            c.warm += s->state == SPARE_WARM;
            c.filling += s->state == SPARE_LOADING || s->state == SPARE_WARMING;
        }
    }
    return c;
}

static struct vm_shape shape_of(const struct pool *pool) {
    return (struct vm_shape){.vcpus = pool->spec.vcpus, .memory_mib = pool->spec.memory_mib};
}

static bool is_in_use(const struct pools *p, const struct shape_use *use) {
    return use->used_ms && loop_now_ms(p->loop) - use->used_ms + 1 < SHAPE_FOR_MS;
}

/* How many blanks of a size are kept: for sizes in use, before any for the default. */
static unsigned blanks_wanted(const struct pools *p, const struct vm_shape *shape) {
    bool any = false;
    for (size_t i = 0; i < SHAPES_MAX; i++) {
        if (!is_in_use(p, &p->shapes[i]))
            continue;
        any = true;
        if (p->shapes[i].shape.vcpus == shape->vcpus && p->shapes[i].shape.memory_mib == shape->memory_mib)
            return (unsigned)p->base->settings->blank_vmms;
    }
    return !any && shape->vcpus == DEFAULT_VCPUS && shape->memory_mib == DEFAULT_MEMORY_MIB
               ? (unsigned)p->base->settings->blank_vmms
               : 0;
}

/* ---- steps ---- */

/* Warm ones nobody is going to ask for, and blanks of a size that is not in use. */
static const struct spare *find_surplus(const struct pools *p) {
    for (const struct spare *s = spares_first(p->spares); s; s = s->next) {
        const struct pool *pool = s->key[0] ? find(p, s->key) : NULL;
        struct census c = count(p, &s->shape, s->key);
        unsigned pool_blanks = 0;
        if (s->adopted && loop_now_ms(p->loop) - s->since_ms < ADOPTED_FOR_MS)
            continue;
        if (s->state == SPARE_WARM && (!pool || c.warm > target_of(pool)))
            return s;
        for (pool = p->first; pool; pool = pool->next) /* one on its way to a pool */
            pool_blanks +=
                target_of(pool) && pool->spec.vcpus == s->shape.vcpus && pool->spec.memory_mib == s->shape.memory_mib;
        if (s->state == SPARE_BLANK && c.blanks > blanks_wanted(p, &s->shape) && !pool_blanks)
            return s;
    }
    return NULL;
}

static void on_template(void *ctx, const struct fault *fault) {
    struct pool *pool = ctx;
    if (fault)
        pool->not_before_ms = loop_now_ms(pool->all->loop) + BACKOFF_MS;
    pools_poke(pool->all);
}

/* One more warm one for the pool; false when there is nothing to do for it now. */
static bool fill(struct pools *p, struct pool *pool) {
    struct vm_shape shape = shape_of(pool);
    struct census c = count(p, &shape, pool->spec.key);
    if (c.warm + c.filling >= target_of(pool) || pool->waiter.entry || loop_now_ms(p->loop) < pool->not_before_ms)
        return false;
    if (!c.blanks && !p->events->has_room(p->ctx, &shape))
        return false;
    if (template_cache_want(p->templates, &pool->spec, &pool->waiter) == 0)
        return false; /* it is booted first */
    if (!c.blanks)
        spares_begin(p->spares, &shape);
    else if (!spares_load(p->spares, &pool->spec))
        pool->not_before_ms = loop_now_ms(p->loop) + BACKOFF_MS;
    return true;
}

static bool stock(struct pools *p, const struct vm_shape *shape) {
    if (count(p, shape, "?").blanks >= blanks_wanted(p, shape) || !p->events->has_room(p->ctx, shape))
        return false;
    spares_begin(p->spares, shape);
    return true;
}

static bool stock_any(struct pools *p) {
    const struct vm_shape standard = {.vcpus = DEFAULT_VCPUS, .memory_mib = DEFAULT_MEMORY_MIB};
    if (stock(p, &standard))
        return true;
    for (size_t i = 0; i < SHAPES_MAX; i++)
        if (is_in_use(p, &p->shapes[i]) && stock(p, &p->shapes[i].shape))
            return true;
    return false;
}

static bool is_filling(const struct pools *p) {
    for (const struct spare *s = spares_first(p->spares); s; s = s->next)
        if (s->state != SPARE_BLANK && s->state != SPARE_WARM && s->state != SPARE_STOPPING)
            return true;
    return false;
}

static void step(struct pools *p) {
    const struct spare *surplus = find_surplus(p);
    if (surplus) {
        spares_stop(p->spares, surplus);
        return;
    }
    for (struct pool *pool = p->first; pool; pool = pool->next)
        if (fill(p, pool))
            return;
    (void)stock_any(p);
}

static void on_look(void *ctx) {
    struct pools *p = ctx;
    uint64_t now = loop_now_ms(p->loop), failed = spares_failed_ms(p->spares);
    if (p->events->is_busy(p->ctx)) {
        p->busy_ms = now;
        loop_timer_start(p->look, POOLS_IDLE_MS, 0);
    } else if (failed && now - failed < FAILED_MS) {
        loop_timer_start(p->look, FAILED_MS - (now - failed), 0);
    } else if (now - p->busy_ms < POOLS_IDLE_MS) {
        loop_timer_start(p->look, POOLS_IDLE_MS - (now - p->busy_ms), 0);
    } else if (p->known && p->base->accelerator && !is_filling(p)) {
        step(p);
    }
}

void pools_poke(struct pools *p) {
    uint64_t now = loop_now_ms(p->loop);
    if (p->events->is_busy(p->ctx))
        p->busy_ms = now;
    if (!loop_timer_is_active(p->look))
        loop_timer_start(p->look, now - p->busy_ms < POOLS_IDLE_MS ? POOLS_IDLE_MS : 1, 0);
    p->events->on_change(p->ctx);
}

/* ---- interface ---- */

json_t *pools_report(const struct pools *p) {
    json_t *list = json_array();
    for (size_t i = 0; i < p->n_rows; i++) {
        const struct pool *pool = find(p, p->rows[i].key);
        struct vm_shape shape;
        struct census c;
        if (!pool)
            continue;
        shape = shape_of(pool);
        c = count(p, &shape, pool->spec.key);
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "pool_id", p->rows[i].id, "warm",
                                              (int)c.warm, "filling", (int)c.filling, "target", (int)target_of(pool),
                                              "hits", (int)pool->hits, "misses", (int)pool->misses));
    }
    return list;
}

struct pools *pools_new(struct loop *l, const struct vm_request_base *base, struct spares *spares,
                        struct template_cache *templates, const struct pools_events *events, void *ctx) {
    struct pools *p = calloc(1, sizeof(*p));
    if (!p)
        abort();
    *p =
        (struct pools){.loop = l, .base = base, .spares = spares, .templates = templates, .events = events, .ctx = ctx};
    p->look = loop_timer_new(l, on_look, p);
    p->turn = loop_timer_new(l, on_turn, p);
    loop_timer_start(p->turn, WINDOW_MS, WINDOW_MS);
    return p;
}

struct pools *pools_free(struct pools *p) {
    if (!p)
        return NULL;
    while (p->first)
        pool_free(p->first);
    loop_timer_free(p->look);
    loop_timer_free(p->turn);
    free(p);
    return NULL;
}
