# SPDX-License-Identifier: Apache-2.0
"""What happens by itself, on a clock that the tests move; and what wakes a sandbox that sleeps."""
import datetime
import time

import pytest
from harness import wait_for


@pytest.fixture(scope="module")
def clocked(postgres):
    """A world whose clock can be moved, with a node that obeys at once."""
    from conftest import World
    w = World(postgres, test_clock=True)
    w.replica()
    w.seed(shared=True)
    w.node()
    yield w
    w.close()


@pytest.fixture
def api(clocked):
    return clocked.replicas[0].admin()


def advance(w, seconds):
    answer = w.replicas[0].internal().call("POST", "/internal/v1/clock", body={"advance_s": seconds})
    assert answer.status == 200, answer
    return answer.json["offset_s"]


def make(api, **lifecycle):
    answer = api.post("/v1/sandboxes", {"template": "seed:latest", "lifecycle": {"idle_suspend_after_s": 0, **lifecycle}},
                      prefer=20)
    assert answer.json["sandbox"]["state"] == "running", answer
    return answer.json["sandbox"]


def state(api, box):
    return api.get(f"/v1/sandboxes/{box['id']}").json["state"]


def becomes(api, box, wanted):
    wait_for(lambda: state(api, box) == wanted, what=wanted)
    return api.get(f"/v1/operations?sandbox_id={box['id']}").json["items"][0]


def stays(api, box, wanted, seconds=0.6):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert state(api, box) == wanted
        time.sleep(0.05)


def test_the_clock_is_for_tests_only(world):
    assert world.replicas[0].internal().call("POST", "/internal/v1/clock", body={"advance_s": 1}).status == 404


def test_lifecycle_of_the_api(api):
    box = api.post("/v1/sandboxes", {"template": "seed:latest"}, prefer=20).json["sandbox"]
    assert box["lifecycle"] == {"idle_pause_after_s": None, "idle_suspend_after_s": 21600, "delete_after_s": None,
                                "max_life_s": None, "wake_on_traffic": True, "checkpoint": None}
    path = f"/v1/sandboxes/{box['id']}"
    changed = api.patch(path, {"lifecycle": {"idle_pause_after_s": 600, "idle_suspend_after_s": 0, "wake_on_traffic": False,
                                             "checkpoint": {"every_s": 3600, "keep_hourly": 24}}}).json["lifecycle"]
    assert changed == {"idle_pause_after_s": 600, "idle_suspend_after_s": None, "delete_after_s": None, "max_life_s": None,
                       "wake_on_traffic": False,
                       "checkpoint": {"every_s": 3600, "content": "full", "keep_last": 1, "keep_hourly": 24, "keep_daily": 0}}
    changed = api.patch(path, {"name": "x", "lifecycle": {"checkpoint": None, "idle_pause_after_s": None}}).json
    assert changed["lifecycle"]["checkpoint"] is None and changed["lifecycle"]["idle_pause_after_s"] is None
    assert changed["lifecycle"]["wake_on_traffic"] is False and changed["name"] == "x"
    for bad, field in (({"max_life_s": -1}, "max_life_s"), ({"max_life_s": 31536001}, "max_life_s"),
                       ({"idle": 1}, "idle"), ({"wake_on_traffic": 1}, "wake_on_traffic"),
                       ({"checkpoint": {"every_s": 59}}, "checkpoint.every_s"), ({"checkpoint": {}}, "checkpoint.every_s"),
                       ({"checkpoint": {"every_s": 60, "keep_last": 101}}, "checkpoint.keep_last"),
                       ({"checkpoint": {"every_s": 60, "content": "memory"}}, "checkpoint.content")):
        refused = api.patch(path, {"lifecycle": bad})
        assert refused.status == 400 and refused.json["field"] == f"lifecycle.{field}", refused


def test_idle_pause_then_suspend_then_delete(api, clocked):
    box = make(api, idle_pause_after_s=1000, idle_suspend_after_s=5000, delete_after_s=20000)
    busy = make(api)
    advance(clocked, 990)
    stays(api, box, "running")
    advance(clocked, 20)
    op = becomes(api, box, "paused")
    assert op["kind"] == "pause" and op["reason"] == "idle_pause" and op["state"] == "succeeded"
    advance(clocked, 4000)
    op = becomes(api, box, "suspended")
    assert op["kind"] == "suspend" and op["reason"] == "idle_suspend"
    assert state(api, busy) == "running"
    advance(clocked, 16000)
    op = becomes(api, box, "deleted")
    assert op["kind"] == "delete" and op["reason"] == "delete_after"
    assert state(api, busy) == "running"


def test_default_is_six_hours(api, clocked):
    box = api.post("/v1/sandboxes", {"template": "seed:latest"}, prefer=20).json["sandbox"]
    advance(clocked, 21590)
    stays(api, box, "running")
    advance(clocked, 20)
    assert becomes(api, box, "suspended")["reason"] == "idle_suspend"


def test_max_life_ends_a_busy_one(api, clocked):
    box = make(api, max_life_s=3000)
    item = {"id": box["id"], "generation": 1}
    node = clocked.nodes[0]
    node.observe({**node.running(item), "streams": 2})
    assert api.get(f"/v1/sandboxes/{box['id']}").json["streams"] == 2
    advance(clocked, 3001)
    assert becomes(api, box, "deleted")["reason"] == "max_life"


def test_what_counts_as_use(api, clocked):
    """Open streams, started commands, a client's change, what the node says was the last activity."""
    node = clocked.nodes[0]
    box = make(api, idle_pause_after_s=1000)
    item = {"id": box["id"], "generation": 1}
    node.observe({**node.running(item), "streams": 1})
    advance(clocked, 2000)
    stays(api, box, "running")
    node.observe({**node.running(item), "streams": 0})
    stays(api, box, "running")
    session = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "x"}).json["session_id"]
    node.call("POST", f"/sessions/{session}/state", {"state": "started", "pid": 1})
    advance(clocked, 2000)
    stays(api, box, "running")
    node.call("POST", f"/sessions/{session}/state", {"state": "exited", "pid": 1, "exit_code": 0})
    advance(clocked, 900)
    stays(api, box, "running")
    api.patch(f"/v1/sandboxes/{box['id']}", {"name": "used"})
    advance(clocked, 900)
    stays(api, box, "running")
    now = datetime.datetime.now(datetime.timezone.utc)
    node.observe({**node.running(item), "active_at": now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03}Z"})
    advance(clocked, 900)
    stays(api, box, "running")
    advance(clocked, 200)
    becomes(api, box, "paused")


def test_checkpoints_and_their_tiers(api, clocked):
    box = make(api, checkpoint={"every_s": 600, "keep_last": 2, "keep_hourly": 3})
    path = f"/v1/snapshots?sandbox_id={box['id']}&kind=checkpoint&state=ready"
    for _ in range(14):
        before = clocked.sql(f"SELECT checkpoint_at FROM sandboxes WHERE id = '{box['id']}'")
        advance(clocked, 601)
        wait_for(lambda: clocked.sql(f"SELECT checkpoint_at FROM sandboxes WHERE id = '{box['id']}'") != before, what="one")
        wait_for(lambda: api.get(f"/v1/sandboxes/{box['id']}").json["operation_id"] is None, what="its end")
    op = api.get(f"/v1/operations?sandbox_id={box['id']}").json["items"][0]
    assert op["kind"] == "snapshot" and op["reason"] == "checkpoint" and op["state"] == "succeeded"
    kept = wait_for(lambda: (lambda x: x if len(x) <= 4 else None)(api.get(path).json["items"]), what="retention")
    assert 2 <= len(kept) <= 4
    assert api.get(f"/v1/sandboxes/{box['id']}").json["snapshot_id"] == kept[0]["id"]
    api.delete(f"/v1/sandboxes/{box['id']}", prefer=20)
    clocked.sql("UPDATE snapshots SET used_at = now() - interval '1 minute'")
    wait_for(lambda: api.get(path).json["items"] == [], what="removal with the sandbox")


def test_checkpoints_of_the_disk_alone(api, clocked):
    """Each content has its own tiers; what a sandbox once woke from stays while nothing newer holds memory."""
    box = make(api, checkpoint={"every_s": 600})
    path = f"/v1/snapshots?sandbox_id={box['id']}&state=ready"

    def last():
        return api.get(f"/v1/sandboxes/{box['id']}").json["snapshot_id"]

    def checkpoint():
        before = last()
        advance(clocked, 601)
        wait_for(lambda: last() != before, what="one")
        return api.get(f"/v1/snapshots/{last()}").json

    api.post(f"/v1/sandboxes/{box['id']}/suspend", {}, prefer=20)
    slept = last()
    api.post(f"/v1/sandboxes/{box['id']}/wake", {}, prefer=20)
    api.patch(f"/v1/sandboxes/{box['id']}", {"lifecycle": {"checkpoint": {"every_s": 600, "content": "disk", "keep_last": 2}}})
    taken = [checkpoint() for _ in range(4)]
    assert all(x["content"] == "disk" and x["kind"] == "checkpoint" and x["memory_bytes"] == 0 for x in taken)
    clocked.sql("UPDATE snapshots SET used_at = now() - interval '1 minute'")
    ids = lambda: [x["id"] for x in api.get(path).json["items"]]  # noqa: E731
    wait_for(lambda: ids() == [taken[3]["id"], taken[2]["id"], slept], what="two of the disk, and what it slept on")
    api.patch(f"/v1/sandboxes/{box['id']}", {"lifecycle": {"checkpoint": {"every_s": 600, "content": "full", "keep_last": 1}}})
    full = checkpoint()
    assert full["content"] == "full"
    clocked.sql("UPDATE snapshots SET used_at = now() - interval '1 minute'")
    wait_for(lambda: ids() == [full["id"], taken[3]["id"]], what="one of each")
    op = api.get(f"/v1/operations?sandbox_id={box['id']}").json["items"][0]
    assert op["kind"] == "snapshot" and op["reason"] == "checkpoint"


def test_operation_in_flight_is_left_alone(api, clocked):
    node = clocked.nodes[0]
    box = make(api, idle_pause_after_s=100)
    node.reaction = lambda i: [] if i["id"] == box["id"] else node.obey(i)
    begun = api.post(f"/v1/sandboxes/{box['id']}/snapshot", {}).json
    advance(clocked, 200)
    stays(api, box, "running", 1)
    node.reaction = node.obey
    node.revision = 0
    assert api.get(f"/v1/operations/{begun['operation_id']}?wait=20").json["state"] == "succeeded"
    advance(clocked, 200)
    assert becomes(api, box, "paused")["reason"] == "idle_pause"


def test_failed_ones_end_too(api, clocked):
    box = make(api, delete_after_s=500)
    node = clocked.nodes[0]
    node.observe(node.failed({"id": box["id"], "generation": 1}))
    advance(clocked, 600)
    assert becomes(api, box, "deleted")["reason"] == "delete_after"


# ---- traffic

def attach(w, session):
    import hashlib
    return w.replicas[0].internal().call("POST", "/internal/v1/attach", body={
        "session_id": session["session_id"], "token_sha256": hashlib.sha256(session["attachment_token"].encode()).hexdigest()})


@pytest.mark.parametrize("how,generation", [("pause", 1), ("suspend", 2)])
def test_a_session_wakes(api, clocked, how, generation):
    node = clocked.nodes[0]
    box = make(api)
    api.post(f"/v1/sandboxes/{box['id']}/{how}", {}, prefer=20)
    node.reaction = lambda i: []
    answer = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "x"}, key=f"k-{how}")
    assert answer.status == 201, answer
    session = answer.json
    shown = api.get(f"/v1/sandboxes/{box['id']}").json
    assert shown["state"] == "waking" and shown["generation"] == generation
    op = api.get(f"/v1/operations/{shown['operation_id']}").json
    assert op["kind"] == "wake" and op["reason"] == "traffic"
    second = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "y"})
    assert second.status == 201, "waking is on its way already"
    held = attach(clocked, session)
    assert held.status == 409 and held.code == "not_ready"
    node.reaction = node.obey
    node.revision = 0
    assert api.get(f"/v1/operations/{op['id']}?wait=20").json["state"] == "succeeded"
    answer = attach(clocked, session)
    assert answer.status == 200 and answer.json["may_start"] is True


def test_where_traffic_does_not_wake(api, clocked):
    box = make(api, wake_on_traffic=False)
    session = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "x"}).json
    api.post(f"/v1/sandboxes/{box['id']}/pause", {}, prefer=20)
    refused = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "x"})
    assert refused.status == 409 and refused.code == "sandbox_not_running", refused
    assert attach(clocked, session).code == "sandbox_not_running"
    assert state(api, box) == "paused"


def test_no_room_to_wake(api, clocked):
    box = make(api)
    api.post(f"/v1/sandboxes/{box['id']}/suspend", {}, prefer=20)
    node = clocked.nodes[0]
    node.observe(capacity={**node.capacity, "memory_mib": 0})
    refused = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "x"})
    assert refused.status == 503 and refused.code == "no_capacity"
    node.observe(capacity=node.capacity)
    assert state(api, box) == "suspended"
