# SPDX-License-Identifier: Apache-2.0
"""Bad input of every kind, field by field and limit by limit: a clear problem, and nothing was made."""
import json
import socket

import pytest

BIG = 10 ** 9


def expect(answer, status, code, field=None, says=None):
    assert (answer.status, answer.code) == (status, code), answer
    if field is not None:
        assert answer.json.get("field") == field, answer
    if says is not None:
        assert says in answer.json["detail"], answer


SANDBOX = [
    # body, field, a piece of the detail
    ({}, "template", "required"),
    ({"template": None}, "template", "null"),
    ({"template": 5}, "template", "string"),
    ({"template": ""}, "template", "1 to 160 bytes"),
    ({"template": "x" * 161}, "template", "161"),
    ({"template": "Seed"}, "template", "name:tag"),
    ({"template": "seed:"}, "template", "name:tag"),
    ({"template": "seed:" + "t" * 65}, "template", "name:tag"),
    ({"template": "seed@abc"}, "template", "name@digest"),
    ({"template": "seed@" + "A" * 64}, "template", "name@digest"),
    ({"template": "seed", "name": ""}, "name", "1 to 64"),
    ({"template": "seed", "name": "n" * 65}, "name", "65"),
    ({"template": "seed", "name": "-x"}, "name", "start with"),
    ({"template": "seed", "name": "sp ace"}, "name", "letters"),
    ({"template": "seed", "name": "ünï"}, "name", "letters"),
    ({"template": "seed", "name": None}, "name", "null"),
    ({"template": "seed", "metadata": []}, "metadata", "object"),
    ({"template": "seed", "metadata": {"k": 1}}, "metadata.k", "string"),
    ({"template": "seed", "metadata": {"k": None}}, "metadata.k", "string"),
    ({"template": "seed", "metadata": {"k": "v" * 257}}, "metadata.k", "256"),
    ({"template": "seed", "metadata": {"": "v"}}, "metadata.", "key"),
    ({"template": "seed", "metadata": {"a b": "v"}}, "metadata.a b", "key"),
    ({"template": "seed", "metadata": {f"k{i}": "v" for i in range(33)}}, "metadata", "32"),
    ({"template": "seed", "metadata": {f"{i:02}" + "k" * 62: "v" * 200 for i in range(32)}}, "metadata", "8192"),
    ({"template": "seed", "env": {"1A": "v"}}, "env.1A", "key"),
    ({"template": "seed", "env": {"A=B": "v"}}, "env.A=B", "key"),
    ({"template": "seed", "env": {"A": "v" * 4097}}, "env.A", "4096"),
    ({"template": "seed", "env": {"A" * 129: "v"}}, None, "key"),
    ({"template": "seed", "env": {f"K{i}": "v" for i in range(65)}}, "env", "64"),
    ({"template": "seed", "env": {f"K{i}": "v" * 4000 for i in range(3)}}, "env", "8192"),
    ({"template": "seed", "resources": 1}, "resources", "object"),
    ({"template": "seed", "resources": {"vcpus": 0}}, "resources.vcpus", "from 1 to 32"),
    ({"template": "seed", "resources": {"vcpus": 33}}, "resources.vcpus", "is 33"),
    ({"template": "seed", "resources": {"vcpus": -1}}, "resources.vcpus", "is -1"),
    ({"template": "seed", "resources": {"vcpus": 1.5}}, "resources.vcpus", "whole"),
    ({"template": "seed", "resources": {"vcpus": True}}, "resources.vcpus", "whole"),
    ({"template": "seed", "resources": {"vcpus": "1"}}, "resources.vcpus", "whole"),
    ({"template": "seed", "resources": {"memory_mib": 127}}, "resources.memory_mib", "from 128 to 65536"),
    ({"template": "seed", "resources": {"memory_mib": 65537}}, "resources.memory_mib", "is 65537"),
    ({"template": "seed", "resources": {"memory_mb": 512}}, "resources.memory_mb", "did you mean memory_mib?"),
    ({"template": "seed", "resources": {"disk_mib": 512}}, "resources.disk_mib", "no known field"),
    ({"template": "seed", "tempalte": "x"}, "tempalte", "did you mean template?"),
    ({"template": "seed", "network": {}}, "network", "no known field"),
    ({"template": "seed", "lifecycles": {}}, "lifecycles", "did you mean lifecycle"),
]


@pytest.mark.parametrize("body,field,says", SANDBOX)
def test_sandbox_fields(api, body, field, says):
    newest = api.get("/v1/sandboxes?limit=1").json["items"]
    expect(api.post("/v1/sandboxes", body), 400, "invalid", field, says)
    assert api.get("/v1/sandboxes?limit=1").json["items"] == newest


LIMIT_BODIES = [
    {"template": "seed", "name": "n" * 64},
    {"template": "seed", "metadata": {f"{i:02}": "v" * 250 for i in range(32)}},
    {"template": "seed", "metadata": {"k" * 64: "v" * 256}},
    {"template": "seed", "env": {"A" * 128: "v" * 4096}},
    {"template": "seed", "env": {f"K{i}": "v" for i in range(64)}},
    {"template": "seed", "resources": {"vcpus": 8, "memory_mib": 128}},
    {"template": "seed", "env": {}, "metadata": {}, "resources": {}},
]


@pytest.mark.parametrize("body", LIMIT_BODIES)
def test_sandbox_at_the_limit_is_fine(api, body):
    made = api.post("/v1/sandboxes", body)
    assert made.status == 202, made
    api.delete(f"/v1/sandboxes/{made.json['sandbox']['id']}")


RAW = [
    (b"", "invalid"), (b"{", "malformed"), (b"[1", "malformed"), (b"\xff", "malformed"), (b"{} x", "malformed"),
    (b"not json", "malformed"), (b'{"template": "seed", "template": "seed"}', "malformed"),
    (b'{"template": "\xc3"}', "malformed"), (b'{"template": "a\\u0000b"}', "malformed"),
    (b'{"template": "\\ud800"}', "malformed"), (b'{"template": 1e999}', "malformed"), (b'{"a": 99999999999999999999}', "malformed"),
    (b"[" * 40 + b"]" * 40, "malformed"), (b'{"template":' + b'{"a":' * 33 + b"1" + b"}" * 34, "malformed"),
    (b"[]", "invalid"), (b'"seed"', "invalid"), (b"null", "invalid"), (b"7", "invalid"),
]


@pytest.mark.parametrize("raw,code", RAW)
def test_malformed_bodies(api, raw, code):
    expect(api.post("/v1/sandboxes", raw=raw), 400, code)


def test_body_over_its_limit(api):
    raw = json.dumps({"template": "seed", "name": "x" * 300000}).encode()
    expect(api.post("/v1/sandboxes", raw=raw), 413, "too_large")
    for path in ("/v1/templates", "/v1/tenants", "/v1/tokens"):
        expect(api.post(path, raw=raw), 413, "too_large")


def test_bodies_where_none_belong(api, running):
    box = running()
    expect(api.call("DELETE", f"/v1/sandboxes/{box['id']}", body={"force": True}), 413, "too_large")


@pytest.mark.parametrize("kind", ["text/plain", "application/jsonx", "application/x-www-form-urlencoded", ""])
def test_media_types(api, kind):
    expect(api.call("POST", "/v1/sandboxes", raw=b'{"template":"seed"}', headers={"Content-Type": kind}), 415,
           "unsupported_media_type", "Content-Type")


def test_media_type_with_parameters(api):
    made = api.call("POST", "/v1/sandboxes", raw=b'{"template":"seed"}',
                    headers={"Content-Type": "Application/JSON; charset=utf-8"})
    assert made.status == 202


SESSION = [
    ({}, "command", "required"), ({"command": ""}, "command", "1 to 4096"), ({"command": "c" * 4097}, "command", "4097"),
    ({"command": ["ls"]}, "command", "string"), ({"command": "a", "args": "x"}, "args", "array"),
    ({"command": "a", "args": [1]}, "args.0", "string"), ({"command": "a", "args": ["x"] * 257}, "args", "256"),
    ({"command": "a", "args": ["ok", "x" * 32769]}, "args.1", "32768"),
    ({"command": "a", "args": ["x" * 30000, "y" * 30000]}, "", "57344"),
    ({"command": "a", "cwd": "tmp"}, "cwd", "absolute"), ({"command": "a", "cwd": "/" + "x" * 1024}, "cwd", "1024"),
    ({"command": "a", "user": "a b"}, "user", "name or number"), ({"command": "a", "user": "-x"}, "user", "name or number"),
    ({"command": "a", "user": "u" * 33}, "user", "32"),
    ({"command": "a", "pty": True}, "pty", "object"), ({"command": "a", "pty": {}}, "pty.cols", "required"),
    ({"command": "a", "pty": {"cols": 80}}, "pty.rows", "required"),
    ({"command": "a", "pty": {"cols": 0, "rows": 24}}, "pty.cols", "from 1"),
    ({"command": "a", "pty": {"cols": 80, "rows": 4097}}, "pty.rows", "4096"),
    ({"command": "a", "pty": {"cols": 80, "rows": 24, "term": "x"}}, "pty.term", "no known"),
    ({"command": "a", "stdin": "yes"}, "stdin", "true or false"),
    ({"command": "a", "timeout_s": 0}, "timeout_s", "from 1"), ({"command": "a", "timeout_s": 604801}, "timeout_s", "604800"),
    ({"command": "a", "on_disconnect": "stay"}, "on_disconnect", "keep|kill"),
    ({"command": "a", "env": {"A B": "x"}}, "env.A B", "key"), ({"command": "a", "env": {"A": "x" * 4097}}, "env.A", "4096"),
    ({"command": "a", "comand": "b"}, "comand", "did you mean command?"),
]


@pytest.fixture(scope="module")
def one_box(world):
    api = world.replicas[0].admin()
    return api.post("/v1/sandboxes", {"template": "seed"}, prefer=20).json["sandbox"]["id"]


@pytest.mark.parametrize("body,field,says", SESSION)
def test_session_fields(api, one_box, body, field, says):
    expect(api.post(f"/v1/sandboxes/{one_box}/sessions", body), 400, "invalid", field or None, says)
    assert api.get(f"/v1/sandboxes/{one_box}/sessions").json["items"] == []


TEMPLATE = {"name": "t", "digest": "e" * 64, "size_bytes": 1, "manifest": {}}
TEMPLATES = [
    ({"name": None}, "name", "null"), ({"name": "UPPER"}, "name", "lower-case"), ({"name": "n" * 65}, "name", "64"),
    ({"tag": "a b"}, "tag", "letters"), ({"tag": "t" * 65}, "tag", "64"), ({"digest": "e" * 63}, "digest", "64"),
    ({"digest": "E" * 64}, "digest", "hexadecimal"), ({"size_bytes": 0}, "size_bytes", "from 1"),
    ({"size_bytes": 2 ** 40 + 1}, "size_bytes", "1099511627776"), ({"manifest": "x"}, "manifest", "object"),
    ({"manifest": {"x": "y" * 17000}}, "manifest", "16384"), ({"shared": 1}, "shared", "true or false"),
    ({"manifest": {"resources": {"vcpus": 99}}}, "manifest.resources.vcpus", "from 1 to 32"),
    ({"manifest": {"resources": {"memory_mib": 1}}}, "manifest.resources.memory_mib", "from 128"),
    ({"tags": ["a"]}, "tags", "did you mean tag?"),
]


@pytest.mark.parametrize("more,field,says", TEMPLATES)
def test_template_fields(api, more, field, says):
    expect(api.post("/v1/templates", {**TEMPLATE, **more}), 400, "invalid", field, says)


@pytest.mark.parametrize("missing", sorted(TEMPLATE))
def test_template_required(api, missing):
    body = {k: v for k, v in TEMPLATE.items() if k != missing}
    expect(api.post("/v1/templates", body), 400, "invalid", missing, "required")


OTHER = [
    ("POST", "/v1/tenants", {}, "name"), ("POST", "/v1/tenants", {"name": "a", "quota": {}}, "quota"),
    ("POST", "/v1/tenants", {"name": "a", "quotas": {"max_sandboxes": -1}}, "quotas.max_sandboxes"),
    ("POST", "/v1/tenants", {"name": "a", "quotas": {"max_sandboxes": 100001}}, "quotas.max_sandboxes"),
    ("POST", "/v1/tenants", {"name": "a", "quotas": {"max_vcpus": 1000001}}, "quotas.max_vcpus"),
    ("POST", "/v1/tenants", {"name": "a", "quotas": {"max_memory_mib": BIG + 1}}, "quotas.max_memory_mib"),
    ("POST", "/v1/tenants", {"name": "a", "quotas": {"max_sessions_per_sandbox": 10001}}, "quotas.max_sessions_per_sandbox"),
    ("POST", "/v1/tenants", {"name": "a", "quotas": {"requests_per_second": 0}}, "quotas.requests_per_second"),
    ("PATCH", "/v1/tenants/self", {}, None), ("PATCH", "/v1/tenants/self", {"quotas": {"x": 1}}, "quotas.x"),
    ("POST", "/v1/tokens", {}, "scopes"), ("POST", "/v1/tokens", {"scopes": []}, "scopes"),
    ("POST", "/v1/tokens", {"scopes": ["sandboxes:raed"]}, "scopes"), ("POST", "/v1/tokens", {"scopes": [1]}, "scopes.0"),
    ("POST", "/v1/tokens", {"scopes": ["admin"] * 9}, "scopes"), ("POST", "/v1/tokens", {"scopes": ["admin", "admin"]}, "scopes"),
    ("POST", "/v1/tokens", {"scopes": ["admin"], "expires_in_s": 0}, "expires_in_s"),
    ("POST", "/v1/tokens", {"scopes": ["admin"], "expires_in_s": 315360001}, "expires_in_s"),
    ("POST", "/v1/tokens", {"scopes": ["admin"], "tenant_id": "ten_x"}, "tenant_id"),
    ("POST", "/v1/tokens", {"scopes": ["admin"], "name": "n" * 65}, "name"),
    ("POST", f"/v1/tokens/tok_{'0' * 26}/rotate", {"grace_s": 604801}, "grace_s"),
    ("PUT", "/v1/templates/seed/tags/x", {"digest": "short"}, "digest"), ("PUT", "/v1/templates/seed/tags/x", {}, "digest"),
    ("PATCH", f"/v1/sandboxes/sbx_{'0' * 26}", {}, None),
    ("PATCH", f"/v1/sandboxes/sbx_{'0' * 26}", {"env": {}}, "env"),
    ("PATCH", f"/v1/sandboxes/sbx_{'0' * 26}", {"metadata": {"k": 1}}, "metadata.k"),
]


@pytest.mark.parametrize("method,path,body,field", OTHER)
def test_other_fields(api, method, path, body, field):
    expect(api.call(method, path, body=body), 400, "invalid", field)


QUERIES = [
    ("/v1/sandboxes?limit=0", "limit"), ("/v1/sandboxes?limit=201", "limit"), ("/v1/sandboxes?limit=x", "limit"),
    ("/v1/sandboxes?limit=", "limit"), ("/v1/sandboxes?limit=1&limit=2", "limit"), ("/v1/sandboxes?lmit=1", "lmit"),
    ("/v1/sandboxes?cursor=", "cursor"), ("/v1/sandboxes?cursor=abc", "cursor"), ("/v1/sandboxes?cursor=1.", "cursor"),
    ("/v1/sandboxes?cursor=1.sbx%27", "cursor"), ("/v1/sandboxes?cursor=" + "1" * 129, "cursor"),
    ("/v1/sandboxes?state=asleep", "state"), ("/v1/sandboxes?name=a%20b", "name"), ("/v1/sandboxes?name=%zz", None),
    ("/v1/sandboxes?metadata.=x", "metadata."), ("/v1/sandboxes?metadata.a=1&metadata.a=2", "metadata.a"),
    ("/v1/sandboxes?" + "&".join(f"metadata.k{i}=v" for i in range(9)), "metadata"),
    ("/v1/sandboxes?metadata.k=" + "v" * 257, "metadata.k"), ("/v1/sandboxes?metadata.k=%ff", "metadata.k"),
    ("/v1/operations?sandbox_id=sbx_1", "sandbox_id"), ("/v1/operations?state=done", "state"),
    (f"/v1/operations/op_{'0' * 26}?wait=61", "wait"), (f"/v1/operations/op_{'0' * 26}?wait=-1", "wait"),
    (f"/v1/operations/op_{'0' * 26}?wait=1.5", "wait"), (f"/v1/operations/op_{'0' * 26}?wiat=1", "wiat"),
    ("/v1/templates?name=X", "name"), ("/v1/nodes?limit=1", "limit"), ("/v1/tenants/self?x=1", "x"),
]


@pytest.mark.parametrize("path,field", QUERIES)
def test_queries(api, path, field):
    expect(api.get(path), 400, "invalid", field)


PATHS = [("/v1/sandboxes/sbx_short", "sandbox_id"), ("/v1/operations/sbx_" + "0" * 26, "operation_id"),
         ("/v1/sessions/ses_" + "0" * 27, "session_id"), ("/v1/tenants/me", "tenant_id"), ("/v1/templates/UPPER", "name"),
         ("/v1/templates/seed/tags/-x", "tag"), ("/v1/templates/seed/releases/abc", "digest")]


@pytest.mark.parametrize("path,field", PATHS)
def test_path_parameters(api, path, field):
    expect(api.get(path), 400, "invalid", field)


@pytest.mark.parametrize("key", ["", " ", "a b", "ü", "k" * 256, "tab\there"])
def test_idempotency_keys(api, key):
    answer = api.call("POST", "/v1/sandboxes", body={"template": "seed"}, headers={"Idempotency-Key": key.encode()})
    expect(answer, 400, "invalid", "Idempotency-Key")


def test_idempotency_key_at_its_limit(api):
    assert api.post("/v1/sandboxes", {"template": "seed"}, key="k" * 255).status == 202


@pytest.mark.parametrize("prefer", ["wait=61", "wait=x", "wait=", "wait=-1", "respond-async, wait=99999999999999999999"])
def test_prefer(api, prefer):
    answer = api.call("POST", "/v1/sandboxes", body={"template": "seed"}, headers={"Prefer": prefer})
    expect(answer, 400, "invalid", "Prefer")


def test_prefer_among_others(api):
    answer = api.call("POST", "/v1/sandboxes", body={"template": "seed"}, headers={"Prefer": "respond-async, wait=15"})
    assert answer.json["operation"]["state"] == "succeeded"


def test_unknown_paths_and_methods(api):
    expect(api.get("/v1/volumes"), 404, "not_found")
    expect(api.get("/"), 404, "not_found")
    expect(api.post(f"/v1/sandboxes/sbx_{'0' * 26}/stop"), 404, "not_found")
    answer = api.call("PUT", "/v1/sandboxes")
    expect(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "POST, GET, HEAD"


def test_update_keeps_the_limits(api, running):
    """Merged metadata obeys what new metadata obeys."""
    box = running(metadata={f"k{i}": "v" for i in range(30)})
    expect(api.patch(f"/v1/sandboxes/{box['id']}", {"metadata": {f"n{i}": "v" for i in range(5)}}), 400, "invalid", "metadata",
           "32")
    assert api.patch(f"/v1/sandboxes/{box['id']}", {"metadata": {"k0": None, "n0": "1", "n1": "2", "n2": "3"}}).status == 200


@pytest.mark.parametrize("raw,status", [
    (b"GET /v1/sandboxes HTTP/1.1\r\n\r\n", 400), (b"GET /v1/sandboxes HTTP/1.1\nHost: x\n\n", 400),
    (b"GET /v1/../v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n", None), (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    (b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20000 + b"\r\n\r\n", 431),
])
def test_broken_messages(world, raw, status):
    """The HTTP layer answers in the same form."""
    with socket.create_connection(("127.0.0.1", world.replicas[0].port)) as s:
        s.settimeout(10)
        s.sendall(raw)
        data = b""
        while b"\r\n\r\n" not in data or not data.endswith(b"}"):
            piece = s.recv(65536)
            if not piece:
                break
            data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    assert b"application/problem+json" in head
    if status:
        assert json.loads(body)["status"] == status
