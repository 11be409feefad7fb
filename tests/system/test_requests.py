# SPDX-License-Identifier: Apache-2.0
"""Promise: a repeated request makes nothing twice, bad input is named, tokens are good for one plane only; on the real system."""

import concurrent.futures
import json
import uuid

import pytest

from lib import api as apilib
from lib.sizes import say


def test_concurrent_creates_with_one_key_make_one_sandbox(system, api):
    key, body = str(uuid.uuid4()), {"template": "seed:latest", "resources": {"memory_mib": 256}}

    def one(_):
        return api.call("POST", "/v1/sandboxes", body, key=key)

    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(one, range(100)))
    ids = {a.json["sandbox"]["id"] for a in answers if a.status == 202}
    say("100 creates with one key: statuses %s, sandboxes %d" % (sorted({a.status for a in answers}), len(ids)))
    assert len(ids) == 1 and all(a.status in (202, 429) for a in answers)
    other = api.call("POST", "/v1/sandboxes", {**body, "name": "other"}, key=key)
    assert other.status == 422 and other.json["code"] == "idempotency_mismatch"
    system.restart("control")
    again = api.call("POST", "/v1/sandboxes", body, key=key)
    assert again.status == 202 and again.json["sandbox"]["id"] in ids
    assert again.headers.get("idempotency-replayed") == "true"
    api.wait(again.json["operation_id"])
    api.delete(ids.pop())


BAD = [
    ({"template": "nothing:here"}, 404, "template"),
    ({"template": "seed:latest", "resources": {"memory_mib": 1}}, 400, "resources.memory_mib"),
    ({"template": "seed:latest", "resources": {"vcpus": 4096}}, 400, "resources.vcpus"),
    ({"template": "seed:latest", "resources": {"memory_mib": "big"}}, 400, "resources.memory_mib"),
    ({"template": "seed:latest", "name": "x" * 300}, 400, "name"),
    ({"template": "seed:latest", "colour": "red"}, 400, "colour"),
    ({"template": 7}, 400, "template"),
    ({}, 400, "template"),
    ("{", 400, None),
    ('{"template": "seed:latest", "template": "seed:latest"}', 400, None),
]


@pytest.mark.parametrize("body,status,field", BAD)
def test_bad_create(api, body, status, field):
    before = len(api.ok("GET", "/v1/sandboxes?limit=200")["items"])
    a = api.call("POST", "/v1/sandboxes", body if isinstance(body, str) else json.dumps(body))
    assert a.status == status, a
    assert a.headers["content-type"] == "application/problem+json" and a.json["code"] and a.json["detail"]
    if field:
        assert a.json["field"] == field, a
    assert len(api.ok("GET", "/v1/sandboxes?limit=200")["items"]) == before


def test_token_matrix(system, api, sandbox):
    session = api.session(sandbox, ["true"])
    attach, manage = session["attachment_token"], api.token
    assert api.call("GET", "/v1/sandboxes", token=attach).json["code"] == "wrong_token_kind"
    assert api.call("GET", "/v1/sandboxes", token="nonsense").status == 401
    assert api.raw("GET", "/v1/sandboxes").status == 401
    data = apilib.Api(system.data_url, "", "data")
    path = "/v1/sessions/%s/events" % session["session_id"]
    for token, code in ((manage, "wrong_token_kind"), ("spa_" + "A" * 43, "unauthorized"), ("x", "unauthorized")):
        a = data.raw("GET", path, headers={"Authorization": "Bearer " + token})
        assert a.status == 401 and a.json["code"] == code, a
    assert data.raw("GET", path).status == 401
    assert data.raw("GET", path + "?token=" + attach).status in (400, 401)
    other = api.session(sandbox, ["true"])
    a = data.raw("GET", "/v1/sessions/%s/events" % other["session_id"], headers={"Authorization": "Bearer " + attach})
    assert a.status == 401, a
    for s in (session, other):
        with apilib.Stream(s) as stream:
            assert stream.collect().code == 0


def test_another_tenants_sandbox_is_not_there(api, sandbox):
    tenant = api.ok("POST", "/v1/tenants", {"name": "t" + uuid.uuid4().hex[:8]})
    made = api.ok("POST", "/v1/tokens", {"tenant_id": tenant["id"], "scopes": ["sandboxes:read", "sandboxes:write", "sessions:write"]})
    theirs = apilib.Api(api.url, made["secret"])
    assert theirs.call("GET", "/v1/sandboxes/" + sandbox).status == 404
    assert theirs.call("DELETE", "/v1/sandboxes/" + sandbox).status == 404
    assert theirs.call("POST", "/v1/sandboxes/%s/sessions" % sandbox, {"command": "true"}).status == 404
    assert theirs.ok("GET", "/v1/sandboxes")["items"] == []
    assert theirs.call("POST", "/v1/templates", {}).status == 403


def test_no_secret_in_logs(system, api, sandbox):
    session = api.session(sandbox, ["true"])
    with apilib.Stream(session) as s:
        s.collect()
    text = "".join(f.read_text(errors="replace") for f in (system.state / "log").glob("*.log"))
    for secret in (api.token, session["attachment_token"], (system.state / "etc" / "internal_token").read_text().strip()):
        assert secret not in text
