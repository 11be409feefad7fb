# SPDX-License-Identifier: Apache-2.0
"""One key, one effect: at once, later, after a restart, with another body, on two replicas."""
import threading

import pytest


def at_once(n, call):
    """n threads that begin together; their answers."""
    barrier, answers = threading.Barrier(n), [None] * n

    def run(i):
        barrier.wait()
        answers[i] = call(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


def test_hundred_at_once_make_one_sandbox(world, api):
    """100 concurrent creates with one key: one sandbox, one operation, 100 equal answers."""
    clients = [world.replicas[0].admin() for _ in range(100)]
    answers = at_once(100, lambda i: clients[i].post("/v1/sandboxes", {"template": "seed", "name": "only-one"}, key="k-100"))
    assert {a.status for a in answers} == {202}
    assert len({a.raw for a in answers}) == 1
    assert sum(a.headers.get("Idempotency-Replayed") is None for a in answers) == 1
    assert len(api.get("/v1/sandboxes?name=only-one").json["items"]) == 1
    sandbox = answers[0].json["sandbox"]["id"]
    assert world.sql(f"SELECT count(*) FROM operations WHERE sandbox_id = '{sandbox}'") == [["1"]]
    for c in clients:
        c.close()


def test_two_replicas_share_keys(own_world):
    w = own_world()
    a = w.replica()
    b = w.replica()
    w.seed()
    w.node()
    clients = [(a, b)[i % 2].admin() for i in range(40)]
    answers = at_once(40, lambda i: clients[i].post("/v1/sandboxes", {"template": "seed"}, key="both"))
    assert {a.status for a in answers} == {202} and len({a.raw for a in answers}) == 1
    assert len(a.admin().get("/v1/sandboxes").json["items"]) == 1


def test_replay_is_the_first_answer(api, world):
    """Also when the sandbox has moved on, and when it is gone; member order of the body does not matter."""
    first = api.post("/v1/sandboxes", raw=b'{"template": "seed", "name": "again"}', key="replay")
    api.get(f"/v1/operations/{first.json['operation_id']}?wait=20")
    second = api.post("/v1/sandboxes", raw=b'{"name":"again","template":"seed"}', key="replay")
    assert second.status == 202 and second.raw == first.raw and second.headers["Idempotency-Replayed"] == "true"
    waited = api.post("/v1/sandboxes", {"template": "seed", "name": "again"}, key="replay", prefer=20)
    assert waited.json["operation_id"] == first.json["operation_id"]
    assert waited.json["operation"]["state"] == "succeeded" and waited.headers["Idempotency-Replayed"] == "true"
    api.delete(f"/v1/sandboxes/{first.json['sandbox']['id']}", prefer=20)
    third = api.post("/v1/sandboxes", {"template": "seed", "name": "again"}, key="replay")
    assert third.raw == first.raw


def test_another_body_is_refused(api):
    api.post("/v1/sandboxes", {"template": "seed", "name": "body-a"}, key="other-body")
    refused = api.post("/v1/sandboxes", {"template": "seed", "name": "body-b"}, key="other-body")
    assert refused.status == 422 and refused.code == "idempotency_mismatch"
    assert api.get("/v1/sandboxes?name=body-b").json["items"] == []


def test_keys_belong_to_tenant_and_route(api, world):
    """The same key of another tenant, or on another route, is another key."""
    tenant = api.post("/v1/tenants", {"name": "keys"}).json["id"]
    token = api.post("/v1/tokens", {"scopes": ["sandboxes:write", "sandboxes:read"], "tenant_id": tenant}).json["secret"]
    mine = api.post("/v1/sandboxes", {"template": "seed"}, key="shared-key").json
    theirs = api.post("/v1/sandboxes", {"template": "seed"}, key="shared-key", token=token)
    assert theirs.status == 202 and theirs.json["sandbox"]["id"] != mine["sandbox"]["id"]
    gone = api.delete(f"/v1/sandboxes/{mine['sandbox']['id']}", key="shared-key")
    assert gone.status == 202 and gone.json["operation"]["kind"] == "delete"
    again = api.delete(f"/v1/sandboxes/{mine['sandbox']['id']}", key="shared-key")
    assert again.raw == gone.raw
    api.delete(f"/v1/sandboxes/{theirs.json['sandbox']['id']}", token=token, prefer=10)


def test_failures_are_not_kept(api):
    """A refused call changed nothing: the same key is judged anew."""
    refused = api.post("/v1/sandboxes", {"template": "not-yet"}, key="judged-anew")
    assert refused.status == 404
    api.post("/v1/templates", {"name": "not-yet", "tag": "latest", "digest": "c" * 64, "size_bytes": 1, "manifest": {}})
    assert api.post("/v1/sandboxes", {"template": "not-yet"}, key="judged-anew").status == 202


def test_survives_a_restart(own_world):
    w = own_world()
    control = w.replica()
    w.seed()
    w.node()
    api = control.admin()
    first = api.post("/v1/sandboxes", {"template": "seed"}, key="over-restart", prefer=20)
    session = api.post(f"/v1/sandboxes/{first.json['sandbox']['id']}/sessions", {"command": "true"}, key="s")
    api.close()
    assert control.stop() == 0
    control.start()
    second = api.post("/v1/sandboxes", {"template": "seed"}, key="over-restart", prefer=20)
    assert second.json["operation_id"] == first.json["operation_id"]
    again = api.post(f"/v1/sandboxes/{first.json['sandbox']['id']}/sessions", {"command": "true"}, key="s")
    assert again.raw == session.raw and again.json["attachment_token"].startswith("spa_")


def test_secrets_come_again_but_are_sealed(api, world, running):
    """Tokens are in no table as they are; the same key shows them again; under another platform secret they cannot be."""
    box = running()
    path = f"/v1/sandboxes/{box['id']}/sessions"
    one = api.post(path, {"command": "id"}, key="sealed")
    two = api.post(path, {"command": "id"}, key="sealed")
    assert one.status == 201 and two.raw == one.raw
    made = api.post("/v1/tokens", {"scopes": ["nodes:read"], "name": "sealed"}, key="sealed")
    assert api.post("/v1/tokens", {"scopes": ["nodes:read"], "name": "sealed"}, key="sealed").raw == made.raw
    rotated = api.post(f"/v1/tokens/{made.json['token']['id']}/rotate", {"grace_s": 5}, key="sealed")
    assert api.post(f"/v1/tokens/{made.json['token']['id']}/rotate", {"grace_s": 5}, key="sealed").raw == rotated.raw
    everything = world.postgres
    dump = "\n".join("\t".join(row) for table in ("tokens", "sessions", "idempotency", "audit", "sandboxes")
                     for row in everything.sql(world.database, f"SELECT t::text FROM {table} t"))
    for secret in (one.json["attachment_token"], made.json["secret"], rotated.json["secret"], api.token):
        assert secret not in dump and secret[4:] not in dump and secret.encode().hex() not in dump
    for log in (world.replicas[0].log.read_text(),):
        assert one.json["attachment_token"] not in log and made.json["secret"] not in log and api.token not in log


@pytest.mark.parametrize("route", ["session", "token", "rotate"])
def test_replay_under_another_platform_secret(own_world, route):
    """The kept answer cannot be opened: a clear refusal, and nothing new is made."""
    w = own_world()
    control = w.replica()
    w.seed()
    w.node()
    api = control.admin()
    box = api.post("/v1/sandboxes", {"template": "seed"}, prefer=20).json["sandbox"]["id"]
    token = api.post("/v1/tokens", {"scopes": ["nodes:read"]}).json["token"]["id"]
    path, body = {"session": (f"/v1/sandboxes/{box}/sessions", {"command": "id"}),
                  "token": ("/v1/tokens", {"scopes": ["nodes:read"]}),
                  "rotate": (f"/v1/tokens/{token}/rotate", {"grace_s": 1})}[route]
    assert api.post(path, body, key="k").status in (200, 201)
    api.close()
    control.stop()
    (control.dir / "internal_token").write_text("spi_" + "x" * 43 + "\n")
    control.start()
    refused = api.post(path, body, key="k")
    assert refused.status == 409 and refused.code == "replay_unavailable"


def test_every_mutation_takes_a_key(api, world):
    """Tenants, templates, tags, tokens, updates: repeated with a key they answer the same."""
    digest = "d" * 64
    steps = [
        ("POST", "/v1/tenants", {"name": "keyed"}),
        ("POST", "/v1/templates", {"name": "keyed", "tag": "a", "digest": digest, "size_bytes": 3, "manifest": {}}),
        ("PUT", "/v1/templates/keyed/tags/b", {"digest": digest}),
        ("DELETE", "/v1/templates/keyed/tags/b", None),
        ("DELETE", "/v1/templates/keyed/tags/a", None),
        ("DELETE", f"/v1/templates/keyed/releases/{digest}", None),
    ]
    for method, path, body in steps:
        first = api.call(method, path, body=body, key="step")
        second = api.call(method, path, body=body, key="step")
        assert first.status < 300, first
        assert (second.status, second.raw) == (first.status, first.raw)
        assert second.headers["Idempotency-Replayed"] == "true"
    tenant = world.sql("SELECT id FROM tenants WHERE name = 'keyed'")[0][0]
    for method, body in (("PATCH", {"quotas": {"max_sandboxes": 7}}), ("DELETE", None)):
        first = api.call(method, f"/v1/tenants/{tenant}", body=body, key="step")
        second = api.call(method, f"/v1/tenants/{tenant}", body=body, key="step")
        assert first.status < 300 and (second.status, second.raw) == (first.status, first.raw)
