# SPDX-License-Identifier: Apache-2.0
"""Tenants: life, quotas, and that a quota holds at once from many sides."""
import threading
import time

import pytest


def unique(name):
    return f"{name}-{time.monotonic_ns()}"


@pytest.fixture
def tenant(api):
    """A tenant of its own with a token for everything it may do."""
    def make(**quotas):
        made = api.post("/v1/tenants", {"name": unique("t"), "quotas": quotas})
        assert made.status == 201
        scopes = ["sandboxes:read", "sandboxes:write", "sessions:write", "templates:read", "templates:write", "tokens:write"]
        token = api.post("/v1/tokens", {"scopes": scopes, "tenant_id": made.json["id"]}).json["secret"]
        return made.json["id"], token
    return make


def test_life_of_a_tenant(api):
    name = unique("life")
    made = api.post("/v1/tenants", {"name": name, "quotas": {"max_sandboxes": 3}})
    assert made.status == 201 and made.json["quotas"]["max_sandboxes"] == 3 and made.json["quotas"]["max_vcpus"] == 400
    taken = api.post("/v1/tenants", {"name": name})
    assert taken.status == 409 and taken.code == "conflict" and taken.json["field"] == "name"
    path = f"/v1/tenants/{made.json['id']}"
    changed = api.patch(path, {"quotas": {"max_vcpus": 9}}).json
    assert changed["quotas"]["max_vcpus"] == 9 and changed["quotas"]["max_sandboxes"] == 3
    assert api.patch(path, {"name": unique("other")}).status == 200
    assert api.patch(path, {"name": "default"}).code == "conflict"
    assert any(t["id"] == made.json["id"] for t in api.get("/v1/tenants?limit=200").json["items"])
    page = api.get("/v1/tenants?limit=1").json
    assert api.get(f"/v1/tenants?limit=1&cursor={page['next_cursor']}").json["items"] != page["items"]
    assert api.delete(path).status == 204
    assert api.get(path).status == 404 and api.delete(path).status == 404 and api.patch(path, {"name": "x"}).status == 404


def test_delete_waits_for_its_sandboxes(api, tenant):
    tid, token = tenant()
    box = api.post("/v1/sandboxes", {"template": "seed"}, token=token).json["sandbox"]["id"]
    refused = api.delete(f"/v1/tenants/{tid}")
    assert refused.status == 409 and refused.code == "in_use"
    api.delete(f"/v1/sandboxes/{box}", token=token, prefer=20)
    assert api.delete(f"/v1/tenants/{tid}").status == 204
    assert api.get("/v1/sandboxes", token=token).status == 401
    assert api.delete("/v1/tenants/self").code == "in_use"


def test_own_tenant_shows_what_it_uses(api, tenant):
    tid, token = tenant()
    api.post("/v1/sandboxes", {"template": "seed", "resources": {"vcpus": 2, "memory_mib": 300}}, token=token)
    shown = api.get("/v1/tenants/self", token=token).json
    assert shown["id"] == tid and shown["usage"] == {"sandboxes": 1, "vcpus": 2, "memory_mib": 300}
    assert api.get(f"/v1/tenants/{tid}", token=token).status == 200


@pytest.mark.parametrize("quota,limit,body", [
    ("max_sandboxes", 1, {}), ("max_vcpus", 5, {"resources": {"vcpus": 3}}),
    ("max_memory_mib", 1000, {"resources": {"memory_mib": 600}})])
def test_quotas(api, tenant, quota, limit, body):
    _, token = tenant(**{quota: limit})
    first = api.post("/v1/sandboxes", {"template": "seed", **body}, token=token)
    assert first.status == 202
    full = api.post("/v1/sandboxes", {"template": "seed", **body}, token=token)
    assert (full.status, full.code, full.json["field"]) == (429, "quota_exceeded", quota)
    assert int(full.headers["Retry-After"]) >= 1
    api.delete(f"/v1/sandboxes/{first.json['sandbox']['id']}", token=token)
    assert api.post("/v1/sandboxes", {"template": "seed", **body}, token=token).status == 202


def test_quota_holds_under_concurrency(world, api, tenant):
    """40 creates at once against a quota of 7: exactly 7."""
    _, token = tenant(max_sandboxes=7, requests_per_second=1000)
    clients = [world.replicas[0].admin() for _ in range(40)]
    answers = []

    def create(client):
        answers.append(client.post("/v1/sandboxes", {"template": "seed"}, token=token))
        client.close()

    threads = [threading.Thread(target=create, args=(c,)) for c in clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted({a.status for a in answers}) == [202, 429] and sum(a.status == 202 for a in answers) == 7


def test_request_rate(api, tenant):
    """A burst of twice the rate, then 429 with Retry-After, then it goes on; other tenants feel nothing."""
    _, token = tenant(requests_per_second=2)
    statuses = [api.get("/v1/sandboxes", token=token) for _ in range(12)]
    limited = [a for a in statuses if a.status == 429]
    assert limited and limited[0].code == "rate_limited" and limited[0].headers["Retry-After"] == "1"
    assert api.get("/v1/sandboxes").status == 200
    time.sleep(1.2)
    assert api.get("/v1/sandboxes", token=token).status == 200


def test_every_route_is_limited(api, tenant):
    """Whatever is asked, the bucket is the same one."""
    from test_tokens import ROUTES
    _, token = tenant(requests_per_second=1)
    admin = api.post("/v1/tokens", {"scopes": ["admin"], "tenant_id": api.get("/v1/tenants/self", token=token).json["id"]})
    token = admin.json["secret"]
    for _ in range(4):
        api.get("/v1/tenants/self", token=token)
    for method, path, body, _ in ROUTES:
        for _ in range(6):
            answer = api.call(method, path, body=body, token=token)
            if answer.status == 429:
                break
        assert answer.code == "rate_limited", (method, path, answer)
