# SPDX-License-Identifier: Apache-2.0
"""Sessions: when they may be made, what the data plane is told, what is recorded of the process."""
import hashlib
import time

import pytest
from harness import new_token


def attach(node, session, token=None):
    digest = hashlib.sha256((token or session["attachment_token"]).encode()).hexdigest()
    return node.call("POST", "/attach", {"session_id": session["session_id"], "token_sha256": digest})


def test_session_carries_the_command(api, world, running):
    """Every field reaches the data plane as it was given, and reading the session never shows the token."""
    box, node = running(), world.nodes[0]
    command = {"command": "sh", "args": ["-c", "echo hi"], "env": {"A": "b"}, "cwd": "/tmp", "user": "user",
               "pty": {"cols": 120, "rows": 40}, "stdin": True, "timeout_s": 60, "on_disconnect": "kill"}
    made = api.post(f"/v1/sandboxes/{box['id']}/sessions", command)
    assert made.status == 201
    session = made.json
    assert session["attach_url"] == f"{node.gateway_url}/v1/sessions/{session['session_id']}/events"
    answer = attach(node, session).json
    assert {k: answer[k] for k in command} == command
    assert answer["sandbox_id"] == box["id"] and answer["process_id"] == session["process_id"]
    assert answer["node_id"] == node.id and answer["may_start"] is True and answer["sandbox_state"] == "running"
    shown = api.get(f"/v1/sessions/{session['session_id']}")
    assert shown.json["state"] == "created" and session["attachment_token"] not in shown.raw.decode()


def test_defaults(api, world, running):
    box = running()
    session = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "true"}).json
    answer = attach(world.nodes[0], session).json
    assert answer["args"] == [] and answer["env"] == {} and answer["stdin"] is False and answer["pty"] is None
    assert answer["timeout_s"] is None and answer["on_disconnect"] == "keep" and answer["user"] is None


def test_started_once_then_exited(api, world, running):
    """After started nobody may start it again; exit is recorded once, a late start changes nothing."""
    box, node = running(), world.nodes[0]
    session = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "true"}).json
    path = f"/sessions/{session['session_id']}/state"
    assert node.call("POST", path, {"state": "started", "pid": 77}).status == 200
    assert node.call("POST", path, {"state": "started", "pid": 77}).status == 200
    assert attach(node, session).json["may_start"] is False
    shown = api.get(f"/v1/sessions/{session['session_id']}").json
    assert shown["state"] == "started" and shown["pid"] == 77 and shown["started_at"]
    assert node.call("POST", path, {"state": "exited", "exit_code": 3, "signal": None, "reason": "exited"}).status == 200
    assert node.call("POST", path, {"state": "exited", "exit_code": 9, "reason": "later"}).status == 200
    assert node.call("POST", path, {"state": "started", "pid": 1}).status == 200
    shown = api.get(f"/v1/sessions/{session['session_id']}").json
    assert (shown["state"], shown["exit_code"], shown["signal"], shown["reason"]) == ("exited", 3, None, "exited")
    assert attach(node, session).json["may_start"] is False


def test_attach_refusals(api, world, running):
    """Wrong token 401, unknown session 404, expired 410, deleted sandbox 410, malformed 400."""
    box, node = running(), world.nodes[0]
    session = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "true"}).json
    assert attach(node, session, token=new_token("spa")).status == 401
    unknown = {**session, "session_id": "ses_" + "0" * 26}
    assert attach(node, unknown).status == 404
    for bad in ({}, {"session_id": session["session_id"]}, {"session_id": session["session_id"], "token_sha256": "zz"},
                {"session_id": session["session_id"], "token_sha256": "z" * 64}, [1]):
        assert node.call("POST", "/attach", bad).status == 400
    world.sql(f"UPDATE sessions SET expires_at = now() - interval '1 s' WHERE id = '{session['session_id']}'")
    assert attach(node, session).status == 410
    other = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "true"}).json
    api.delete(f"/v1/sandboxes/{box['id']}", prefer=20)
    assert attach(node, other).status == 410
    assert api.get(f"/v1/sessions/{other['session_id']}").json["state"] == "lost"


def test_state_report_refusals(world, api, running):
    node = world.nodes[0]
    session = api.post(f"/v1/sandboxes/{running()['id']}/sessions", {"command": "true"}).json["session_id"]
    assert node.call("POST", "/sessions/ses_" + "0" * 26 + "/state", {"state": "started"}).status == 404
    for bad in ({}, {"state": "nap"}, {"state": "exited", "exit_code": "0"}, {"state": "started", "pid": -1}):
        assert node.call("POST", f"/sessions/{session}/state", bad).status == 400


def test_not_ready(own_world):
    """While it is created: 409 with the operation. Failed: 409. Agent silent: 409. Deleted: 410."""
    w = own_world()
    w.replica()
    w.seed()
    node = w.node(start=False)
    api = w.replicas[0].admin()
    made = api.post("/v1/sandboxes", {"template": "seed"}).json
    path = f"/v1/sandboxes/{made['sandbox']['id']}/sessions"
    early = api.post(path, {"command": "true"})
    assert early.status == 409 and early.code == "not_ready" and early.json["operation_id"] == made["operation_id"]
    item = {"id": made["sandbox"]["id"], "generation": 1}
    node.observe(node.running(item, ready=False))
    assert api.post(path, {"command": "true"}).code == "not_ready"
    node.observe(node.running(item))
    assert api.post(path, {"command": "true"}).status == 201
    w.sql("UPDATE nodes SET last_seen_at = now() - interval '31 s'")
    shown = api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json
    assert shown["state"] == "running" and shown["ready"] is False
    assert api.post(path, {"command": "true"}).code == "not_ready"
    assert api.get("/v1/nodes").json["items"][0]["state"] == "lost"
    node.poll(wait=0)
    assert api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json["ready"] is True
    node.observe(node.failed(item, "guest_silent", "no PONG"))
    failed = api.post(path, {"command": "true"})
    assert failed.status == 409 and "guest_silent" in failed.json["detail"]
    api.delete(f"/v1/sandboxes/{made['sandbox']['id']}")
    gone = api.post(path, {"command": "true"})
    assert gone.status == 410 and gone.code == "gone"


def test_list_pages(api, running):
    box = running()
    path = f"/v1/sandboxes/{box['id']}/sessions"
    made = [api.post(path, {"command": f"c{i}"}).json["session_id"] for i in range(5)]
    ids, cursor = [], ""
    while cursor is not None:
        page = api.get(f"{path}?limit=2{cursor}").json
        ids += [s["id"] for s in page["items"]]
        cursor = f"&cursor={page['next_cursor']}" if page["next_cursor"] else None
    assert ids == made[::-1]


def test_expired_sessions_free_their_place(api, world, running):
    """The quota counts what has not ended."""
    api.patch("/v1/tenants/self", {"quotas": {"max_sessions_per_sandbox": 2}})
    try:
        path = f"/v1/sandboxes/{running()['id']}/sessions"
        first, second = (api.post(path, {"command": "x"}).json["session_id"] for _ in range(2))
        full = api.post(path, {"command": "x"})
        assert full.status == 429 and full.code == "quota_exceeded" and int(full.headers["Retry-After"]) >= 1
        assert full.json["field"] == "max_sessions_per_sandbox"
        world.nodes[0].call("POST", f"/sessions/{first}/state", {"state": "exited", "exit_code": 0})
        third = api.post(path, {"command": "x"})
        assert third.status == 201
        world.sql(f"UPDATE sessions SET expires_at = now() WHERE id = '{second}'")
        assert api.post(path, {"command": "x"}).status == 201
    finally:
        api.patch("/v1/tenants/self", {"quotas": {"max_sessions_per_sandbox": 64}})


@pytest.mark.parametrize("where", ["/v1/sessions/", "/v1/operations/", "/v1/sandboxes/"])
def test_unknown_ids(api, where):
    kind = {"/v1/sessions/": "ses", "/v1/operations/": "op", "/v1/sandboxes/": "sbx"}[where]
    assert api.get(f"{where}{kind}_{'0' * 26}").status == 404
    bad = api.get(f"{where}{kind}_{'u' * 26}")
    assert bad.status == 400 and bad.code == "invalid" and bad.json["field"].endswith("_id")


def test_other_tenants_see_nothing(api, world, running):
    """Every object of one tenant is 404 for another."""
    box = running()
    session = api.post(f"/v1/sandboxes/{box['id']}/sessions", {"command": "x"}).json["session_id"]
    operation = api.get(f"/v1/operations?sandbox_id={box['id']}").json["items"][0]["id"]
    snapshot = api.post(f"/v1/sandboxes/{box['id']}/snapshot", {}, prefer=20).json["snapshot"]["id"]
    tenant = api.post("/v1/tenants", {"name": f"stranger-{time.monotonic_ns()}"}).json["id"]
    scopes = ["sandboxes:read", "sandboxes:write", "sessions:write", "templates:read", "templates:write", "tokens:write"]
    token = api.post("/v1/tokens", {"scopes": scopes, "tenant_id": tenant}).json["secret"]
    for method, path, body in (("GET", f"/v1/sandboxes/{box['id']}", None), ("DELETE", f"/v1/sandboxes/{box['id']}", None),
                               ("PATCH", f"/v1/sandboxes/{box['id']}", {"name": "mine"}),
                               ("POST", f"/v1/sandboxes/{box['id']}/sessions", {"command": "x"}),
                               ("GET", f"/v1/sandboxes/{box['id']}/sessions", None),
                               *[("POST", f"/v1/sandboxes/{box['id']}/{verb}", {}) for verb in
                                 ("pause", "suspend", "wake", "snapshot", "fork")],
                               ("POST", f"/v1/sandboxes/{box['id']}/rollback", {"snapshot_id": snapshot}),
                               ("POST", "/v1/sandboxes", {"snapshot_id": snapshot}),
                               ("GET", f"/v1/snapshots/{snapshot}", None), ("DELETE", f"/v1/snapshots/{snapshot}", None),
                               ("PATCH", f"/v1/snapshots/{snapshot}", {"name": "mine"}),
                               ("GET", f"/v1/sessions/{session}", None), ("GET", f"/v1/operations/{operation}", None)):
        answer = api.call(method, path, body=body, token=token)
        assert answer.status == 404 and answer.code == "not_found", (method, path, answer)
    assert api.get("/v1/sandboxes", token=token).json["items"] == []
    assert api.get("/v1/operations", token=token).json["items"] == []
    assert api.get("/v1/snapshots", token=token).json["items"] == []
    assert api.get(f"/v1/operations?sandbox_id={box['id']}", token=token).json["items"] == []
