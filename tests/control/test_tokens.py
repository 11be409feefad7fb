# SPDX-License-Identifier: Apache-2.0
"""Management tokens: kinds, scopes, expiry, rotation, revocation, reach."""
import time

import pytest
from harness import Client, new_token, wait_for

SCOPES = ["sandboxes:read", "sandboxes:write", "sessions:write", "templates:read", "templates:write", "tokens:write",
          "nodes:read", "admin"]
ZERO = "0" * 26
# One call a route, and the scope it needs (None: any token).
ROUTES = [
    ("POST", "/v1/sandboxes", {"template": "nope"}, "sandboxes:write"),
    ("GET", "/v1/sandboxes", None, "sandboxes:read"),
    ("GET", f"/v1/sandboxes/sbx_{ZERO}", None, "sandboxes:read"),
    ("PATCH", f"/v1/sandboxes/sbx_{ZERO}", {"name": "x"}, "sandboxes:write"),
    ("DELETE", f"/v1/sandboxes/sbx_{ZERO}", None, "sandboxes:write"),
    *[("POST", f"/v1/sandboxes/sbx_{ZERO}/{verb}", None, "sandboxes:write")
      for verb in ("pause", "suspend", "wake", "snapshot", "fork")],
    ("POST", f"/v1/sandboxes/sbx_{ZERO}/rollback", {"snapshot_id": f"snp_{ZERO}"}, "sandboxes:write"),
    ("GET", "/v1/snapshots", None, "sandboxes:read"),
    ("GET", f"/v1/snapshots/snp_{ZERO}", None, "sandboxes:read"),
    ("PATCH", f"/v1/snapshots/snp_{ZERO}", {"name": "x"}, "sandboxes:write"),
    ("DELETE", f"/v1/snapshots/snp_{ZERO}", None, "sandboxes:write"),
    ("POST", "/v1/pools", {"template": "nope", "size": 1}, "admin"),
    ("GET", "/v1/pools", None, "admin"),
    ("PATCH", f"/v1/pools/pol_{ZERO}", {"size": 1}, "admin"),
    ("DELETE", f"/v1/pools/pol_{ZERO}", None, "admin"),
    ("POST", f"/v1/sandboxes/sbx_{ZERO}/sessions", {"command": "x"}, "sessions:write"),
    ("GET", f"/v1/sandboxes/sbx_{ZERO}/sessions", None, "sandboxes:read"),
    ("GET", f"/v1/sessions/ses_{ZERO}", None, "sandboxes:read"),
    ("GET", "/v1/operations", None, "sandboxes:read"),
    ("GET", f"/v1/operations/op_{ZERO}", None, "sandboxes:read"),
    ("POST", "/v1/templates", {"name": "r", "digest": "f" * 64, "size_bytes": 1, "manifest": {}}, "templates:write"),
    ("GET", "/v1/templates", None, "templates:read"),
    ("GET", "/v1/templates/nope", None, "templates:read"),
    ("DELETE", "/v1/templates/nope", None, "templates:write"),
    ("GET", f"/v1/templates/nope/releases/{'0' * 64}", None, "templates:read"),
    ("DELETE", f"/v1/templates/nope/releases/{'0' * 64}", None, "templates:write"),
    ("GET", "/v1/templates/nope/tags/x", None, "templates:read"),
    ("PUT", "/v1/templates/nope/tags/x", {"digest": "0" * 64}, "templates:write"),
    ("DELETE", "/v1/templates/nope/tags/x", None, "templates:write"),
    ("POST", "/v1/tenants", {"name": "default"}, "admin"),
    ("GET", "/v1/tenants", None, "admin"),
    ("GET", "/v1/tenants/self", None, None),
    ("PATCH", f"/v1/tenants/ten_{ZERO}", {"name": "x"}, "admin"),
    ("DELETE", f"/v1/tenants/ten_{ZERO}", None, "admin"),
    ("POST", "/v1/tokens", {"scopes": ["admin"], "tenant_id": f"ten_{ZERO}"}, "tokens:write"),
    ("GET", "/v1/tokens", None, "tokens:write"),
    ("DELETE", f"/v1/tokens/tok_{ZERO}", None, "tokens:write"),
    ("POST", f"/v1/tokens/tok_{ZERO}/rotate", None, "tokens:write"),
    ("GET", "/v1/nodes", None, "nodes:read"),
]


@pytest.fixture(scope="module")
def tokens(world):
    """A token of each scope alone."""
    api = world.replicas[0].admin()
    return {s: api.post("/v1/tokens", {"scopes": [s]}).json["secret"] for s in SCOPES}


@pytest.mark.parametrize("method,path,body,needed", ROUTES)
def test_matrix_of_scopes(api, tokens, method, path, body, needed):
    """Each route with each scope alone: 403 unless it is the right one (or admin), never 403 when it is."""
    for scope, secret in tokens.items():
        answer = api.call(method, path, body=body, token=secret)
        allowed = needed is None or scope in (needed, "admin")
        if allowed and "tenant_id" not in (body or {}):
            assert answer.status not in (401, 403), (scope, answer)
        elif not allowed:
            assert (answer.status, answer.code) == (403, "forbidden") and needed in answer.json["detail"], (scope, answer)


@pytest.mark.parametrize("method,path,body,needed", ROUTES)
def test_without_a_good_token(world, api, method, path, body, needed):
    """None, unknown, malformed: 401. An attachment or internal token: 401 with its own code."""
    nobody = Client(world.replicas[0].port, None)
    bad = [(None, "unauthorized"), (new_token(), "unauthorized"), ("spm_short", "unauthorized"), ("x", "unauthorized"),
           (new_token("spa"), "wrong_token_kind"), (world.replicas[0].internal_token, "wrong_token_kind")]
    for token, code in bad:
        answer = nobody.call(method, path, body=body, token=token)
        assert (answer.status, answer.code) == (401, code), (token, answer)
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    nobody.close()


def test_only_the_header_counts(world):
    nobody = Client(world.replicas[0].port, None)
    token = world.replicas[0].admin_token
    assert nobody.get(f"/v1/sandboxes?access_token={token}").status == 401
    assert nobody.get("/v1/sandboxes", headers={"Authorization": f"Basic {token}"}).status == 401
    assert nobody.get("/v1/sandboxes", headers={"Authorization": f"bearer {token}"}).status == 200
    assert nobody.get("/v1/sandboxes", headers={"Authorization": token}).status == 401


def test_internal_api_takes_the_internal_token_only(world):
    control = world.replicas[0]
    for token in (None, control.admin_token, new_token("spi"), new_token("spa"), "x"):
        client = Client(control.internal_port, None, check=False)
        answer = client.call("GET", "/internal/v1/nodes/n/desired", token=token)
        assert answer.status == 401, (token, answer)
        client.close()
    assert control.internal().get("/internal/v1/nodes/unheard-of/desired").status == 404


def test_expiry(api):
    made = api.post("/v1/tokens", {"scopes": ["nodes:read"], "expires_in_s": 4}).json
    assert api.get("/v1/nodes", token=made["secret"]).status == 200
    wait_for(lambda: api.get("/v1/nodes", token=made["secret"]).status == 401)
    shown = next(t for t in api.get("/v1/tokens").json["items"] if t["id"] == made["token"]["id"])
    assert shown["state"] == "expired"
    assert api.post(f"/v1/tokens/{made['token']['id']}/rotate").status == 410


def test_rotation_has_a_grace(api):
    made = api.post("/v1/tokens", {"scopes": ["nodes:read"]}).json
    path = f"/v1/tokens/{made['token']['id']}/rotate"
    rotated = api.post(path, {"grace_s": 5})
    assert rotated.status == 200 and rotated.json["token"]["rotated_at"]
    assert api.get("/v1/nodes", token=made["secret"]).status == 200
    assert api.get("/v1/nodes", token=rotated.json["secret"]).status == 200
    wait_for(lambda: api.get("/v1/nodes", token=made["secret"]).status == 401)
    assert api.get("/v1/nodes", token=rotated.json["secret"]).status == 200
    at_once = api.post(path, {"grace_s": 0}).json["secret"]
    assert api.get("/v1/nodes", token=rotated.json["secret"]).status == 401
    assert api.get("/v1/nodes", token=at_once).status == 200
    without_body = api.post(path)
    assert without_body.status == 200


def test_revocation_is_at_once_and_for_good(api):
    made = api.post("/v1/tokens", {"scopes": ["nodes:read"]}).json
    path = f"/v1/tokens/{made['token']['id']}"
    rotated = api.post(f"{path}/rotate", {"grace_s": 600}).json
    assert api.delete(path).status == 204
    for secret in (made["secret"], rotated["secret"]):
        assert api.get("/v1/nodes", token=secret).status == 401
    assert api.delete(path).status == 204
    gone = api.post(f"{path}/rotate")
    assert gone.status == 410 and gone.code == "gone"
    shown = next(t for t in api.get("/v1/tokens").json["items"] if t["id"] == made["token"]["id"])
    assert shown["state"] == "revoked" and shown["revoked_at"]


def test_nobody_reaches_further(api, tokens):
    """Scopes are not gained by making, rotating or revoking tokens."""
    writer = api.post("/v1/tokens", {"scopes": ["tokens:write", "sandboxes:read"]}).json["secret"]
    forbidden = api.post("/v1/tokens", {"scopes": ["sandboxes:write"]}, token=writer)
    assert forbidden.status == 403 and forbidden.json["field"] == "scopes"
    assert api.post("/v1/tokens", {"scopes": ["sandboxes:read"]}, token=writer).status == 201
    strong = api.post("/v1/tokens", {"scopes": ["admin"]}).json["token"]["id"]
    assert api.post(f"/v1/tokens/{strong}/rotate", token=writer).status == 403
    assert api.delete(f"/v1/tokens/{strong}", token=writer).status == 403
    tenant = api.post("/v1/tenants", {"name": "reach"}).json["id"]
    theirs = api.post("/v1/tokens", {"scopes": ["tokens:write"], "tenant_id": tenant}).json
    assert api.post("/v1/tokens", {"scopes": ["tokens:write"], "tenant_id": tenant}, token=writer).status == 403
    assert api.delete(f"/v1/tokens/{theirs['token']['id']}", token=writer).status == 404
    assert api.get(f"/v1/tenants/{tenant}", token=writer).status == 403
    assert api.post("/v1/tokens", {"scopes": ["nodes:read"], "tenant_id": f"ten_{ZERO}"}).status == 404


def test_last_use_is_noted(api):
    made = api.post("/v1/tokens", {"scopes": ["nodes:read"]}).json
    assert made["token"]["last_used_at"] is None
    api.get("/v1/nodes", token=made["secret"])
    shown = next(t for t in api.get("/v1/tokens?limit=200").json["items"] if t["id"] == made["token"]["id"])
    assert shown["last_used_at"]


def test_list_pages(api):
    for _ in range(3):
        api.post("/v1/tokens", {"scopes": ["nodes:read"]})
    page = api.get("/v1/tokens?limit=2").json
    more = api.get(f"/v1/tokens?limit=2&cursor={page['next_cursor']}").json
    assert not {t["id"] for t in page["items"]} & {t["id"] for t in more["items"]}


def test_most_tokens_of_a_tenant(world, api):
    tenant = api.post("/v1/tenants", {"name": f"many-{time.monotonic_ns()}"}).json["id"]
    world.sql("INSERT INTO tokens (id, tenant_id, hash, scopes) SELECT 'tok_' || lpad(i::text, 26, '0'), "
              f"'{tenant}', sha256(('many' || i)::bytea), 1 FROM generate_series(1, 1000) i")
    full = api.post("/v1/tokens", {"scopes": ["nodes:read"], "tenant_id": tenant})
    assert full.status == 429 and full.code == "quota_exceeded" and full.json["field"] == "tokens_per_tenant"


def test_audit_says_who_did_what(world, api):
    made = api.post("/v1/tokens", {"scopes": ["nodes:read"], "name": "audited"}).json
    rows = world.sql(f"SELECT action, peer, token_id FROM audit WHERE object_id = '{made['token']['id']}'")
    assert len(rows) == 1 and rows[0][0] == "createToken" and rows[0][1].startswith("127.0.0.1")
    assert rows[0][2].startswith("tok_")
