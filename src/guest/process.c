/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands: found by id and by pid; exited records in the order of their end, thrown away from the oldest
 * when a place or ring memory is needed. */
#include "guest/process.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "guest/agent.h"
#include <string.h>

#define RINGS_MAX (32u * 1024u * 1024u)

static unsigned hash_id(const char *id) {
    uint32_t h = 2166136261u;
    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 16777619u;
    return (h ^ (h >> 16)) % 256;
}

static unsigned hash_pid(pid_t pid) {
    return (unsigned)pid % 256;
}

/* Ring memory is short: the oldest ended commands lose their output, not their exit. */
static void reclaim_rings(struct ring_budget *b, size_t need) {
    struct process_table *t = container_of(b, struct process_table, budget);

    for (struct process *p = t->oldest; p && b->used + need > b->max; p = p->newer)
        if (!p->readers)
            for (unsigned i = 0; i < p->n_out; i++)
                ring_drop(&p->out[i].ring);
}

void process_table_init(struct process_table *t, size_t memory_bytes) {
    memset(t, 0, sizeof(*t));
    t->budget.max = memory_bytes / 8 < RINGS_MAX ? memory_bytes / 8 : RINGS_MAX;
    t->budget.reclaim = reclaim_rings;
    t->window = PROCESS_DEFAULT_WINDOW;
    t->retention_ms = PROCESS_DEFAULT_RETENTION_MS;
}

bool process_id_is_good(const char *id) {
    size_t n = strlen(id);
    if (n == 0 || n > PROCESS_ID_MAX)
        return false;
    for (const char *p = id; *p; p++)
        if (!(*p >= 'a' && *p <= 'z') && !(*p >= 'A' && *p <= 'Z') && !(*p >= '0' && *p <= '9') && !strchr("_-.", *p))
            return false;
    return true;
}

struct process *process_find(struct process_table *t, const char *id) {
    for (struct process *p = t->by_id[hash_id(id)]; p; p = p->id_next)
        if (!p->hidden && strcmp(p->id, id) == 0)
            return p;
    return NULL;
}

struct process *process_by_pid(struct process_table *t, pid_t pid) {
    for (struct process *p = t->by_pid[hash_pid(pid)]; p; p = p->pid_next)
        if (p->pid == pid)
            return p;
    return NULL;
}

struct process *process_next(struct process_table *t, unsigned *bucket, struct process *p) {
    if (p)
        p = p->id_next;
    else
        *bucket = 0;
    while (!p && *bucket < 256)
        p = t->by_id[(*bucket)++];
    return p;
}

void process_table_add(struct process_table *t, struct process *p) {
    struct process **at = &t->by_id[hash_id(p->id)];
    p->id_next = *at;
    *at = p;
    t->n++;
    t->n_live++;
}

void process_table_set_pid(struct process_table *t, struct process *p) {
    struct process **at = &t->by_pid[hash_pid(p->pid)];
    p->pid_next = *at;
    *at = p;
}

static void forget_pid(struct process_table *t, struct process *p) {
    for (struct process **at = &t->by_pid[hash_pid(p->pid)]; *at; at = &(*at)->pid_next) {
        if (*at == p) {
            *at = p->pid_next;
            return;
        }
    }
}

void process_table_exited(struct process_table *t, struct process *p) {
    forget_pid(t, p);
    t->n_live--;
    p->older = t->newest;
    p->newer = NULL;
    if (t->newest)
        t->newest->newer = p;
    else
        t->oldest = p;
    t->newest = p;
}

static void forget_exited(struct process_table *t, struct process *p) {
    if (p->older)
        p->older->newer = p->newer;
    else
        t->oldest = p->newer;
    if (p->newer)
        p->newer->older = p->older;
    else
        t->newest = p->older;
}

bool process_table_make_room(struct process_table *t) {
    if (t->n < PROCESS_MAX)
        return true;
    for (struct process *p = t->oldest; p; p = p->newer) {
        if (!p->readers) {
            process_free(p);
            return true;
        }
    }
    return false;
}

/* Frees a record that has ended, or that never had a child. */
void process_free(struct process *p) {
    struct agent *a = p->agent;
    struct process_table *t = &a->processes;

    timer_stop(&a->loop, &p->timeout);
    timer_stop(&a->loop, &p->disconnect);
    timer_stop(&a->loop, &p->expiry);
    for (unsigned i = 0; i < p->n_out; i++) {
        output_close(&p->out[i]);
        ring_drop(&p->out[i].ring);
    }
    if (p->stdin_fd >= 0 && !p->pty)
        p->stdin_fd = close_fd(p->stdin_fd);
    cgroup_release(p->cgroup);
    spawn_free(p->plan);
    if (p->state == PROC_EXITED) {
        forget_exited(t, p);
    } else {
        t->n_live--;
        if (p->pid > 0)
            forget_pid(t, p);
    }
    for (struct process **at = &t->by_id[hash_id(p->id)]; *at; at = &(*at)->id_next) {
        if (*at == p) {
            *at = p->id_next;
            break;
        }
    }
    t->n--;
    free(p);
}
