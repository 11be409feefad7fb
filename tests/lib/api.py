# SPDX-License-Identifier: Apache-2.0
"""A small client for tests: every exchange is recorded, so that a checker can hold it against spec/openapi.yaml."""

import base64
import contextlib
import http.client
import json
import socket
import time
import urllib.parse
import uuid


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body) if self.body else None

    def __repr__(self):
        return "<%d %s>" % (self.status, self.body[:300])


class Api:
    """Management API (or, with a data plane URL, any other origin). One connection a call: simple and thread-safe."""

    recorder = None  # called with (origin_kind, method, path, request_body, Answer) of every exchange

    def __init__(self, url, token, kind="management"):
        self.url, self.token, self.kind = url, token, kind
        self.host = urllib.parse.urlsplit(url).netloc

    def raw(self, method, path, body=None, headers=None, timeout=60):
        conn = http.client.HTTPConnection(self.host, timeout=timeout)
        try:
            conn.request(method, path, body, headers or {})
            r = conn.getresponse()
            answer = Answer(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        finally:
            conn.close()
        if Api.recorder:
            Api.recorder(self.kind, method, path, body, answer)
        return answer

    def call(self, method, path, body=None, key=None, token=None, timeout=60, headers=None):
        h = {"Authorization": "Bearer " + (self.token if token is None else token)}
        if method != "GET" and key is not False:
            h["Idempotency-Key"] = key or str(uuid.uuid4())
        data = None
        if body is not None:
            data = body if isinstance(body, (bytes, str)) else json.dumps(body)
            h["Content-Type"] = "application/json"
        h.update(headers or {})
        return self.raw(method, path, data, h, timeout)

    def ok(self, method, path, body=None, **kw):
        a = self.call(method, path, body, **kw)
        assert 200 <= a.status < 300, "%s %s: %r" % (method, path, a)
        return a.json

    def wait(self, operation_id, timeout=120):
        end = time.monotonic() + timeout
        while True:
            op = self.ok("GET", "/v1/operations/%s?wait=20" % operation_id)
            if op["state"] in ("succeeded", "failed"):
                return op
            assert time.monotonic() < end, "operation %s is %s after %d s" % (operation_id, op["state"], timeout)

    def create(self, template="seed:latest", wait=True, memory_mib=256, **body):
        r = self.ok("POST", "/v1/sandboxes", {"template": template, "resources": {"memory_mib": memory_mib}, **body})
        if wait:
            op = self.wait(r["operation_id"])
            assert op["state"] == "succeeded", op
        return r["sandbox"]["id"]

    def delete(self, sandbox_id, wait=True):
        r = self.ok("DELETE", "/v1/sandboxes/" + sandbox_id)
        if wait:
            op = self.wait(r["operation_id"])
            assert op["state"] == "succeeded", op
        return r

    def sandbox(self, sandbox_id):
        return self.ok("GET", "/v1/sandboxes/" + sandbox_id)

    def ask(self, sandbox_id, verb, body=None, **kw):
        """POST …/{verb}: the answer, whatever it is."""
        return self.call("POST", "/v1/sandboxes/%s/%s" % (sandbox_id, verb), body, **kw)

    def operate(self, sandbox_id, verb, body=None, timeout=120, good=True):
        """Accepted and final: the operation."""
        a = self.ask(sandbox_id, verb, body, headers={"Prefer": "wait=30"}, timeout=60)
        assert a.status == 202, "%s: %r" % (verb, a)
        op = a.json["operation"]
        if op["state"] not in ("succeeded", "failed"):
            op = self.wait(op["id"], timeout)
        assert not good or op["state"] == "succeeded", op
        return op

    def pause(self, sandbox_id, **kw):
        return self.operate(sandbox_id, "pause", **kw)

    def suspend(self, sandbox_id, **kw):
        return self.operate(sandbox_id, "suspend", **kw)

    def wake(self, sandbox_id, **kw):
        return self.operate(sandbox_id, "wake", **kw)

    def rollback(self, sandbox_id, snapshot_id, **kw):
        return self.operate(sandbox_id, "rollback", {"snapshot_id": snapshot_id}, **kw)

    def take_snapshot(self, sandbox_id, name=None, **kw):
        """The id of the snapshot, which is ready."""
        op = self.operate(sandbox_id, "snapshot", {"name": name} if name else {}, **kw)
        return op["snapshot_id"]

    def fork(self, sandbox_id, count=1, good=True, **body):
        """(operation, ids of the children), once every child's create is over."""
        op = self.operate(sandbox_id, "fork", {"count": count, **body}, good=good)
        return op, [c["sandbox_id"] for c in op["children"] if c["state"] == "succeeded" or not good]

    def snapshots(self, sandbox_id=None, **query):
        words = ["%s=%s" % kv for kv in ({"sandbox_id": sandbox_id} if sandbox_id else {}).items()] + ["%s=%s" % kv for kv in query.items()]
        items, cursor = [], ""
        while True:
            page = self.ok("GET", "/v1/snapshots?" + "&".join(words + ["limit=200"] + (["cursor=" + cursor] if cursor else [])))
            items += page["items"]
            cursor = page["next_cursor"]
            if not cursor:
                return items

    def delete_snapshots(self, sandbox_id=None):
        """Those that may go; a snapshot that is needed says so."""
        for s in self.snapshots(sandbox_id):
            if s["state"] in ("ready", "failed"):
                a = self.call("DELETE", "/v1/snapshots/" + s["id"])
                assert a.status in (202, 404, 409), a

    def wait_state(self, sandbox_id, *states, timeout=60):
        end = time.monotonic() + timeout
        while True:
            s = self.sandbox(sandbox_id)
            if s["state"] in states:
                return s
            assert time.monotonic() < end, "%s is %s, not %s: %s" % (sandbox_id, s["state"], states, s["error"])
            time.sleep(0.02)

    def session(self, sandbox_id, argv, **body):
        return self.ok("POST", "/v1/sandboxes/%s/sessions" % sandbox_id, {"command": argv[0], "args": argv[1:], **body})

    def run(self, sandbox_id, argv, timeout=60, **body):
        with Stream(self.session(sandbox_id, argv, **body), timeout=timeout) as s:
            return s.collect()


class Result:
    def __init__(self):
        self.stdout, self.stderr, self.pty = bytearray(), bytearray(), bytearray()
        self.exited, self.error, self.faults, self.started = None, None, [], None

    @property
    def code(self):
        return self.exited["exit_code"] if self.exited else None

    def __repr__(self):
        return "<exited %r error %r faults %r out %r err %r>" % (self.exited, self.error, self.faults, bytes(self.stdout[:200]),
                                                                 bytes(self.stderr[:200]))


class Stream:
    """One attachment. Iterate for (event, id, data), or collect() to the end. Checks offsets as it goes."""

    def __init__(self, session, last_id=None, timeout=60):
        self.session = session
        url = urllib.parse.urlsplit(session["attach_url"])
        self.conn = http.client.HTTPConnection(url.netloc, timeout=timeout)
        headers = {"Authorization": "Bearer " + session["attachment_token"], "Accept": "text/event-stream"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        self.conn.request("GET", url.path, headers=headers)
        self.sock = self.conn.sock
        self.response = self.conn.getresponse()
        self.status = self.response.status
        self.last_id, self.comments = last_id, 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.conn.close()

    def cut(self):
        """From another thread: the reader finds the end."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def __iter__(self):
        event, data, frame_id = "message", [], None
        while True:
            line = self.response.readline()
            if not line:
                return
            line = line.rstrip(b"\r\n").decode()
            if line == "":
                if data:
                    self.last_id = frame_id or self.last_id
                    yield event, frame_id, json.loads("\n".join(data))
                event, data, frame_id = "message", [], None
            elif line.startswith(":"):
                self.comments += 1
            else:
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    data.append(value)
                elif name == "id":
                    frame_id = value

    def collect(self, result=None, until=None):
        """Gathers to the end of the stream, or until until(result) is true."""
        r = result or Result()
        for event, _, data in self:
            if event in ("stdout", "stderr", "pty"):
                buf = getattr(r, event)
                raw = base64.b64decode(data["data"], validate=True)
                if data["offset"] != len(buf):
                    r.faults.append("offset %s %d, expected %d" % (event, data["offset"], len(buf)))
                buf += raw
            elif event == "process_started":
                r.started = data
            elif event == "process_exited":
                assert r.exited is None, "two exit events"
                r.exited = data
            elif event == "error":
                r.error = data
            else:
                r.faults.append((event, data))
            if until and until(r):
                break
        return r


def stdin(session, data, close=False, timeout=60):
    url = urllib.parse.urlsplit(session["attach_url"])
    path = url.path.rsplit("/", 1)[0] + "/stdin" + ("?close=1" if close else "")
    return data_plane(session, "POST", path, data, "application/octet-stream", timeout)


def signal(session, name, scope=None):
    url = urllib.parse.urlsplit(session["attach_url"])
    body = {"signal": name, **({"scope": scope} if scope else {})}
    return data_plane(session, "POST", url.path.rsplit("/", 1)[0] + "/signal", json.dumps(body), "application/json", 30)


def resize(session, cols, rows):
    url = urllib.parse.urlsplit(session["attach_url"])
    return data_plane(session, "POST", url.path.rsplit("/", 1)[0] + "/resize", json.dumps({"cols": cols, "rows": rows}),
                      "application/json", 30)


def data_plane(session, method, path, body, content_type, timeout):
    url = urllib.parse.urlsplit(session["attach_url"])
    api = Api("%s://%s" % (url.scheme, url.netloc), session["attachment_token"], "data")
    return api.raw(method, path, body, {"Authorization": "Bearer " + session["attachment_token"], "Content-Type": content_type},
                   timeout)
