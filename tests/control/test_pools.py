# SPDX-License-Identifier: Apache-2.0
"""Pools, what nodes say of them, and the snapshots a node has to ask about."""
import pytest

LIMIT = 100


@pytest.fixture
def setup(own_world):
    w = own_world()
    w.replica()
    w.seed(shared=True)
    return w, w.node(start=False), w.replicas[0].admin()


def listed(node):
    node.revision = 0
    node.poll(wait=0)
    return node.pools


def test_pool(setup):
    w, node, api = setup
    made = api.post("/v1/pools", {"template": "seed:latest", "resources": {"memory_mib": 256}, "size": 3})
    assert made.status == 201, made
    pool = made.json
    assert pool["resources"] == {"vcpus": 1, "memory_mib": 256} and pool["nodes"] == [] and pool["template"]["tag"] == "latest"
    assert listed(node) == [{"pool_id": pool["id"], "size": 3, "resources": pool["resources"],
                             "template": {"digest": pool["template"]["digest"], "manifest": {"format": 1}}}]
    same = api.post("/v1/pools", {"template": "seed", "resources": {"memory_mib": 256}, "size": 1})
    assert same.status == 409 and same.code == "conflict"
    revision = node.revision
    assert api.patch(f"/v1/pools/{pool['id']}", {"size": 5}).json["size"] == 5
    assert listed(node)[0]["size"] == 5 and node.revision > revision
    node.observe(pools=[{"pool_id": pool["id"], "warm": 2, "filling": 1, "target": 5, "hits": 7, "misses": 1},
                        {"pool_id": "pol_" + "0" * 26, "warm": 1, "filling": 0, "target": 0, "hits": 0, "misses": 0}],
                 garbage={"snapshots": 2, "bytes": 4096})
    shown = api.get("/v1/pools").json["items"][0]["nodes"]
    assert len(shown) == 1 and shown[0]["warm"] == 2 and shown[0]["hits"] == 7 and shown[0]["node_id"] == node.id
    host = api.get("/v1/nodes").json["items"][0]
    assert host["garbage"] == {"snapshots": 2, "bytes": 4096} and host["spare"] == {"warm": 2, "filling": 1, "target": 5}
    assert api.delete("/v1/templates/seed").code == "in_use"
    assert api.delete(f"/v1/pools/{pool['id']}").status == 204
    assert api.delete(f"/v1/pools/{pool['id']}").code == "not_found"
    assert api.patch(f"/v1/pools/{pool['id']}", {"size": 1}).code == "not_found"
    assert listed(node) == [] and api.get("/v1/pools").json["items"] == []


def test_a_pool_follows_its_tag(setup):
    w, node, api = setup
    pool = api.post("/v1/pools", {"template": "seed:latest", "size": 1}).json
    fixed = api.post("/v1/pools", {"template": f"seed@{pool['template']['digest']}", "size": 1, "resources": {"vcpus": 2}}).json
    w.seed(shared=True, digest="b" * 64)
    shown = {p["id"]: p["template"]["digest"] for p in api.get("/v1/pools").json["items"]}
    assert shown == {pool["id"]: "b" * 64, fixed["id"]: pool["template"]["digest"]}
    assert {p["pool_id"]: p["template"]["digest"] for p in listed(node)} == shown


def test_limits(setup):
    w, node, api = setup
    assert api.post("/v1/pools", {"template": "nope", "size": 1}).code == "template_not_found"
    for body, field in (({"template": "seed", "size": 257}, "size"), ({"template": "seed"}, "size"), ({"size": 1}, "template"),
                        ({"template": "seed", "size": 1, "resources": {"memory_mib": 1}}, "resources.memory_mib")):
        refused = api.post("/v1/pools", body)
        assert refused.status == 400 and refused.json["field"] == field
    w.sql("INSERT INTO pools (id, template_id, template_name, digest, vcpus, memory_mib, size) SELECT 'pol_' || lpad(i::text, 26, "
          f"'0'), id, name, digest, 1, 1000 + i, 1 FROM templates, generate_series(1, {LIMIT}) i")
    full = api.post("/v1/pools", {"template": "seed", "size": 1})
    assert full.status == 429 and full.code == "quota_exceeded" and full.json["field"] == "pools"
    assert len(api.get("/v1/pools").json["items"]) == LIMIT


def test_what_a_node_asks_about(setup):
    w, node, api = setup
    box = api.post("/v1/sandboxes", {"template": "seed"}).json["sandbox"]
    node.observe(node.running({"id": box["id"], "generation": 1}))
    made = api.post(f"/v1/sandboxes/{box['id']}/snapshot", {}).json["snapshot"]["id"]
    stray = "snp_" + "7" * 26
    answer = node.call("POST", f"/nodes/{node.id}/snapshots", {"ids": [made, stray]})
    assert answer.json == {"unknown": [stray]}
    other = w.node(start=False, node_id="node-b")
    assert other.call("POST", "/nodes/node-b/snapshots", {"ids": [made]}).json == {"unknown": [made]}
    assert node.call("POST", f"/nodes/{node.id}/snapshots", {"ids": ["x"]}).code == "invalid"
    assert node.observe(snapshots_removed=[made, stray])["accepted"] == 0
    assert api.get(f"/v1/snapshots/{made}").json["state"] == "creating", "nobody asked for its removal"


def test_reports_that_are_malformed(setup):
    w, node, api = setup
    item = {"id": "sbx_" + "0" * 26, "generation": 1, "state": "running"}
    for more in ({"snapshot": {"id": "x", "state": "ready"}}, {"snapshot": {"id": "snp_" + "0" * 26, "state": "creating"}},
                 {"active_at": "yesterday"}, {"active_at": "2026-01-01T00:00:00+01:00"}, {"streams": -1},
                 {"operation": {"error": {}}}, {"state": "pausing"}):
        answer = node.call("POST", f"/nodes/{node.id}/observed", {"sandboxes": [{**item, **more}]})
        assert answer.status == 400 and answer.code == "invalid", more
    assert node.call("POST", f"/nodes/{node.id}/observed", {"sandboxes": [], "snapshots_removed": ["x"]}).status == 400
    assert node.call("POST", "/nodes/nobody/observed", {"sandboxes": []}).status == 404
    assert node.observe({**item, "start_kind": "lukewarm", "unknown": 1})["unknown"] == [item["id"]]
