/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's half of a request; see request.h. */
#pragma once
#include "io/worker_pool.h"

/* worker_job.run of a request; thread_ctx is the worker's struct store. */
void dispatch_run(struct worker_job *job, void *thread_ctx);
