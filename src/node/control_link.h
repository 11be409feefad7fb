/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's talk with control: register, the desired list by long poll, reports (control_report.c). Each is repeated until
 * it got through; after every loss the node registers anew. What the answers mean is the node's business.
 */
#pragma once
#include "base/json.h"
#include "io/internal_client.h"

struct node;
struct control_link;

int control_link_new(struct node *n, struct control_link **ret, struct sp_error *err);
struct control_link *control_link_free(struct control_link *c); /* NULL is fine; returns NULL */
/* The node knows itself: begin. Fine when it has begun. */
void control_link_start(struct control_link *c);
/* Some sandbox has something due; sent in the next round, several together. NULL is fine, here and below. */
void control_link_report_soon(struct control_link *c);
/* The same of something that can wait for a second. */
void control_link_report_later(struct control_link *c);
/* The node itself has something to say; in the next round. */
void control_link_report_extra(struct control_link *c);
/* POST /internal/v1/nodes/{node_id}/<what>; body is borrowed. For a call of *ret: internal_call_cancel(). */
int control_link_post(struct control_link *c, const char *what, const json_t *body,
                      void (*done)(void *ctx, const struct internal_answer *a), void *ctx, struct internal_call **ret,
                      struct sp_error *err);
