# SPDX-License-Identifier: Apache-2.0
"""What every route with a body, an id or a query refuses in the same way."""
import json
import time

import pytest

ZERO = "0" * 26


@pytest.fixture(scope="module")
def objects(world):
    """One of everything that a path can name."""
    api = world.replicas[0].admin()
    for digest in ("7" * 64, "8" * 64):
        api.post("/v1/templates", {"name": "routes", "digest": digest, "size_bytes": 1, "manifest": {}})
    other = api.post("/v1/sandboxes", {"template": "seed"}, prefer=20).json["sandbox"]["id"]
    snapshot = api.post(f"/v1/sandboxes/{other}/snapshot", {}, prefer=20).json["snapshot"]["id"]
    pool = api.post("/v1/pools", {"template": "seed", "size": 1, "resources": {"vcpus": 7}}).json["id"]
    return {"box": api.post("/v1/sandboxes", {"template": "seed"}, prefer=20).json["sandbox"]["id"],
            "other": other, "snapshot": snapshot, "pool": pool,
            "tenant": api.post("/v1/tenants", {"name": f"routes-{time.monotonic_ns()}"}).json["id"],
            "token": api.post("/v1/tokens", {"scopes": ["nodes:read"]}).json["token"]["id"]}


# Two good bodies for each route that takes one.
BODIES = [
    ("POST", "/v1/sandboxes", {"template": "seed"}, {"template": "seed", "name": "b"}),
    ("PATCH", "/v1/sandboxes/{box}", {"name": "a"}, {"name": "b"}),
    ("POST", "/v1/sandboxes/{box}/sessions", {"command": "a"}, {"command": "b"}),
    ("POST", "/v1/sandboxes/{other}/wake", {}, None),
    ("POST", "/v1/sandboxes/{other}/rollback", {"snapshot_id": "{snapshot}"}, {"snapshot_id": "snp_" + ZERO}),
    ("POST", "/v1/sandboxes/{other}/snapshot", {}, {"name": "b"}),
    ("POST", "/v1/sandboxes/{other}/fork", {}, {"count": 2}),
    ("POST", "/v1/sandboxes/{other}/pause", {}, None),
    ("POST", "/v1/sandboxes/{other}/suspend", {}, None),
    ("PATCH", "/v1/snapshots/{snapshot}", {"name": "a"}, {"name": "b"}),
    ("POST", "/v1/pools", {"template": "seed", "size": 1}, {"template": "seed", "size": 2}),
    ("PATCH", "/v1/pools/{pool}", {"size": 1}, {"size": 2}),
    ("POST", "/v1/templates", {"name": "two", "digest": "7" * 64, "size_bytes": 1, "manifest": {}},
     {"name": "two", "digest": "8" * 64, "size_bytes": 1, "manifest": {}}),
    ("PUT", "/v1/templates/routes/tags/t", {"digest": "7" * 64}, {"digest": "8" * 64}),
    ("POST", "/v1/tenants", {"name": "routes-a"}, {"name": "routes-b"}),
    ("PATCH", "/v1/tenants/{tenant}", {"quotas": {"max_vcpus": 1}}, {"quotas": {"max_vcpus": 2}}),
    ("POST", "/v1/tokens", {"scopes": ["nodes:read"]}, {"scopes": ["sandboxes:read"]}),
    ("POST", "/v1/tokens/{token}/rotate", {"grace_s": 1}, {"grace_s": 2}),
]


@pytest.mark.parametrize("method,path,one,other", BODIES)
def test_bodies(api, objects, method, path, one, other):
    """Broken JSON, another type, too long, another body under the same key."""
    template, path = path, path.format(**objects)
    one = {k: v.format(**objects) if isinstance(v, str) else v for k, v in one.items()}
    for raw in (b"{", b'{"a": 1, "a": 2}', b"\x00"):
        answer = api.call(method, path, raw=raw)
        assert (answer.status, answer.code) == (400, "malformed"), answer
    answer = api.call(method, path, raw=json.dumps(one).encode(), headers={"Content-Type": "text/json"})
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    answer = api.call(method, path, raw=b'{"x": "' + b"y" * 262144 + b'"}')
    assert (answer.status, answer.code) == (413, "too_large")
    prefer = 20 if "{other}" in template else None
    first = api.call(method, path, body=one, key="mismatch", prefer=prefer)
    assert first.status < 300, first
    answer = api.call(method, path, body=other, key="mismatch")
    assert (answer.status, answer.code, answer.json["field"]) == (422, "idempotency_mismatch", "Idempotency-Key")
    again = api.call(method, path, body=one, key="mismatch")
    assert again.headers["Idempotency-Replayed"] == "true" and (prefer or again.raw == first.raw)
    answer = api.call(method, path, body={**one, "zzz": 1})
    assert (answer.status, answer.code) == (400, "invalid") and "zzz" in answer.json["detail"]


@pytest.mark.parametrize("method,path", [
    ("DELETE", "/v1/sandboxes/x"), ("DELETE", "/v1/templates/X"), ("DELETE", "/v1/templates/a/releases/x"),
    ("DELETE", "/v1/templates/a/tags/-"), ("DELETE", "/v1/tenants/me"), ("DELETE", "/v1/tokens/tok_1"),
    ("POST", "/v1/sandboxes/x/pause"), ("POST", "/v1/sandboxes/x/suspend"), ("POST", "/v1/sandboxes/x/wake"),
    ("POST", "/v1/sandboxes/x/snapshot"), ("POST", "/v1/sandboxes/x/fork"), ("GET", "/v1/snapshots?kind=other"),
    ("GET", "/v1/snapshots/sbx_" + ZERO), ("DELETE", "/v1/snapshots/x"), ("GET", "/v1/pools?x=1"), ("DELETE", "/v1/pools/x"),
    ("PATCH", "/v1/sandboxes/op_" + ZERO), ("POST", "/v1/sandboxes/sbx_/sessions"), ("POST", "/v1/tokens/x/rotate"),
    ("GET", "/v1/sandboxes/{box}/sessions?limit=0"), ("GET", "/v1/tenants?limit=0"), ("GET", "/v1/tokens?cursor=x"),
    ("GET", "/v1/sandboxes/{box}?x=1"), ("DELETE", "/v1/sandboxes/{box}?force=1"), ("GET", "/v1/sessions/ses_" + ZERO + "?a=b"),
])
def test_ids_and_queries(api, objects, method, path):
    answer = api.call(method, path.format(**objects))
    assert (answer.status, answer.code) == (400, "invalid") and answer.json["field"], answer


def test_head_is_get_without_a_body(api):
    answer = api.call("HEAD", "/v1/sandboxes")
    assert answer.status == 200 and answer.raw == b"" and int(answer.headers["Content-Length"]) > 0


def test_answers_are_not_to_be_stored(api):
    assert api.get("/v1/sandboxes").headers["Cache-Control"] == "no-store"
