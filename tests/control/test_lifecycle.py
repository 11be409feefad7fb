# SPDX-License-Identifier: Apache-2.0
"""What happens when nodes are slow, silent, wrong, full, lost or booted anew, and when deletes race with creates."""
import threading
import time

import pytest
from harness import wait_for


@pytest.fixture
def setup(own_world):
    """A replica and a node that does nothing by itself."""
    def make(start=False, create_timeout_s=60, **node_options):
        w = own_world(create_timeout_s=create_timeout_s)
        w.replica()
        w.seed()
        node = w.node(start=start, **node_options)
        return w, node, w.replicas[0].admin()
    return make


def create(api, **fields):
    answer = api.post("/v1/sandboxes", {"template": "seed", **fields})
    assert answer.status == 202, answer
    return answer.json


def item_of(made):
    return {"id": made["sandbox"]["id"], "generation": 1}


def test_steps_of_a_create(setup):
    """pending → running (the node began) → succeeded (running and ready); state and readiness are apart."""
    w, node, api = setup()
    made = create(api)
    path, box = f"/v1/operations/{made['operation_id']}", f"/v1/sandboxes/{made['sandbox']['id']}"
    item = item_of(made)
    node.observe({**item, "state": "creating"})
    op = api.get(path).json
    assert op["state"] == "running" and op["started_at"] and not op["finished_at"]
    node.observe(node.running(item, ready=False))
    assert api.get(path).json["state"] == "running"
    shown = api.get(box).json
    assert shown["state"] == "running" and shown["ready"] is False and shown["operation_id"] == made["operation_id"]
    node.observe(node.running(item))
    assert api.get(path).json["state"] == "succeeded"
    assert api.get(box).json["operation_id"] is None
    node.observe(node.running(item, ready=False))
    assert api.get(box).json["ready"] is False
    node.observe(node.running(item))
    before = api.get(box).json
    node.observe(node.running(item))
    assert api.get(box).json == before


def test_silent_node_runs_into_the_deadline(setup):
    """The create fails with deadline_exceeded, the sandbox is failed, the node is told to remove it, the row stays."""
    w, node, api = setup(create_timeout_s=1)
    made = create(api)
    op = api.get(f"/v1/operations/{made['operation_id']}?wait=20").json
    assert op["state"] == "failed" and op["error"]["code"] == "deadline_exceeded"
    box = f"/v1/sandboxes/{made['sandbox']['id']}"
    shown = api.get(box).json
    assert shown["state"] == "failed" and shown["error"]["code"] == "deadline_exceeded"
    node.poll(wait=0)
    item = node.desired[made["sandbox"]["id"]]
    assert item["desired"] == "deleted" and item["observed"] == "failed"
    node.poll(wait=0)
    assert made["sandbox"]["id"] not in node.desired, "the node said that nothing is left"
    assert api.get(box).json["state"] == "failed"
    gone = api.delete(box)
    assert gone.json["sandbox"]["state"] == "deleted" and gone.json["operation"]["state"] == "succeeded"


def test_running_but_never_ready_runs_into_the_deadline(setup):
    w, node, api = setup(create_timeout_s=1)
    made = create(api)
    node.observe(node.running(item_of(made), ready=False))
    op = api.get(f"/v1/operations/{made['operation_id']}?wait=20").json
    assert op["error"]["code"] == "deadline_exceeded"
    assert api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json["state"] == "failed"
    node.observe(node.running(item_of(made)))
    assert api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json["state"] == "failed", "too late is too late"


def test_no_node_at_all(own_world):
    """Accepted and waiting; the operation fails with no_capacity at its deadline."""
    w = own_world(create_timeout_s=1)
    w.replica()
    w.seed()
    api = w.replicas[0].admin()
    made = create(api)
    assert made["sandbox"]["node_id"] is None
    op = api.get(f"/v1/operations/{made['operation_id']}?wait=20").json
    assert op["state"] == "failed" and op["error"]["code"] == "no_capacity"
    assert api.delete(f"/v1/sandboxes/{made['sandbox']['id']}").json["sandbox"]["state"] == "deleted"


def test_a_node_that_comes_later_gets_it(own_world):
    w = own_world()
    w.replica()
    w.seed()
    api = w.replicas[0].admin()
    made = create(api)
    w.node()
    op = api.get(f"/v1/operations/{made['operation_id']}?wait=20").json
    assert op["state"] == "succeeded"
    assert api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json["node_id"] == "node-a"


def test_delete_before_any_node(own_world):
    """A sandbox never assigned is deleted at once; its create is superseded."""
    w = own_world()
    w.replica()
    w.seed()
    api = w.replicas[0].admin()
    made = create(api)
    gone = api.delete(f"/v1/sandboxes/{made['sandbox']['id']}").json
    assert gone["sandbox"]["state"] == "deleted" and gone["operation"]["state"] == "succeeded"
    op = api.get(f"/v1/operations/{made['operation_id']}").json
    assert op["state"] == "failed" and op["error"]["code"] == "superseded"


def test_delete_overtakes_create(setup):
    """A late "running" of the node revives nothing."""
    w, node, api = setup()
    made = create(api)
    gone = api.delete(f"/v1/sandboxes/{made['sandbox']['id']}").json
    assert gone["sandbox"]["state"] == "deleting" and gone["operation"]["state"] == "running"
    assert api.get(f"/v1/operations/{made['operation_id']}").json["error"]["code"] == "superseded"
    node.observe(node.running(item_of(made)))
    box = f"/v1/sandboxes/{made['sandbox']['id']}"
    assert api.get(box).json["state"] == "deleting"
    again = api.delete(box).json
    assert again["operation_id"] == gone["operation_id"]
    node.observe(node.failed(item_of(made)))
    assert api.get(box).json["state"] == "deleting"
    node.observe(node.gone(item_of(made)))
    assert api.get(box).json["state"] == "deleted"
    assert api.get(f"/v1/operations/{gone['operation_id']}").json["state"] == "succeeded"
    assert node.observe(node.running(item_of(made)))["unknown"] == [made["sandbox"]["id"]]


def test_deletes_at_once(setup):
    """20 deletes at once: one operation, all are told the same one."""
    w, node, api = setup()
    made = create(api)
    answers = []

    def delete():
        client = w.replicas[0].admin()
        answers.append(client.delete(f"/v1/sandboxes/{made['sandbox']['id']}"))
        client.close()

    threads = [threading.Thread(target=delete) for _ in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {a.status for a in answers} == {202} and len({a.json["operation_id"] for a in answers}) == 1


def test_creates_and_deletes_race(setup):
    """60 sandboxes, each deleted at a random moment while a node obeys: all end deleted, nothing is left on the node."""
    w, node, api = setup(start=True)
    ends = []

    def one(i):
        client = w.replicas[0].admin()
        box = create(client)["sandbox"]["id"]
        time.sleep(i % 7 / 100)
        ends.append(client.delete(f"/v1/sandboxes/{box}", prefer=30).json)
        client.close()

    threads = [threading.Thread(target=one, args=(i,)) for i in range(60)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(ends) == 60 and {e["sandbox"]["state"] for e in ends} == {"deleted"}
    assert w.sql("SELECT count(*) FROM operations WHERE state IN ('pending', 'running')") == [["0"]]
    assert w.sql("SELECT count(*) FROM sandboxes WHERE released_at IS NULL AND node_id IS NOT NULL") == [["0"]]
    wait_for(lambda: not node.desired, what="an empty desired list")


@pytest.mark.parametrize("code,shown", [("vmm_failed", "vmm_failed"), ("host_disk_full", "host_disk_full"),
                                        ("of_the_future", "internal"), ("superseded", "internal")])
def test_failures_keep_their_reason(setup, code, shown):
    w, node, api = setup()
    made = create(api)
    node.observe(node.failed(item_of(made), code, "because of that"))
    op = api.get(f"/v1/operations/{made['operation_id']}").json
    assert op["state"] == "failed" and op["error"] == {"code": shown, "message": "because of that"}
    assert api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json["error"] == op["error"]


def test_a_node_that_lost_it(setup):
    """"deleted" that nobody asked for: the sandbox failed."""
    w, node, api = setup()
    made = create(api)
    node.observe(node.running(item_of(made)))
    node.observe(node.gone(item_of(made)))
    shown = api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json
    assert shown["state"] == "failed" and shown["error"]["code"] == "vmm_killed"


def test_reports_that_do_not_fit(setup):
    """Another node's, another generation's, unknown and malformed ones change nothing."""
    w, node, api = setup()
    made = create(api)
    item = item_of(made)
    other = w.node(start=False, node_id="node-b")
    assert other.observe(other.running(item)) == {"accepted": 0, "unknown": [item["id"]], "settled": []}
    assert node.observe(node.running({**item, "generation": 2})) == {"accepted": 0, "unknown": [], "settled": []}
    assert node.observe(node.running({"id": "sbx_" + "0" * 26, "generation": 1}))["unknown"] == ["sbx_" + "0" * 26]
    assert api.get(f"/v1/sandboxes/{item['id']}").json["state"] == "creating"
    for bad in ({"sandboxes": [{"id": "x"}]}, {"sandboxes": {}}, {"sandboxes": [{**item, "state": "napping"}]},
                {"sandboxes": [{**item, "state": "running", "ready": "yes"}]}, {"sandboxes": [7]}, [],
                {"sandboxes": [item] * 1025}, {"sandboxes": [], "capacity": {"vcpus": 1}}):
        answer = node.call("POST", f"/nodes/{node.id}/observed", bad)
        assert answer.status == 400, (bad, answer)
    assert node.call("POST", "/nodes/node-z/observed", {"sandboxes": []}).status == 404
    for missing in ("boot_id", "hostname", "gateway_url", "capacity"):
        body = {"boot_id": "b", "hostname": "h", "version": "v", "accelerator": "tcg", "vmm": "q", "kernels": [],
                "capacity": node.capacity, "gateway_url": "http://x"}
        del body[missing]
        answer = node.call("POST", "/nodes/node-c/register", body)
        assert answer.status == 400 and answer.json["field"] == missing


def test_capacity(setup):
    """Memory is summed, the number of sandboxes too; a full node is 503 with Retry-After and nothing is made."""
    w, node, api = setup(memory_mib=1000, max_sandboxes=3, vcpus=2)
    first = create(api, resources={"memory_mib": 600})
    full = api.post("/v1/sandboxes", {"template": "seed", "resources": {"memory_mib": 600}})
    assert full.status == 503 and full.code == "no_capacity" and int(full.headers["Retry-After"]) >= 1
    assert len(api.get("/v1/sandboxes").json["items"]) == 1
    wide = api.post("/v1/sandboxes", {"template": "seed", "resources": {"vcpus": 3, "memory_mib": 128}})
    assert wide.code == "no_capacity"
    create(api, resources={"memory_mib": 128, "vcpus": 2})
    create(api, resources={"memory_mib": 128, "vcpus": 2})
    many = api.post("/v1/sandboxes", {"template": "seed", "resources": {"memory_mib": 128}})
    assert many.code == "no_capacity"
    node.observe(node.gone(item_of(first)))
    create(api, resources={"memory_mib": 500})
    shown = api.get("/v1/nodes").json["items"][0]
    assert shown["allocated"] == {"sandboxes": 3, "vcpus": 5, "memory_mib": 756} and shown["capacity"]["memory_mib"] == 1000
    node.observe(capacity={**node.capacity, "disk_mib": 0, "max_sandboxes": 100, "memory_mib": 100000})
    assert api.post("/v1/sandboxes", {"template": "seed"}).code == "no_capacity"


def test_capacity_holds_under_concurrency(setup):
    """50 creates at once for a node with room for 12: exactly 12."""
    w, node, api = setup(memory_mib=12 * 512)
    answers = []

    def one():
        client = w.replicas[0].admin()
        answers.append(client.post("/v1/sandboxes", {"template": "seed"}))
        client.close()

    threads = [threading.Thread(target=one) for _ in range(50)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {a.status for a in answers} == {202, 503} and sum(a.status == 202 for a in answers) == 12


def test_placement_spreads(setup):
    """The node with most free memory; a lost one gets nothing."""
    w, node, api = setup(memory_mib=4000)
    w.node(start=False, node_id="node-b", memory_mib=8000)
    assert create(api, resources={"memory_mib": 5000})["sandbox"]["node_id"] == "node-b"
    assert create(api)["sandbox"]["node_id"] == "node-a"
    w.sql("UPDATE nodes SET last_seen_at = now() - interval '31 s' WHERE id = 'node-a'")
    assert create(api)["sandbox"]["node_id"] == "node-b"


def test_boot_of_a_node(setup):
    """Registered under another boot id: what ran there failed with node_lost; the same boot id changes nothing."""
    w, node, api = setup()
    made = create(api)
    node.observe(node.running(item_of(made)))
    node.register()
    assert api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json["state"] == "running"
    session = api.post(f"/v1/sandboxes/{made['sandbox']['id']}/sessions", {"command": "x"}).json["session_id"]
    node.boot_id = "another"
    node.register()
    shown = api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json
    assert shown["state"] == "failed" and shown["error"]["code"] == "node_lost"
    assert api.get(f"/v1/sessions/{session}").json["state"] == "lost"
    node.poll(wait=0)
    assert node.desired[made["sandbox"]["id"]]["desired"] == "deleted"


@pytest.mark.alone
def test_desired_poll(setup):
    """Answers at once when the revision differs; is held otherwise, and let go by the first change."""
    w, node, api = setup()
    path = f"/nodes/{node.id}/desired"
    revision = node.call("GET", path).json["revision"]
    begin = time.monotonic()
    held = node.call("GET", f"{path}?since={revision}&wait=1").json
    assert held["revision"] == revision and time.monotonic() - begin > 0.9
    seen = []
    poll = threading.Thread(target=lambda: seen.append((node.call("GET", f"{path}?since={revision}&wait=20").json,
                                                        time.monotonic())))
    poll.start()
    time.sleep(0.3)
    made = create(api)
    answered = time.monotonic()
    poll.join()
    assert [s["id"] for s in seen[0][0]["sandboxes"]] == [made["sandbox"]["id"]]
    assert seen[0][1] - answered < 2, "woken by the notification, not by the next look"
    assert node.call("GET", f"{path}?since=x").status == 400


def test_retention(setup):
    """What is past its time goes: operations, sessions, kept answers, deleted sandboxes, tokens, audit."""
    w, node, api = setup()
    made = create(api)
    node.observe(node.running(item_of(made)))
    box = made["sandbox"]["id"]
    session = api.post(f"/v1/sandboxes/{box}/sessions", {"command": "x"}, key="k").json["session_id"]
    token = api.post("/v1/tokens", {"scopes": ["nodes:read"]}).json["token"]["id"]
    api.delete(f"/v1/tokens/{token}")
    api.delete(f"/v1/sandboxes/{box}")
    node.observe(node.gone(item_of(made)))
    kept = create(api)["sandbox"]["id"]
    w.sql("UPDATE operations SET finished_at = finished_at - interval '169 h'; UPDATE sessions SET expires_at = now() - "
          "interval '169 h'; UPDATE idempotency SET created_at = now() - interval '26 h'; UPDATE sandboxes SET deleted_at = "
          "deleted_at - interval '169 h'; UPDATE tokens SET revoked_at = revoked_at - interval '721 h'; UPDATE audit SET at = "
          "now() - interval '2161 h'")
    api.close()
    w.replicas[0].stop()
    w.replicas[0].start()
    wait_for(lambda: w.sql("SELECT count(*) FROM audit") == [["0"]], what="the sweep")
    assert api.get(f"/v1/sandboxes/{box}").status == 404 and api.get(f"/v1/sessions/{session}").status == 404
    assert api.get(f"/v1/operations/{made['operation_id']}").status == 404
    assert api.delete(f"/v1/sandboxes/{box}").status == 404
    assert w.sql("SELECT count(*) FROM idempotency") == [["0"]] and w.sql("SELECT count(*) FROM sessions") == [["0"]]
    assert token not in api.get("/v1/tokens").raw.decode()
    assert api.get(f"/v1/sandboxes/{kept}").json["state"] == "creating"


def test_the_database_guards_moves(setup):
    """A move that is not in the table is refused by PostgreSQL itself."""
    import subprocess
    w, node, api = setup()
    box = create(api)["sandbox"]["id"]
    for state in ("paused", "suspended", "waking"):
        with pytest.raises(subprocess.CalledProcessError):
            w.sql(f"UPDATE sandboxes SET state = '{state}' WHERE id = '{box}'")
    with pytest.raises(subprocess.CalledProcessError):
        w.sql(f"INSERT INTO operations (id, tenant_id, sandbox_id, kind, state) SELECT 'op_x', tenant_id, id, 'delete', 'pending' "
              f"FROM sandboxes WHERE id = '{box}'")
