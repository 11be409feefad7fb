/* SPDX-License-Identifier: Apache-2.0 */
/* A chained hash table of sessions with something open. */
#include "gateway/session_table.h"
#include "base/text.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096u

struct session_entry {
    struct session_entry *next;
    char id[ID_SIZE];
    unsigned open[SESSION_USES];
};

struct session_table {
    struct session_entry *buckets[BUCKETS];
    unsigned max[SESSION_USES];
    size_t sessions, open[SESSION_USES];
};

struct session_table *session_table_new(const unsigned max_per_session[SESSION_USES]) {
    struct session_table *t = calloc(1, sizeof(*t));
    if (!t)
        abort();
    memcpy(t->max, max_per_session, sizeof(t->max));
    return t;
}

struct session_table *session_table_free(struct session_table *t) {
    for (size_t i = 0; t && i < BUCKETS; i++)
        while (t->buckets[i]) {
            struct session_entry *e = t->buckets[i];
            t->buckets[i] = e->next;
            free(e);
        }
    free(t);
    return NULL;
}

/* Ids are random: any cheap mix of their characters spreads. */
static struct session_entry **bucket_of(struct session_table *t, const char *id) {
    unsigned hash = 0;
    for (; *id; id++)
        hash = hash * 31 + (unsigned char)*id;
    return &t->buckets[hash % BUCKETS];
}

static struct session_entry *find_or_add(struct session_table *t, const char *id) {
    struct session_entry **bucket = bucket_of(t, id), *e;
    for (e = *bucket; e; e = e->next)
        if (strcmp(e->id, id) == 0)
            return e;
    e = calloc(1, sizeof(*e));
    if (!e)
        return NULL;
    (void)text_copy(e->id, sizeof(e->id), id);
    e->next = *bucket;
    *bucket = e;
    t->sessions++;
    return e;
}

struct session_entry *session_enter(struct session_table *t, const char *session_id, enum session_use use) {
    struct session_entry *e = find_or_add(t, session_id);
    if (!e || e->open[use] >= t->max[use])
        return NULL; /* at its limit it has something open, so the entry is not ours to drop */
    e->open[use]++;
    t->open[use]++;
    return e;
}

void session_leave(struct session_table *t, struct session_entry *e, enum session_use use) {
    struct session_entry **p = bucket_of(t, e->id);
    assert(e->open[use] > 0);
    e->open[use]--;
    t->open[use]--;
    for (unsigned i = 0; i < SESSION_USES; i++)
        if (e->open[i])
            return;
    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
    t->sessions--;
    free(e);
}

size_t session_table_sessions(const struct session_table *t) {
    return t->sessions;
}

size_t session_table_open(const struct session_table *t, enum session_use use) {
    return t->open[use];
}
