# SPDX-License-Identifier: Apache-2.0
"""Promise: two operations asked for at the same time end in a state that one of the two orders allows; a deleted sandbox stays deleted,
and so do children that were on their way."""

import os
import random
import threading
import time

import pytest

from lib.sizes import say, size

SETTLED = {"running", "paused", "suspended", "failed", "deleted"}
# pair: (state before, verbs, states afterwards)
PAIRS = {
    "wake+delete": ("paused", ("wake", "delete"), {"deleted"}),
    "pause+pause": ("running", ("pause", "pause"), {"paused"}),
    "fork+delete": ("running", ("fork", "delete"), {"deleted"}),
    "snapshot+suspend": ("running", ("snapshot", "suspend"), {"suspended", "running"}),
    "suspend+wake": ("running", ("suspend", "wake"), {"suspended", "running"}),
    "suspend+delete": ("running", ("suspend", "delete"), {"deleted"}),
}


def request(api, sid, verb):
    if verb == "delete":
        return api.call("DELETE", "/v1/sandboxes/" + sid)
    return api.ask(sid, verb, {"count": 2} if verb == "fork" else None)


def race(api, sid, verbs, gap):
    answers = [None, None]

    def one(i, wait):
        time.sleep(wait)
        answers[i] = request(api, sid, verbs[i])

    threads = [threading.Thread(target=one, args=(i, w)) for i, w in enumerate((0, gap) if gap >= 0 else (-gap, 0))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


def finish(api, answers):
    """What was accepted comes to an end; what was not says why. Returns children of forks."""
    children, ends = [], []
    for a in answers:
        if a.status == 202:
            op = api.wait(a.json["operation_id"])
            assert op["state"] == "succeeded" or op["error"]["code"], op
            ends.append("%s %s" % (op["kind"], op["state"]))
            children += [c["sandbox_id"] for c in op.get("children") or []]
        else:
            assert a.status in (409, 410) and a.json["code"] in ("operation_in_progress", "wrong_state", "gone"), a
            ends.append(a.json["code"])
    return children, ends


def ready_in(api, sid, state):
    """The sandbox, brought to the state; a new one when it is gone."""
    if sid is None or api.sandbox(sid)["state"] in ("deleted", "failed"):
        sid = api.create()
    now = api.sandbox(sid)["state"]
    if now != state:
        if now != "running":
            api.wake(sid)
        if state != "running":
            api.operate(sid, {"paused": "pause"}[state])
    return sid


@pytest.mark.parametrize("pair", PAIRS)
def test_race(api, pair):
    before, verbs, allowed = PAIRS[pair]
    times = size(4, 200)
    seed = int(os.environ.get("SPACE_RACE_SEED", time.time()))
    rng = random.Random(seed)
    sid, made, outcomes, gone = None, [], {}, []
    for _ in range(times):
        sid = ready_in(api, sid, before)
        made.append(sid)
        answers = race(api, sid, verbs, rng.uniform(-0.06, 0.06))
        children, ends = finish(api, answers)
        state = api.wait_state(sid, *SETTLED)["state"]
        assert state in allowed, (pair, state, answers)
        outcomes[" / ".join(ends) + " → " + state] = outcomes.get(" / ".join(ends) + " → " + state, 0) + 1
        for child in children:
            assert api.wait_state(child, *SETTLED)["state"] in ("running", "failed", "deleted")
            api.delete(child)
            gone.append(child)
        if "delete" in verbs:
            gone.append(sid)
    time.sleep(1)
    for g in gone:
        assert api.sandbox(g)["state"] == "deleted"  # and nothing resurrects it
    if sid not in gone:
        api.delete(sid)
    for s in set(made):
        api.delete_snapshots(s)
    say("%s, seed %d, %d times: %s" % (pair, seed, times, outcomes))
