# SPDX-License-Identifier: Apache-2.0
"""Promise: a sandbox nobody uses is paused, suspended and deleted when its policy says so and not before; what counts as use keeps it;
each automatic step is an operation with its reason; checkpoints are taken while it runs and thinned out as told. The policies' clock is
moved by the tests; the guests' is not."""

import time

import pytest

from lib import api as apilib
from lib import guest
from lib.sizes import say

HOUR = 3600


@pytest.fixture
def box(api):
    made = []

    def make(**lifecycle):
        r = api.ok("POST", "/v1/sandboxes", {"template": "seed:latest", "resources": {"memory_mib": 256}, "lifecycle": lifecycle})
        made.append(r["sandbox"]["id"])
        assert api.wait(r["operation_id"])["state"] == "succeeded"
        return made[-1]

    yield make
    for sid in made:
        api.delete(sid)
        api.delete_snapshots(sid)


def reasons(api, sid):
    return [(o["kind"], o["reason"], o["state"]) for o in api.ok("GET", "/v1/operations?sandbox_id=%s&limit=50" % sid)["items"]]


def stays(api, sid, state, seconds=3):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert api.sandbox(sid)["state"] == state
        time.sleep(0.2)


def quiet(api, sid):
    """Until the node has told of the last use: what it tells after the clock was moved counts from then."""
    end = time.monotonic() + 60
    while api.sandbox(sid)["streams"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    seen = None
    while seen != (now := api.sandbox(sid)["active_at"]):
        seen = now
        time.sleep(3.5)


def test_defaults(api, box):
    sid = box()
    assert api.sandbox(sid)["lifecycle"] == {"idle_pause_after_s": None, "idle_suspend_after_s": 6 * HOUR, "delete_after_s": None,
                                             "max_life_s": None, "wake_on_traffic": True, "checkpoint": None}


def test_pause_then_suspend_then_delete(system, api, box):
    sid = box(idle_pause_after_s=600, idle_suspend_after_s=2 * HOUR, delete_after_s=24 * HOUR)
    guest.write(api, sid, "/home/user/kept", "yes")
    quiet(api, sid)
    system.advance_policies(500)
    stays(api, sid, "running")
    system.advance_policies(200)
    api.wait_state(sid, "paused")
    system.advance_policies(2 * HOUR)
    api.wait_state(sid, "suspended")
    assert guest.read(api, sid, "/home/user/kept") == "yes"  # traffic wakes it, and is use
    assert api.sandbox(sid)["state"] == "running"
    quiet(api, sid)
    system.advance_policies(HOUR)
    api.wait_state(sid, "paused")
    system.advance_policies(25 * HOUR)
    api.wait_state(sid, "deleted")
    seen = reasons(api, sid)
    say("operations of a sandbox left alone: %s" % [x[:2] for x in seen])
    for wanted in (("pause", "idle_pause"), ("suspend", "idle_suspend"), ("wake", "traffic"), ("delete", "delete_after"), ("create", "client")):
        assert wanted + ("succeeded",) in seen, (wanted, seen)


def test_six_hours_are_the_default(system, api, box):
    sid = box()
    system.advance_policies(6 * HOUR - 600)
    stays(api, sid, "running")
    system.advance_policies(700)
    api.wait_state(sid, "suspended")
    assert ("suspend", "idle_suspend", "succeeded") in reasons(api, sid)


def test_what_counts_as_use(system, api, box):
    """An open stream and a running command keep a sandbox; once they have ended it counts from then on."""
    sid = box(idle_pause_after_s=600)
    f = guest.follow(api.session(sid, ["sh", "-c", "sleep 1000"]))
    f.wait(lambda r: r.started)
    system.advance_policies(2 * HOUR)
    stays(api, sid, "running")
    f.over.set()
    assert apilib.signal(f.session, "KILL").status == 200
    f.join(50)
    quiet(api, sid)
    system.advance_policies(500)
    stays(api, sid, "running")
    system.advance_policies(200)
    api.wait_state(sid, "paused")


def test_a_change_by_a_client_counts(system, api, box):
    sid = box(idle_pause_after_s=600)
    system.advance_policies(500)
    api.ok("PATCH", "/v1/sandboxes/" + sid, {"metadata": {"touched": "yes"}})
    system.advance_policies(300)
    stays(api, sid, "running")
    system.advance_policies(400)
    api.wait_state(sid, "paused")


def test_reading_is_no_use(system, api, box):
    sid = box(idle_pause_after_s=600)
    system.advance_policies(500)
    api.sandbox(sid)
    api.ok("GET", "/v1/sandboxes")
    system.advance_policies(200)
    api.wait_state(sid, "paused")


def test_turned_off_and_changed(system, api, box):
    sid = box(idle_pause_after_s=600, idle_suspend_after_s=0)
    api.ok("PATCH", "/v1/sandboxes/" + sid, {"lifecycle": {"idle_pause_after_s": None}})
    system.advance_policies(48 * HOUR)
    stays(api, sid, "running")
    api.ok("PATCH", "/v1/sandboxes/" + sid, {"lifecycle": {"idle_suspend_after_s": 60}})
    system.advance_policies(100)
    api.wait_state(sid, "suspended")


def test_maximum_life_ends_a_used_sandbox(system, api, box):
    sid = box(max_life_s=HOUR, idle_suspend_after_s=0)
    f = guest.follow(api.session(sid, ["sleep", "1000"]))
    f.wait(lambda r: r.started)
    system.advance_policies(HOUR + 100)
    api.wait_state(sid, "deleted")
    f.join(30)
    assert f.result.exited is None and f.result.error and f.result.error["code"] == "sandbox_gone", f.result
    assert ("delete", "max_life", "succeeded") in reasons(api, sid)


def test_checkpoints_are_taken_and_thinned(system, api, box):
    sid = box(idle_suspend_after_s=0, checkpoint={"every_s": HOUR, "keep_last": 2, "keep_hourly": 0, "keep_daily": 2})
    f = guest.follow(api.session(sid, ["sleep", "1000"]))  # in use: checkpoints are of running sandboxes
    f.wait(lambda r: r.started)
    taken = set()
    for _ in range(5):
        system.advance_policies(HOUR + 60)
        end = time.monotonic() + 60
        while True:
            now = {s["id"] for s in api.snapshots(sid, kind="checkpoint") if s["state"] == "ready"}
            if now - taken:
                break
            assert time.monotonic() < end, reasons(api, sid)
            time.sleep(0.1)
        taken |= now
    end = time.monotonic() + 60
    while True:
        left = [s["id"] for s in api.snapshots(sid, kind="checkpoint") if s["state"] == "ready"]
        if 2 <= len(left) <= 4:
            break
        assert time.monotonic() < end, left
        time.sleep(0.2)
    say("%d checkpoints taken, %d kept" % (len(taken), len(left)))
    assert ("snapshot", "checkpoint", "succeeded") in reasons(api, sid)
    newest = left[0]
    f.stop()
    api.rollback(sid, newest)
    assert api.sandbox(sid)["state"] == "running"


def test_bad_policies_name_the_field(api):
    for lifecycle, field in (({"idle_pause_after_s": -1}, "lifecycle.idle_pause_after_s"), ({"colour": 1}, "lifecycle.colour"),
                             ({"checkpoint": {"every_s": 5}}, "lifecycle.checkpoint.every_s"),
                             ({"max_life_s": 10**9}, "lifecycle.max_life_s")):
        a = api.call("POST", "/v1/sandboxes", {"template": "seed:latest", "lifecycle": lifecycle})
        assert a.status == 400 and a.json["field"] == field, a
