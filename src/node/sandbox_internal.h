/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the sandbox's state machine share. */
#pragma once
#include "node/sandbox.h"

#define SANDBOX_RETRY_MS 1000u      /* the broker had no room */
#define SANDBOX_LIFECYCLE_MS 15000u /* for a VM to stand still, or to go on */

/* The only way into a state. */
void sandbox_set_state(struct sandbox *s, enum sandbox_step to);
/* STOPPING, and no call is under way: the broker removes what there is. */
void sandbox_ask_stop(struct sandbox *s);
void sandbox_say(struct sandbox *s);        /* to control, soon */
void sandbox_say_lazily(struct sandbox *s); /* … within a second */
uint64_t sandbox_now_ms(const struct sandbox *s);
uint64_t sandbox_left_ms(const struct sandbox *s); /* until the deadline of its start */
/* An operation ended without reaching its aim (fault), or reached it; said with the next report of where it is. */
void sandbox_end_operation(struct sandbox *s, const struct fault *fault);

/* There is a VM: what it says decides. A link that is there is kept. */
void sandbox_follow_vm(struct sandbox *s);
extern const struct vm_link_events sandbox_link_events;
void sandbox_send_identify(struct sandbox *s);
/* Its VM's last status is looked at (again). */
void sandbox_look_at_vm(struct sandbox *s);

void sandbox_start_on_broker_up(struct sandbox *s, enum sandbox_listed listed);
void sandbox_start_retry(struct sandbox *s);
void sandbox_start_done(struct sandbox *s); /* its VM runs */
/* The end of pause, resume or identify. */
void sandbox_on_done(struct sandbox *s, const struct vm_done *done);
/* PAUSING, RESUMING: its VM spoke. */
void sandbox_lifecycle_step(struct sandbox *s);
void sandbox_lifecycle_expired(struct sandbox *s);

void sandbox_job_free(struct snapshot_job *job);
void sandbox_job_give_up(struct sandbox *s, const struct fault *why); /* what is being made will not be */
void sandbox_job_on_broker_up(struct sandbox *s);
void sandbox_look_retry(struct sandbox *s);
