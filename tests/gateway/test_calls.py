# SPDX-License-Identifier: Apache-2.0
"""stdin, resize and signal: what reaches the process, and every refusal."""

import http.client
import json
import os
import threading
import time

import pytest


def take_stdin(received, pause=None):
    """An agent that takes everything."""
    def script(stream, process_id):
        kind, request = stream.read()
        assert kind == "STDIN" and request["process_id"] == process_id
        received.append(request["close_after"])
        data = bytearray()
        try:
            while True:
                kind, fields = stream.read()
                assert kind == "DATA" and len(fields["data"]) <= 32768
                data += fields["data"]
                if pause:
                    pause.wait(20)
        except Exception as error:  # the gateway's half close
            if type(error).__name__ != "Closed":
                raise
        received.append(bytes(data))
        stream.send("OK", accepted=len(data))
    return script


def answer_with(kind, **fields):
    def script(stream, _):
        script.requests.append(stream.read())
        stream.send(kind, **fields)
        stream.wait_closed()
    script.requests = []
    return script


@pytest.mark.parametrize("size", [0, 1, 32768, 32769, 3_000_000])
@pytest.mark.parametrize("close", [False, True])
def test_stdin_bytes_arrive(gateway, size, close):
    received, body = [], os.urandom(size)
    session_id, token, _, guest = gateway.session(take_stdin(received))
    answer = gateway.post(f"/v1/sessions/{session_id}/stdin" + ("?close=1" if close else ""), token, body)
    assert answer == (200, {"accepted": size})
    assert received == [int(close), body] and not guest.errors


def test_stdin_in_chunks(gateway):
    received = []
    session_id, token, _, _ = gateway.session(take_stdin(received))
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    connection.request("POST", f"/v1/sessions/{session_id}/stdin?close=0", body=iter([b"one ", b"two ", b"three"]),
                       headers={"Authorization": f"Bearer {token}"}, encode_chunked=True)
    assert json.loads(connection.getresponse().read()) == {"accepted": 13}
    assert received == [0, b"one two three"]


def test_stdin_of_a_process_that_does_not_read(own):
    """Back-pressure reaches the client; memory does not grow."""
    received, go = [], threading.Event()
    session_id, token, _, _ = own.session(take_stdin(received, go))
    total, sent = 16 * 1024 * 1024, [0]

    def body():
        for _ in range(total // 65536):
            yield b"\1" * 65536
            sent[0] += 65536

    connection = http.client.HTTPConnection("127.0.0.1", own.port, timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Length": str(total)}
    before = own.rss_kib()
    thread = threading.Thread(target=connection.request, args=("POST", f"/v1/sessions/{session_id}/stdin", body(), headers))
    thread.start()
    last = -1
    while last != sent[0]:
        last = sent[0]
        time.sleep(0.3)
    assert 0 < last < total
    assert own.rss_kib() - before < 6 * 1024
    go.set()
    thread.join()
    assert json.loads(connection.getresponse().read()) == {"accepted": total}
    assert len(received[1]) == total


def test_a_client_that_leaves_half_way_never_looks_like_the_end(own):
    ends = []

    def script(stream, _):
        stream.read()
        stream.read()
        try:
            stream.read()
        except Exception as error:  # pylint: disable=broad-except
            ends.append(type(error).__name__)
        stream.send("OK", accepted=4)

    session_id, token, _, _ = own.session(script)
    connection = http.client.HTTPConnection("127.0.0.1", own.port, timeout=20)
    connection.putrequest("POST", f"/v1/sessions/{session_id}/stdin?close=1")
    connection.putheader("Authorization", f"Bearer {token}")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"part")
    time.sleep(0.3)
    connection.close()
    deadline = time.monotonic() + 5
    while not ends and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ends  # the whole socket is closed: space-vm makes a RESET of that
    assert b"space_gateway_client_gone_total 1\n" in own.get("/metrics")[1]


@pytest.mark.parametrize("fields,path,body,expected", [
    ({"stdin": False}, "stdin", b"x", (409, "stdin_closed")),
    ({}, "resize", {"cols": 80, "rows": 24}, (409, "no_pty")),
])
def test_calls_the_session_cannot_have(gateway, fields, path, body, expected):
    session_id, token, _, _ = gateway.session(None, **fields)
    status, problem = gateway.post(f"/v1/sessions/{session_id}/{path}", token, body)
    assert (status, problem["code"]) == expected


def test_resize(gateway):
    script = answer_with("OK")
    session_id, token, process_id, _ = gateway.session(script, pty={"cols": 80, "rows": 24})
    assert gateway.post(f"/v1/sessions/{session_id}/resize", token, {"cols": 120, "rows": 40}) == (200, {})
    assert script.requests == [("RESIZE", {"process_id": process_id, "cols": 120, "rows": 40})]


@pytest.mark.parametrize("body,number,scope", [({"signal": "TERM"}, 15, 2), ({"signal": "KILL"}, 9, 3), ({"signal": "INT"}, 2, 2),
                                               ({"signal": "KILL", "scope": "leader"}, 9, 1),
                                               ({"signal": "HUP", "scope": "cgroup"}, 1, 3),
                                               ({"signal": "WINCH", "scope": None}, 28, 2)])
def test_signal(gateway, body, number, scope):
    script = answer_with("OK", remaining=2)
    session_id, token, process_id, _ = gateway.session(script)
    assert gateway.post(f"/v1/sessions/{session_id}/signal", token, body) == (200, {"remaining": 2})
    assert script.requests == [("SIGNAL", {"process_id": process_id, "signal": number, "scope": scope})]


@pytest.mark.parametrize("path,body,code,field", [
    ("signal", {}, "invalid", "signal"), ("signal", {"signal": "SIGTERM"}, "invalid", "signal"),
    ("signal", {"signal": 15}, "invalid", "signal"), ("signal", {"signal": "TERM", "scope": "all"}, "invalid", "scope"),
    ("signal", {"signal": "TERM", "extra": 1}, "invalid", "extra"), ("signal", "[]", "malformed", None),
    ("signal", "{", "malformed", None), ("signal", "", "malformed", None), ("resize", {"cols": 0, "rows": 24}, "invalid", "cols"),
    ("resize", {"cols": 80, "rows": 4097}, "invalid", "rows"), ("resize", {"cols": 80}, "invalid", "rows"),
    ("resize", {"cols": 80.5, "rows": 24}, "invalid", "cols"), ("resize", '{"cols":1,"cols":2,"rows":3}', "malformed", None),
])
def test_bodies_that_are_refused(gateway, path, body, code, field):
    session_id, token, _, _ = gateway.session(None, pty={"cols": 80, "rows": 24})
    status, problem = gateway.post(f"/v1/sessions/{session_id}/{path}", token, body)
    assert (status, problem["code"], problem.get("field")) == (400, code, field)


def test_other_refusals_of_a_body(gateway):
    session_id, token, _, _ = gateway.session(None, pty={"cols": 80, "rows": 24})
    path = f"/v1/sessions/{session_id}/signal"
    assert gateway.post(path, token, {"signal": "TERM"}, headers={"Content-Type": "text/plain"})[1]["code"] == \
        "unsupported_media_type"
    status, problem = gateway.post(path, token, '{"signal":"' + "x" * 5000 + '"}')
    assert (status, problem["code"]) == (413, "too_large")
    status, problem = gateway.post(f"/v1/sessions/{session_id}/stdin?close=2", token, b"")
    assert (status, problem["code"], problem["field"]) == (400, "invalid", "close")


@pytest.mark.parametrize("path", ["stdin", "resize", "signal"])
@pytest.mark.parametrize("may_start,code,expected", [
    (True, "not_found", (409, "not_started")), (False, "not_found", (410, "gone")), (False, "busy", (503, "unavailable")),
    (False, "internal", (502, "bad_gateway")), (False, "limit", (503, "unavailable"))])
def test_errors_of_the_agent(gateway, path, may_start, code, expected):
    session_id, token, _, _ = gateway.session(answer_with("ERROR", code=code, message="m"), may_start=may_start,
                                              pty={"cols": 80, "rows": 24})
    body = {"stdin": b"abc", "resize": {"cols": 1, "rows": 1}, "signal": {"signal": "TERM"}}[path]
    status, problem = gateway.post(f"/v1/sessions/{session_id}/{path}", token, body)
    assert (status, problem["code"]) == expected


@pytest.mark.parametrize("path,code", [("stdin", "stdin_closed"), ("resize", "process_exited"), ("signal", "process_exited")])
def test_closed_means_something_else_each_time(gateway, path, code):
    session_id, token, _, _ = gateway.session(answer_with("ERROR", code="closed", message="m"), pty={"cols": 80, "rows": 24})
    body = {"stdin": b"abc", "resize": {"cols": 1, "rows": 1}, "signal": {"signal": "TERM"}}[path]
    status, problem = gateway.post(f"/v1/sessions/{session_id}/{path}", token, body)
    assert (status, problem["code"]) == (409, code)


@pytest.mark.parametrize("answer", [("STARTED", {"process_id": "x", "pid": 1}), ("OK", {"accepted": 99}), ("OK", {}), b"junk" * 9])
def test_an_answer_that_cannot_be(gateway, answer):
    def script(stream, _):
        stream.read()
        if isinstance(answer, bytes):
            stream.raw(answer)
        else:
            stream.send(answer[0], **answer[1])
        stream.wait_closed()

    session_id, token, _, _ = gateway.session(script)
    status, problem = gateway.post(f"/v1/sessions/{session_id}/stdin", token, b"abc")
    assert (status, problem["code"]) == (502, "bad_gateway")


def test_too_many_calls_at_once(own):
    go = threading.Event()

    def script(stream, _):
        stream.read()
        go.wait(10)
        stream.send("OK", remaining=0)

    session_id, token, _, _ = own.session(script)
    results = []
    threads = [threading.Thread(target=lambda: results.append(
        own.post(f"/v1/sessions/{session_id}/signal", token, {"signal": "HUP"}))) for _ in range(16)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 5
    while b"space_gateway_calls_open 16\n" not in own.get("/metrics")[1] and time.monotonic() < deadline:
        time.sleep(0.02)
    status, problem = own.post(f"/v1/sessions/{session_id}/signal", token, {"signal": "HUP"})
    assert (status, problem["code"]) == (429, "too_many_streams")
    go.set()
    for thread in threads:
        thread.join()
    assert results == [(200, {"remaining": 0})] * 16
