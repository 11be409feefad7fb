# SPDX-License-Identifier: Apache-2.0
"""Template releases and tags: registering, resolving, sharing, removal while in use."""
import time

import pytest

A, B, C = "1" * 64, "2" * 64, "3" * 64


def release(name, digest, **more):
    return {"name": name, "digest": digest, "size_bytes": 10, "manifest": {"v": digest[0]}, **more}


@pytest.fixture
def name():
    return f"tpl-{time.monotonic_ns()}"


def test_register_tag_and_move(api, name):
    first = api.post("/v1/templates", release(name, A, tag="latest"))
    assert first.status == 201 and first.json["tags"] == ["latest"] and first.json["shared"] is False
    known = api.post("/v1/templates", release(name, A))
    assert known.status == 200 and known.json["id"] == first.json["id"]
    second = api.post("/v1/templates", release(name, B, tag="latest"))
    assert second.status == 201
    assert api.get(f"/v1/templates/{name}/tags/latest").json["digest"] == B
    api.put(f"/v1/templates/{name}/tags/v1", {"digest": A})
    detail = api.get(f"/v1/templates/{name}").json
    assert {t["tag"]: t["digest"] for t in detail["tags"]} == {"latest": B, "v1": A}
    assert [r["digest"] for r in detail["releases"]] == [B, A]
    assert api.get(f"/v1/templates/{name}/releases/{A}").json["manifest"] == {"v": "1"}
    assert [t["digest"] for t in api.get(f"/v1/templates?name={name}").json["items"]] == [B, A]
    page = api.get(f"/v1/templates?name={name}&limit=1").json
    assert api.get(f"/v1/templates?name={name}&limit=1&cursor={page['next_cursor']}").json["items"][0]["digest"] == A
    differs = api.post("/v1/templates", {**release(name, A), "manifest": {"v": "other"}})
    assert differs.status == 409 and differs.code == "conflict"


def test_a_sandbox_keeps_its_digest(api, name):
    """A tag that moves afterwards changes nothing of it."""
    api.post("/v1/templates", release(name, A, tag="latest"))
    box = api.post("/v1/sandboxes", {"template": name}, prefer=20).json["sandbox"]
    api.post("/v1/templates", release(name, B, tag="latest"))
    assert api.get(f"/v1/sandboxes/{box['id']}").json["template"] == {"name": name, "tag": "latest", "digest": A}
    api.delete(f"/v1/sandboxes/{box['id']}")


def test_removal_is_refused_while_in_use(api, name):
    api.post("/v1/templates", release(name, A, tag="x"))
    box = api.post("/v1/sandboxes", {"template": f"{name}@{A}"}, prefer=20).json["sandbox"]["id"]
    one = f"/v1/templates/{name}/releases/{A}"
    for path in (one, f"/v1/templates/{name}"):
        refused = api.delete(path)
        assert refused.status == 409 and refused.code == "in_use"
    api.delete(f"/v1/sandboxes/{box}", prefer=20)
    assert "tags" in api.delete(one).json["detail"]
    assert api.delete(f"/v1/templates/{name}/tags/x").status == 204
    assert api.delete(one).status == 204
    assert api.get(f"/v1/sandboxes/{box}").json["template"]["digest"] == A
    assert api.get(f"/v1/templates/{name}").status == 404
    api.post("/v1/templates", release(name, A, tag="x"))
    api.post("/v1/templates", release(name, B, tag="y"))
    assert api.delete(f"/v1/templates/{name}").status == 204
    assert api.get(f"/v1/templates?name={name}").json["items"] == []


def test_shared_and_own(api, name):
    """Shared templates are seen by all and changed by admins; an own one of the same name hides the shared one."""
    assert api.post("/v1/templates", release(name, A, tag="latest", shared=True)).json["shared"] is True
    tenant = api.post("/v1/tenants", {"name": name}).json["id"]
    scopes = ["templates:read", "templates:write", "sandboxes:write", "sandboxes:read"]
    token = api.post("/v1/tokens", {"scopes": scopes, "tenant_id": tenant}).json["secret"]
    assert api.get(f"/v1/templates/{name}", token=token).json["shared"] is True
    for method, path, body in (("DELETE", f"/v1/templates/{name}", None), ("DELETE", f"/v1/templates/{name}/tags/latest", None),
                               ("PUT", f"/v1/templates/{name}/tags/latest", {"digest": A}),
                               ("DELETE", f"/v1/templates/{name}/releases/{A}", None)):
        assert api.call(method, path, body=body, token=token).code == "forbidden"
    assert api.post("/v1/templates", release(name, B, shared=True), token=token).code == "forbidden"
    assert api.post("/v1/sandboxes", {"template": name}, token=token).json["sandbox"]["template"]["digest"] == A
    api.post("/v1/templates", release(name, C, tag="own"), token=token)
    assert api.get(f"/v1/templates/{name}", token=token).json["shared"] is False
    assert api.get(f"/v1/templates/{name}/tags/latest", token=token).status == 404
    assert api.post("/v1/sandboxes", {"template": name}, token=token).code == "template_not_found"
    assert api.post("/v1/sandboxes", {"template": f"{name}:own"}, token=token).json["sandbox"]["template"]["digest"] == C
    assert api.get(f"/v1/templates/{name}").json["releases"][0]["digest"] == A
    assert api.put(f"/v1/templates/{name}/tags/new", {"digest": C}, token=token).status == 200
    assert api.put(f"/v1/templates/{name}/tags/new", {"digest": A}, token=token).status == 404


def test_most_releases(api, world, name):
    tenant = api.post("/v1/tenants", {"name": name}).json["id"]
    token = api.post("/v1/tokens", {"scopes": ["templates:write"], "tenant_id": tenant}).json["secret"]
    world.sql("INSERT INTO templates (id, owner, name, digest, size_bytes, manifest) SELECT 'tpl_' || lpad(i::text, 26, '0') , "
              f"'{tenant}', 'many', lpad(i::text, 64, '0'), 1, '{{}}' FROM generate_series(1, 1000) i")
    full = api.post("/v1/templates", release(name, A), token=token)
    assert full.status == 429 and full.json["field"] == "template_releases"
