/* SPDX-License-Identifier: Apache-2.0 */
/* The reports of a control_link; private to it. */
#pragma once
#include "node/control_link.h"

struct reports;
struct reports *reports_new(struct node *n, struct control_link *link);
struct reports *reports_free(struct reports *r); /* before the link's client; NULL is fine; returns NULL */
/* Reports may go out: control knows this node. */
void reports_open(struct reports *r, bool is_open);
void reports_soon(struct reports *r);
void reports_later(struct reports *r);
void reports_extra(struct reports *r); /* with what is said of the node itself */
