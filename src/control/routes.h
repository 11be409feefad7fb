/* SPDX-License-Identifier: Apache-2.0 */
/* The two routing tables: public (spec/openapi.yaml) and internal (spec/internal-api.md). */
#pragma once
#include "control/request.h"

/* As the HTTP server wants them; made once, at start, valid for ever. */
const struct http_route *routes_public(size_t *ret_n);
const struct http_route *routes_internal(size_t *ret_n);
/* For metrics: index of a route over both tables, and its label (NULL past the last). */
unsigned routes_metric_index(const struct http_route *route);
const char *routes_metric_name(unsigned i);
