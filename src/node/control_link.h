/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's talk with control: register, the desired list by long poll, reports. Each is repeated until it got through;
 * after every loss the node registers anew. What the answers mean is the node's business.
 */
#pragma once
#include "base/error.h"

struct node;
struct control_link;

int control_link_new(struct node *n, struct control_link **ret, struct sp_error *err);
struct control_link *control_link_free(struct control_link *c); /* NULL is fine; returns NULL */
/* The node knows itself: begin. Fine when it has begun. */
void control_link_start(struct control_link *c);
/* Some sandbox has something due; sent in the next round, several together. */
void control_link_report_soon(struct control_link *c);
