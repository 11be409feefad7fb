# SPDX-License-Identifier: Apache-2.0
"""Pause, suspend, wake, snapshot, fork and roll back: every verb in every state, what is refused and how, what a node that fails
leaves, and that delete wins over each."""
import time

import pytest
from harness import wait_for

VERBS = ("pause", "suspend", "wake", "snapshot", "fork")


def do(api, box, verb, body=None, prefer=20, **kw):
    return api.post(f"/v1/sandboxes/{box['id']}/{verb}", body, prefer=prefer, **kw)


def done(answer, state):
    """The answer's operation has succeeded and left the sandbox there."""
    assert answer.status == 202, answer
    assert answer.json["operation"]["state"] == "succeeded", answer
    assert answer.json["sandbox"]["state"] == state, answer
    return answer.json


def named(api, box, **body):
    return done(do(api, box, "snapshot", body), box["state"])["snapshot"]


@pytest.fixture
def silent(own_world):
    """A replica and a node that is told what to say."""
    def make(**options):
        w = own_world(**options)
        w.replica()
        w.seed()
        return w, w.node(start=False), w.replicas[0].admin()
    return make


def start(api, node):
    """A sandbox that runs, on a node that does nothing by itself."""
    made = api.post("/v1/sandboxes", {"template": "seed"}).json["sandbox"]
    node.observe(node.running({"id": made["id"], "generation": 1}))
    return api.get(f"/v1/sandboxes/{made['id']}").json


def item(node, box):
    node.revision = 0
    node.poll(wait=0)
    return node.desired[box["id"]]


@pytest.fixture
def quiet(silent):
    """The same, with a sandbox that runs; its node answers nothing."""
    w, node, api = silent()
    node.reaction = lambda i: []
    return w, node, api, start(api, node)


def test_what_a_pause_asks_of_the_database(own_world):
    """A notification is told once: each look at the node's list that finds nothing new would come with every pause."""
    w = own_world()
    w.replica()
    w.seed()
    w.node()
    api = w.replicas[0].admin()
    box = api.post("/v1/sandboxes", {"template": "seed"}, prefer=20).json["sandbox"]

    def transactions():
        time.sleep(11)  # a connection that rests reports after ten seconds
        return int(w.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")[0][0])

    before, rounds = transactions(), 100
    for _ in range(rounds):
        done(do(api, box, "pause"), "paused")
        done(do(api, box, "wake"), "running")
    each = (transactions() - before) / (2 * rounds)  # the reconciler's passes of those seconds among them
    print("%.1f transactions a verb" % each)
    assert each < 9, each


def test_pause_and_wake(api, running):
    box = running()
    assert box["generation"] == 1
    paused = done(do(api, box, "pause"), "paused")
    assert paused["operation"]["kind"] == "pause" and paused["operation"]["reason"] == "client"
    assert paused["sandbox"]["ready"] is False and paused["sandbox"]["generation"] == 1
    again = done(do(api, box, "pause", {}), "paused")
    assert again["operation_id"] != paused["operation_id"], "one of its own, that succeeded at once"
    woken = done(do(api, box, "wake"), "running")
    assert woken["sandbox"]["ready"] is True and woken["sandbox"]["generation"] == 1
    done(do(api, box, "wake"), "running")
    timings = woken["operation"]["timings"]
    assert timings["control_total_ms"] >= timings["control_running_ms"] >= 0


def test_suspend_and_wake(api, running, world):
    box = running()
    down = done(do(api, box, "suspend"), "suspended")
    first = down["operation"]["snapshot_id"]
    assert first and down["sandbox"]["snapshot_id"] == first and down["sandbox"]["generation"] == 1
    done(do(api, box, "suspend"), "suspended")
    assert api.get(f"/v1/snapshots/{first}").json["kind"] == "suspend"
    up = done(do(api, box, "wake"), "running")
    assert up["sandbox"]["generation"] == 2 and up["operation"]["snapshot_id"] == first
    assert up["operation"]["start_kind"] == "warm" and up["sandbox"]["start_kind"] == "warm"
    done(do(api, box, "pause"), "paused")
    second = done(do(api, box, "suspend"), "suspended")["operation"]["snapshot_id"]
    shown = api.get(f"/v1/snapshots/{second}").json
    assert shown["parent_id"] == first and shown["generation"] == 2 and shown["state"] == "ready"
    assert shown["memory_bytes"] == 1 << 20 and shown["stall_us"] == 3000 and shown["ready_at"]
    # The first one is superseded: the platform removes it once nobody can be starting from it any more.
    world.sql(f"UPDATE snapshots SET used_at = now() - interval '1 minute' WHERE id = '{first}'")
    wait_for(lambda: api.get(f"/v1/snapshots/{first}").status == 404, what="removal of a superseded snapshot")
    assert api.get(f"/v1/snapshots/{second}").json["state"] == "ready"
    done(do(api, box, "wake"), "running")


def test_snapshots_are_objects(api, running):
    box = running()
    x = named(api, box, name="before", metadata={"step": "7"})
    assert x["state"] == "ready" and x["kind"] == "snapshot" and x["name"] == "before" and x["sandbox_id"] == box["id"]
    assert api.get(f"/v1/sandboxes/{box['id']}").json["snapshot_id"] == x["id"]
    done(do(api, box, "pause"), "paused")
    box["state"] = "paused"
    second = named(api, box)
    done(do(api, box, "suspend"), "suspended")
    box["state"] = "suspended"
    copy = named(api, box)
    assert api.get(f"/v1/sandboxes/{box['id']}").json["snapshot_id"] != copy["id"], "it stands on its own one"
    listed = [s["id"] for s in api.get(f"/v1/snapshots?sandbox_id={box['id']}&kind=snapshot").json["items"]]
    assert listed == [copy["id"], second["id"], x["id"]]
    page = api.get(f"/v1/snapshots?sandbox_id={box['id']}&limit=1").json
    assert page["next_cursor"] and len(page["items"]) == 1
    assert api.get("/v1/snapshots?state=failed").json["items"] == []
    changed = api.patch(f"/v1/snapshots/{x['id']}", {"name": None, "metadata": {"step": None, "a": "b"}}).json
    assert changed["name"] is None and changed["metadata"] == {"a": "b"}
    # They outlive their sandbox; the platform's own do not.
    assert api.delete(f"/v1/sandboxes/{box['id']}", prefer=20).json["operation"]["state"] == "succeeded"
    assert api.get(f"/v1/snapshots/{x['id']}").json["state"] == "ready"
    gone = api.delete(f"/v1/snapshots/{x['id']}")
    assert gone.status == 202 and gone.json["state"] == "deleting"
    wait_for(lambda: api.get(f"/v1/snapshots/{x['id']}").status == 404, what="the node removed it")
    assert api.delete(f"/v1/snapshots/{x['id']}").code == "not_found"


def test_snapshot_of_the_disk_alone(api, running):
    """Taken while it runs only; whoever starts from one boots."""
    box = running()
    full = named(api, box)
    assert full["content"] == "full"
    x = named(api, box, name="files", content="disk")
    assert x["content"] == "disk" and x["kind"] == "snapshot" and x["memory_bytes"] == 0 and x["disk_bytes"]
    assert api.get(f"/v1/sandboxes/{box['id']}").json["snapshot_id"] == x["id"]
    assert [s["content"] for s in api.get(f"/v1/snapshots?sandbox_id={box['id']}").json["items"]] == ["disk", "full"]
    back = done(do(api, box, "rollback", {"snapshot_id": x["id"]}), "running")
    assert back["operation"]["start_kind"] == "boot" and back["sandbox"]["generation"] == 2
    assert back["sandbox"]["start_kind"] == "boot"
    made = done(api.post("/v1/sandboxes", {"snapshot_id": x["id"]}, prefer=20), "running")
    assert made["operation"]["start_kind"] == "boot"
    done(do(api, box, "pause"), "paused")
    for state in ("paused", "suspended"):
        refused = do(api, box, "snapshot", {"content": "disk"}, prefer=None)
        assert refused.status == 409 and refused.code == "wrong_state" and refused.json["field"] == "content", refused
        assert state in refused.json["detail"]
        done(do(api, box, "suspend"), "suspended")
    # What it is suspended on holds memory, whatever came before.
    woken = done(do(api, box, "wake"), "running")
    assert woken["operation"]["start_kind"] == "warm"


def test_failed_is_woken_from_a_disk_too(quiet):
    """From the last good one, whatever it holds; and its node is told which that is."""
    w, node, api, box = quiet
    for content in ("full", "disk"):
        do(api, box, "snapshot", {"content": content}, prefer=None)
        i = item(node, box)
        assert i["snapshot"]["content"] == content and i["start"] is None
        node.observe(node.says(i, "running", True, snapshot=node.snapshot_of(i)))
    node.observe(node.failed(i))
    node.observe(node.gone(i))
    op = do(api, box, "wake", prefer=None).json
    again = item(node, box)
    assert again["start"] == {"snapshot_id": i["snapshot"]["id"], "content": "disk"} and again["generation"] == 2
    node.observe({**node.running(again), "start_kind": "boot"})
    assert api.get(f"/v1/operations/{op['operation_id']}").json["start_kind"] == "boot"
    assert api.get(f"/v1/sandboxes/{box['id']}").json["snapshot_id"] == i["snapshot"]["id"]


def test_create_from_a_snapshot(api, running):
    box = running(metadata={"a": "b"}, resources={"vcpus": 2, "memory_mib": 256})
    x = named(api, box)
    made = done(api.post("/v1/sandboxes", {"snapshot_id": x["id"], "name": "again"}, prefer=20), "running")["sandbox"]
    assert made["parent"] == {"sandbox_id": box["id"], "snapshot_id": x["id"]} and made["resources"] == box["resources"]
    assert made["template"] == box["template"] and made["node_id"] == box["node_id"] and made["metadata"] == {}
    for body, field in (({"snapshot_id": x["id"], "template": "seed"}, "snapshot_id"), ({}, "template"),
                        ({"snapshot_id": x["id"], "resources": {"vcpus": 1}}, "resources"),
                        ({"snapshot_id": "snp_x"}, "snapshot_id")):
        refused = api.post("/v1/sandboxes", body)
        assert refused.status == 400 and refused.json["field"] == field, (body, refused)
    missing = api.post("/v1/sandboxes", {"snapshot_id": "snp_" + "0" * 26})
    assert missing.status == 404 and missing.json["field"] == "snapshot_id"


def test_fork(api, running):
    box = running(name="root", metadata={"a": "b"}, env={"X": "1"}, lifecycle={"idle_pause_after_s": 77})
    answer = do(api, box, "fork", {"count": 3, "name": "leaf"})
    made = done(answer, "running")
    assert len(made["children"]) == 3 and made["sandbox"]["id"] == box["id"]
    outcome = made["operation"]["children"]
    assert [c["sandbox_id"] for c in outcome] == [c["sandbox_id"] for c in made["children"]]
    assert all(c["state"] == "succeeded" and c["error"] is None for c in outcome)
    children = [api.get(f"/v1/sandboxes/{c['sandbox_id']}").json for c in made["children"]]
    assert [c["name"] for c in children] == ["leaf-1", "leaf-2", "leaf-3"]
    snapshot = made["operation"]["snapshot_id"]
    for child in children:
        assert child["state"] == "running" and child["parent"] == {"sandbox_id": box["id"], "snapshot_id": snapshot}
        assert child["metadata"] == {"a": "b"} and child["lifecycle"]["idle_pause_after_s"] == 77
    one = done(do(api, children[0], "fork"), "running")
    child = api.get(f"/v1/sandboxes/{one['children'][0]['sandbox_id']}").json
    assert child["name"] is None and child["parent"]["sandbox_id"] == children[0]["id"]


def test_fork_of_the_others(api, running):
    """Of a paused one a snapshot is made; a suspended one has one already."""
    box = running()
    done(do(api, box, "pause"), "paused")
    done(do(api, box, "fork", {"count": 2, "metadata": {"x": "y"}, "env": {"K": "v"}}), "paused")
    down = done(do(api, box, "suspend"), "suspended")
    made = done(do(api, box, "fork"), "suspended")
    child = api.get(f"/v1/sandboxes/{made['children'][0]['sandbox_id']}").json
    assert child["state"] == "running" and child["parent"]["snapshot_id"] == down["operation"]["snapshot_id"]
    assert made["operation"]["snapshot_id"] is None


def test_rollback(api, running):
    box = running()
    first = named(api, box)
    second = named(api, box)
    session = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "x"}).json["session_id"]
    back = done(do(api, box, "rollback", {"snapshot_id": first["id"]}), "running")
    assert back["sandbox"]["generation"] == 2 and back["operation"]["snapshot_id"] == first["id"]
    assert back["sandbox"]["snapshot_id"] == first["id"]
    assert api.get(f"/v1/sessions/{session}").json["state"] == "lost", "its process is of another time"
    done(do(api, box, "rollback", {"snapshot_id": second["id"]}), "running")
    done(do(api, box, "pause"), "paused")
    done(do(api, box, "rollback", {"snapshot_id": first["id"]}), "running")
    done(do(api, box, "suspend"), "suspended")
    done(do(api, box, "rollback", {"snapshot_id": first["id"]}), "running")


def test_rollback_stays_in_the_line(api, running):
    root = running()
    early = named(api, root)
    child_id = done(do(api, root, "fork"), "running")["children"][0]["sandbox_id"]
    late = named(api, root)
    child = api.get(f"/v1/sandboxes/{child_id}").json
    grandchild = {"id": done(do(api, child, "fork"), "running")["children"][0]["sandbox_id"], "state": "running"}
    done(do(api, grandchild, "rollback", {"snapshot_id": early["id"]}), "running")
    done(do(api, child, "rollback", {"snapshot_id": early["id"]}), "running")
    own = named(api, child)
    for box, snapshot in ((child, late), (root, own), (grandchild, own)):
        refused = do(api, box, "rollback", {"snapshot_id": snapshot["id"]})
        assert refused.status == 409 and refused.code == "wrong_state" and refused.json["field"] == "snapshot_id"
    missing = do(api, root, "rollback", {"snapshot_id": "snp_" + "0" * 26})
    assert missing.status == 404 and missing.json["field"] == "snapshot_id"
    assert do(api, root, "rollback", {}).json["field"] == "snapshot_id"


def test_what_is_refused_while_one_runs(quiet):
    """409 with the id of the running one, for every verb; the retry with the same key is judged anew."""
    w, node, api, box = quiet
    for verb, state in (("pause", "pausing"), ("suspend", "suspending"), ("snapshot", "running"), ("fork", "running")):
        begun = do(api, box, verb, prefer=None)
        assert begun.status == 202 and begun.json["sandbox"]["state"] == state, begun
        for other in VERBS:
            refused = do(api, box, other, prefer=None)
            assert refused.status == 409 and refused.code == "operation_in_progress", (verb, other, refused)
            assert refused.json["operation_id"] == begun.json["operation_id"]
        some = {"snapshot_id": "snp_" + "0" * 26}
        assert do(api, box, "rollback", some, prefer=None).code == "operation_in_progress"
        shown = api.get(f"/v1/sandboxes/{box['id']}").json
        assert shown["operation_id"] == begun.json["operation_id"]
        node.observe(node.says(item(node, box), "running", True,
                               operation={"id": begun.json["operation_id"], "error": {"code": "guest_busy", "message": "no"}}))
        op = api.get(f"/v1/operations/{begun.json['operation_id']}").json
        assert op["state"] == "failed" and op["error"] == {"code": "guest_busy", "message": "no"}, op
        shown = api.get(f"/v1/sandboxes/{box['id']}").json
        assert shown["state"] == "running" and shown["operation_id"] is None and shown["error"] is None


def test_wrong_states(quiet):
    w, node, api, box = quiet
    node.observe(node.failed({"id": box["id"], "generation": 1}))
    for verb in ("pause", "suspend", "snapshot", "wake", "fork"):
        refused = do(api, box, verb)
        assert refused.status == 409 and refused.code == "wrong_state" and "failed" in refused.json["detail"], (verb, refused)
    api.delete(f"/v1/sandboxes/{box['id']}")
    for verb in VERBS:
        assert do(api, box, verb).code == "gone"
    assert do(api, box, "rollback", {"snapshot_id": "snp_" + "0" * 26}).code == "gone"


def test_suspended_cannot_be_paused(api, running):
    box = running()
    done(do(api, box, "suspend"), "suspended")
    assert do(api, box, "pause").code == "wrong_state"


def test_delete_wins_over_each(silent):
    w, node, api = silent()
    node.reaction = lambda i: []
    for verb in VERBS:
        box = start(api, node)
        begun = do(api, box, verb, prefer=None).json
        gone = api.delete(f"/v1/sandboxes/{box['id']}").json
        assert gone["sandbox"]["state"] == "deleting"
        op = api.get(f"/v1/operations/{begun['operation_id']}").json
        if verb != "wake":
            assert op["state"] == "failed" and op["error"]["code"] == "superseded", (verb, op)
        i = item(node, box)
        assert i["desired"] == "deleted" and i["snapshot"] is None
        for state in ("running", "paused", "suspended"):
            node.observe(node.says(i, state, state == "running"))
            assert api.get(f"/v1/sandboxes/{box['id']}").json["state"] == "deleting", (verb, state)
        node.observe(node.gone(i))
        assert api.get(f"/v1/sandboxes/{box['id']}").json["state"] == "deleted"
        if verb == "fork":
            child = begun["children"][0]
            op = wait_for(lambda: (lambda o: o if o["state"] == "failed" else None)(
                api.get(f"/v1/operations/{child['operation_id']}").json), what="the child gives up")
            assert op["error"]["code"] == "parent_gone"
            assert api.get(f"/v1/sandboxes/{child['sandbox_id']}").json["state"] == "failed"


def test_suspend_ends_with_a_durable_snapshot(quiet):
    """`suspended` alone is not enough; what is reported is settled once it is recorded."""
    w, node, api, box = quiet
    op = do(api, box, "suspend", prefer=None).json["operation_id"]
    i = item(node, box)
    assert i["desired"] == "suspended" and i["snapshot"]["kind"] == "suspend" and i["start"] is None
    node.observe(node.says(i, "suspended"))
    assert api.get(f"/v1/operations/{op}").json["state"] == "pending"
    answer = node.observe(node.says(i, "suspended", snapshot=node.snapshot_of(i)))
    assert answer["settled"] == [i["snapshot"]["id"]]
    assert api.get(f"/v1/operations/{op}").json["state"] == "succeeded"
    assert node.observe(node.says(i, "suspended", snapshot=node.snapshot_of(i)))["settled"] == [i["snapshot"]["id"]]
    i = item(node, box)
    assert i["desired"] == "suspended" and i["snapshot"] is None and i["start"] is None
    assert api.get("/v1/nodes").json["items"][0]["allocated"]["memory_mib"] == 0, "it holds no memory any more"


def test_wake_of_a_suspended_one_that_fails(quiet):
    w, node, api, box = quiet
    do(api, box, "suspend", prefer=None)
    i = item(node, box)
    node.observe(node.says(i, "suspended", snapshot=node.snapshot_of(i)))
    kept = i["snapshot"]["id"]
    for report in (lambda i, op: node.failed(i, "vmm_failed"),
                   lambda i, op: node.says(i, "suspended", operation={"id": op, "error": {"code": "no_capacity"}})):
        op = do(api, box, "wake", prefer=None).json["operation_id"]
        i = item(node, box)
        assert i["desired"] == "running" and i["start"] == {"snapshot_id": kept, "content": "full"} and i["observed"] == "waking"
        node.observe(node.says(i, "creating"))
        assert api.get(f"/v1/operations/{op}").json["state"] == "running"
        node.observe(report(i, op))
        shown = api.get(f"/v1/sandboxes/{box['id']}").json
        assert api.get(f"/v1/operations/{op}").json["state"] == "failed"
        assert shown["state"] == "suspended" and shown["snapshot_id"] == kept and shown["error"] is None
    # A snapshot that is broken is another matter.
    do(api, box, "wake", prefer=None)
    node.observe(node.failed(item(node, box), "snapshot_broken"))
    assert api.get(f"/v1/sandboxes/{box['id']}").json["state"] == "failed"


def test_failed_is_woken_from_its_last_good_snapshot(quiet):
    w, node, api, box = quiet
    do(api, box, "snapshot", prefer=None)
    i = item(node, box)
    node.observe(node.says(i, "running", True, snapshot=node.snapshot_of(i)))
    node.observe(node.failed(i))
    node.observe(node.gone(i))
    assert api.get(f"/v1/sandboxes/{box['id']}").json["state"] == "failed"
    op = do(api, box, "wake", prefer=None).json
    assert op["sandbox"]["state"] == "waking" and op["sandbox"]["generation"] == 2 and op["sandbox"]["error"] is None
    again = item(node, box)
    assert again["start"] == {"snapshot_id": i["snapshot"]["id"], "content": "full"} and again["generation"] == 2
    assert node.observe(node.running(i))["accepted"] == 0, "another generation's"
    node.observe(node.running(again, ready=False))
    assert api.get(f"/v1/sandboxes/{box['id']}").json["state"] == "waking"
    node.observe(node.running(again))
    assert api.get(f"/v1/operations/{op['operation_id']}").json["state"] == "succeeded"
    node.observe(node.failed(again))
    node.observe(node.gone(again))
    fork = do(api, box, "fork", prefer=None)
    assert fork.status == 202 and fork.json["sandbox"]["state"] == "failed"
    child = item(node, {"id": fork.json["children"][0]["sandbox_id"]})
    assert child["start"] == {"snapshot_id": i["snapshot"]["id"], "content": "full"}
    node.observe(node.running(child))
    assert api.get(f"/v1/operations/{fork.json['operation_id']}?wait=10").json["state"] == "succeeded"
    back = do(api, box, "rollback", {"snapshot_id": i["snapshot"]["id"]}, prefer=None)
    assert back.status == 202 and back.json["sandbox"]["generation"] == 3


def test_lost_on_the_way(silent):
    """A VM that ends in the middle of a verb fails the sandbox and the operation with it."""
    w, node, api = silent()
    node.reaction = lambda i: []
    for verb in ("pause", "suspend", "snapshot", "fork"):
        box = start(api, node)
        op = do(api, box, verb, prefer=None).json["operation_id"]
        node.observe(node.failed(item(node, box), "vmm_killed", "gone"))
        assert api.get(f"/v1/operations/{op}").json["error"] == {"code": "vmm_killed", "message": "gone"}, verb
        assert api.get(f"/v1/sandboxes/{box['id']}").json["state"] == "failed"


def test_snapshot_that_fails(quiet):
    w, node, api, box = quiet
    made = do(api, box, "snapshot", {"name": "x"}, prefer=None).json
    refused = api.delete(f"/v1/snapshots/{made['snapshot']['id']}")
    assert refused.code == "snapshot_in_use" and refused.json["operation_id"] == made["operation_id"]
    i = item(node, box)
    answer = node.observe(node.says(i, "running", True, snapshot=node.snapshot_of(
        i, "failed", error={"code": "host_disk_full", "message": "no room"})))
    assert answer["settled"] == [i["snapshot"]["id"]]
    assert api.get(f"/v1/operations/{made['operation_id']}").json["error"]["code"] == "host_disk_full"
    shown = api.get(f"/v1/snapshots/{i['snapshot']['id']}").json
    assert shown["state"] == "failed" and shown["error"] == {"code": "host_disk_full", "message": "no room"}
    assert api.post("/v1/sandboxes", {"snapshot_id": shown["id"]}).code == "wrong_state"
    assert do(api, box, "rollback", {"snapshot_id": shown["id"]}).code == "wrong_state"
    assert api.delete(f"/v1/snapshots/{shown['id']}").status == 202
    assert api.patch(f"/v1/snapshots/{shown['id']}", {"name": "y"}).code == "gone"


def test_fork_whose_snapshot_fails(quiet):
    w, node, api, box = quiet
    made = do(api, box, "fork", {"count": 2}, prefer=None).json
    i = item(node, box)
    assert i["snapshot"]["kind"] == "fork" and len(node.desired) == 3
    for child in made["children"]:
        assert node.desired[child["sandbox_id"]]["start"] == {"snapshot_id": i["snapshot"]["id"], "content": "full"}
    node.observe(node.says(i, "running", True, snapshot=node.snapshot_of(i, "failed", error={"code": "io"})))
    op = api.get(f"/v1/operations/{made['operation_id']}").json
    assert op["state"] == "failed" and op["error"]["code"] == "io"
    for child in made["children"]:
        op = api.get(f"/v1/operations/{child['operation_id']}?wait=10").json
        assert op["state"] == "failed" and op["error"]["code"] == "parent_gone"


def test_fork_with_children_that_fail(quiet):
    """The operation ends with the last child, says which failed, and the parent can be used again."""
    w, node, api, box = quiet
    made = do(api, box, "fork", {"count": 3}, prefer=None).json
    i = item(node, box)
    node.observe(node.says(i, "running", True, snapshot=node.snapshot_of(i)))
    a, b, c = (item(node, {"id": child["sandbox_id"]}) for child in made["children"])
    node.observe(node.running(a), node.failed(b))
    assert api.get(f"/v1/operations/{made['operation_id']}").json["state"] == "pending"
    assert do(api, box, "pause").code == "operation_in_progress"
    api.delete(f"/v1/sandboxes/{c['id']}")
    op = api.get(f"/v1/operations/{made['operation_id']}?wait=10").json
    assert op["state"] == "failed" and op["error"]["code"] == "children_failed"
    assert [x["state"] for x in op["children"]] == ["succeeded", "failed", "failed"]
    assert [x["error"] and x["error"]["code"] for x in op["children"]] == [None, "vmm_failed", "superseded"]
    assert api.get(f"/v1/sandboxes/{box['id']}").json["operation_id"] is None
    w.sql("UPDATE snapshots SET used_at = now() - interval '1 minute'")
    wait_for(lambda: api.get(f"/v1/snapshots/{i['snapshot']['id']}").json["state"] == "deleting", what="the fork's snapshot")


def test_deadlines(silent):
    """A node that says nothing: the operation fails, the sandbox is where it was, and late news change nothing."""
    w, node, api = silent()
    node.reaction = lambda i: []
    for verb in ("pause", "suspend", "snapshot", "fork"):
        box = start(api, node)
        op = do(api, box, verb, prefer=None).json["operation_id"]
        i = item(node, box)
        w.sql(f"UPDATE operations SET deadline_at = now() WHERE id = '{op}'")
        ended = api.get(f"/v1/operations/{op}?wait=20").json
        assert ended["state"] == "failed" and ended["error"]["code"] == "deadline_exceeded", (verb, ended)
        shown = api.get(f"/v1/sandboxes/{box['id']}").json
        assert shown["state"] == "running" and shown["operation_id"] is None
        if i["snapshot"]:
            answer = node.observe(node.says(i, "running", True, snapshot=node.snapshot_of(i)))
            assert answer["settled"] == [i["snapshot"]["id"]]
            assert api.get(f"/v1/snapshots/{i['snapshot']['id']}").json["state"] in ("failed", "deleting")
        assert item(node, box)["desired"] == "running"
    box = start(api, node)
    do(api, box, "suspend", prefer=None)
    i = item(node, box)
    node.observe(node.says(i, "suspended", snapshot=node.snapshot_of(i)))
    op = do(api, box, "wake", prefer=None).json["operation_id"]
    w.sql(f"UPDATE operations SET deadline_at = now() WHERE id = '{op}'")
    assert api.get(f"/v1/operations/{op}?wait=20").json["error"]["code"] == "deadline_exceeded"
    shown = api.get(f"/v1/sandboxes/{box['id']}").json
    assert shown["state"] == "suspended" and shown["generation"] == 3, "what it had begun has to end"


def test_node_booted_anew(silent):
    w, node, api = silent()
    node.reaction = lambda i: []
    boxes = {verb: start(api, node) for verb in ("none", "pause", "suspend", "snapshot", "suspended", "waking", "paused")}
    for verb in ("suspended", "waking"):
        do(api, boxes[verb], "suspend", prefer=None)
        i = item(node, boxes[verb])
        node.observe(node.says(i, "suspended", snapshot=node.snapshot_of(i)))
    do(api, boxes["paused"], "pause", prefer=None)
    node.observe(node.says(item(node, boxes["paused"]), "paused"))
    do(api, boxes["waking"], "wake", prefer=None)
    for verb in ("pause", "suspend", "snapshot"):
        do(api, boxes[verb], verb, prefer=None)
    node.boot_id = "another"
    node.register()
    states = {verb: api.get(f"/v1/sandboxes/{b['id']}").json["state"] for verb, b in boxes.items()}
    assert states == {"none": "failed", "pause": "failed", "suspend": "failed", "snapshot": "failed", "paused": "failed",
                      "suspended": "suspended", "waking": "waking"}


def test_quota_and_room(silent):
    w, node, api = silent()
    node.reaction = lambda i: []
    box = start(api, node)
    api.patch("/v1/tenants/self", {"quotas": {"max_sandboxes": 3}})
    refused = do(api, box, "fork", {"count": 3})
    assert refused.status == 429 and refused.json["field"] == "max_sandboxes"
    api.patch("/v1/tenants/self", {"quotas": {"max_sandboxes": 1000, "max_vcpus": 2}})
    assert do(api, box, "fork", {"count": 2}).json["field"] == "max_vcpus"
    api.patch("/v1/tenants/self", {"quotas": {"max_vcpus": 4000, "max_memory_mib": 1 << 20}})
    refused = do(api, box, "fork", {"count": 100})
    assert refused.status == 202, refused
    api.delete(f"/v1/sandboxes/{box['id']}")
    box = start(api, node)
    do(api, box, "suspend", prefer=None)
    i = item(node, box)
    node.observe(node.says(i, "suspended", snapshot=node.snapshot_of(i)))
    node.observe(capacity={**node.capacity, "memory_mib": 100})
    for verb in ("wake", "fork"):
        full = do(api, box, verb)
        assert full.status == 503 and full.code == "no_capacity", (verb, full)
    assert do(api, box, "rollback", {"snapshot_id": i["snapshot"]["id"]}).code == "no_capacity"
    assert api.post("/v1/sandboxes", {"snapshot_id": i["snapshot"]["id"]}).code == "no_capacity"
    w.sql("INSERT INTO snapshots (id, tenant_id, sandbox_id, node_id, kind, state, generation, template_name, digest, vcpus, "
          "memory_mib, metadata, ready_at) SELECT 'snp_' || lpad(i::text, 26, '0'), tenant_id, sandbox_id, node_id, 'snapshot', "
          f"'ready', 1, 'x', digest, 1, 1, '{{}}', now() FROM snapshots, generate_series(1, 10000) i WHERE id = '{i['snapshot']['id']}'")
    full = do(api, box, "snapshot")
    assert full.status == 429 and full.json["field"] == "snapshots_per_tenant"


def test_snapshot_in_use(quiet):
    w, node, api, box = quiet
    made = do(api, box, "snapshot", prefer=None).json["snapshot"]["id"]
    i = item(node, box)
    node.observe(node.says(i, "running", True, snapshot=node.snapshot_of(i)))
    copy = api.post("/v1/sandboxes", {"snapshot_id": made}).json["sandbox"]
    refused = api.delete(f"/v1/snapshots/{made}")
    assert refused.code == "snapshot_in_use" and copy["id"] in refused.json["detail"]
    node.observe(node.running({"id": copy["id"], "generation": 1}))
    do(api, box, "suspend", prefer=None)
    i = item(node, box)
    node.observe(node.says(i, "suspended", snapshot=node.snapshot_of(i)))
    refused = api.delete(f"/v1/snapshots/{i['snapshot']['id']}")
    assert refused.code == "snapshot_in_use" and box["id"] in refused.json["detail"]
    assert api.delete(f"/v1/snapshots/{made}").status == 202
    assert api.delete(f"/v1/snapshots/{made}").status == 202, "once more changes nothing"
    node.revision, node.removes_snapshots = 0, False
    node.poll(wait=0)
    assert node.gone_list == [made]
    assert api.delete("/v1/templates/seed").code == "in_use"


def test_idempotency_of_verbs(api, running):
    box = running()
    first = do(api, box, "snapshot", {"name": "once"}, key="k1")
    again = do(api, box, "snapshot", {"name": "once"}, key="k1")
    assert again.headers["Idempotency-Replayed"] == "true" and again.json["snapshot"]["id"] == first.json["snapshot"]["id"]
    for verb, body in (("pause", {}), ("wake", {}), ("suspend", {}), ("fork", {"count": 2})):
        first = do(api, box, verb, body, key=f"k-{verb}")
        again = do(api, box, verb, body, key=f"k-{verb}")
        assert again.headers["Idempotency-Replayed"] == "true" and again.json["operation_id"] == first.json["operation_id"]
    assert do(api, box, "fork", {"count": 3}, key="k-fork").code == "idempotency_mismatch"


@pytest.mark.parametrize("verb,body,field", [
    ("fork", {"count": 0}, "count"), ("fork", {"count": 101}, "count"), ("fork", {"name": "-x"}, "name"),
    ("fork", {"name": "n" * 61}, "name"), ("fork", {"env": {"1": "x"}}, "env.1"), ("fork", {"cuont": 1}, "cuont"),
    ("pause", {"x": 1}, "x"), ("snapshot", {"name": ""}, "name"), ("rollback", {"snapshot_id": "sbx_1"}, "snapshot_id")])
def test_bodies(api, running, verb, body, field):
    refused = do(api, {"id": "sbx_" + "0" * 26}, verb, body)
    assert refused.status == 400 and refused.json["field"] == field, refused
