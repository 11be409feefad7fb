# SPDX-License-Identifier: Apache-2.0
"""Tokens, control's refusals, limits, health."""

import hashlib
import http.client
import json
import threading
import time

import pytest

from fakes import new_id
from test_calls import answer_with
from test_events import simple


@pytest.mark.parametrize("header,status,code", [
    (None, 401, "unauthorized"), ("Bearer spm_" + "a" * 43, 401, "wrong_token_kind"),
    ("Bearer spi_" + "a" * 43, 401, "wrong_token_kind"), ("Bearer spa_short", 401, "unauthorized"),
    ("Basic dTpw", 401, "unauthorized"), ("Bearer spa_" + "b" * 43, 401, "unauthorized"), ("Bearer ", 401, "unauthorized")])
@pytest.mark.parametrize("method,path", [("GET", "events"), ("POST", "stdin"), ("POST", "signal")])
def test_tokens_that_are_refused(gateway, header, status, code, method, path):
    session_id, _, _, guest = gateway.session(simple)
    headers = {"Content-Type": "application/json", **({"Authorization": header} if header else {})}
    answer = gateway.request(method, f"/v1/sessions/{session_id}/{path}", headers=headers,
                             body='{"signal":"TERM"}' if path == "signal" else None)
    problem = json.loads(answer[1])
    assert (answer[0], problem["code"]) == (status, code)
    assert answer[2]["Content-Type"] == "application/problem+json" and answer[2]["WWW-Authenticate"] == "Bearer"
    assert not guest.streams


def test_a_token_counts_in_the_header_only(gateway):
    session_id, token, _, _ = gateway.session(simple)
    for query in ("token", "access_token", "authorization"):
        assert gateway.get(f"/v1/sessions/{session_id}/events?{query}={token}")[0] == 401


def test_a_token_of_another_session(gateway):
    first, second = gateway.session(simple), gateway.session(simple)
    assert gateway.events(first[0], second[1]).status == 401


@pytest.mark.parametrize("status,code,expected", [
    (404, "not_found", (404, "not_found")), (409, "sandbox_not_running", (409, "sandbox_not_running")), (410, "gone", (410, "gone")),
    (500, "internal", (503, "unavailable")), (503, "unavailable", (503, "unavailable"))])
def test_refusals_of_control(gateway, status, code, expected):
    session_id, token, _, _ = gateway.session(simple)
    key = next(k for k in gateway.control.sessions if k[0] == session_id)
    gateway.control.sessions[key] = (status, code)
    stream = gateway.events(session_id, token)
    assert (stream.status, stream.problem["code"]) == expected
    if expected[0] == 503:
        assert stream.response.headers["Retry-After"] == "1"


def test_an_unknown_session_id_form(gateway):
    token = "spa_" + "c" * 43
    for session_id in ("ses_x", "sbx_" + "0" * 26, new_id("ses")[:-1], "ses_" + "U" * 26):
        stream = gateway.events(session_id, token)
        assert (stream.status, stream.problem["code"]) == (404, "not_found")
    assert gateway.control.attach_calls == 0


def test_head_starts_nothing(gateway):
    session_id, token, _, guest = gateway.session(simple)
    status, _, _ = gateway.request("HEAD", f"/v1/sessions/{session_id}/events", headers={"Authorization": f"Bearer {token}"})
    assert status == 405 and not guest.streams


def test_positive_answers_are_kept_for_calls_but_not_for_streams(gateway):
    session_id, token, _, _ = gateway.session(answer_with("OK", remaining=0))
    for _ in range(5):
        assert gateway.post(f"/v1/sessions/{session_id}/signal", token, {"signal": "HUP"})[0] == 200
    assert gateway.control.attach_calls == 1
    for _ in range(2):
        gateway.events(session_id, token).close()
    assert gateway.control.attach_calls == 3
    wrong = token[:-1] + "y"
    assert gateway.post(f"/v1/sessions/{session_id}/signal", wrong, {"signal": "HUP"})[0] == 401


@pytest.mark.parametrize("answer", ["ERR not_running failed", "ERR too_many_streams by the guest"])
def test_a_sandbox_that_refuses_streams(gateway, answer):
    session_id, token, _, _ = gateway.session(simple, answer)
    stream = gateway.events(session_id, token)
    assert (stream.status, stream.problem["code"]) == (503, "unavailable")


@pytest.mark.parametrize("answer", ["HELLO", "OK" * 200])
def test_an_answer_to_connect_that_is_none(gateway, answer):
    session_id, token, _, _ = gateway.session(simple, answer)
    assert gateway.events(session_id, token).status == 503


def test_a_sandbox_without_a_socket(gateway):
    session_id, token, _, _ = gateway.session(None)
    stream = gateway.events(session_id, token)
    assert (stream.status, stream.problem["code"]) == (503, "unavailable")


def test_a_session_of_another_node(gateway):
    session_id, token, _, guest = gateway.session(simple, node_id="other")
    assert gateway.events(session_id, token).status == 503 and not guest.streams


def test_a_command_that_does_not_fit(gateway):
    session_id, token, _, _ = gateway.session(simple, args=["x" * 66000])
    stream = gateway.events(session_id, token)
    assert (stream.status, stream.problem["code"]) == (413, "too_large")


def test_control_away(own):
    session_id, token, _, _ = own.session(simple)
    assert own.get("/readyz")[0] == 200
    own.control.stop()
    stream = own.events(session_id, token)
    assert (stream.status, stream.problem["code"]) == (503, "unavailable")
    assert own.get("/readyz")[0] == 503 and own.get("/healthz")[0] == 200
    own.control.resume()
    assert own.events(session_id, token).all()[-1][0] == "process_exited"
    assert own.get("/readyz")[0] == 200


def test_a_second_replica_is_asked(cold):
    cold.start(**{"internal-urls": f"http://127.0.0.1:1,{cold.control.url}"})
    session_id, token, _, _ = cold.session(simple)
    assert cold.events(session_id, token).all()[-1][0] == "process_exited"


def test_a_rotated_internal_token_is_taken_up(own):
    session_id, token, _, _ = own.session(simple)
    own.control.token = "spi_" + "n" * 43
    own.tokens.append(own.control.token)
    assert own.events(session_id, token).status == 503  # it is not the client's fault
    assert own.get("/readyz")[0] == 503
    own.token_file.write_text(own.control.token)
    assert own.events(session_id, token).all()[-1][0] == "process_exited"


def test_unknown_routes_and_methods(gateway):
    assert json.loads(gateway.get("/v1/sandboxes")[1])["code"] == "not_found"
    status, data, _ = gateway.request("POST", f"/v1/sessions/{new_id('ses')}/events")
    assert (status, json.loads(data)["code"]) == (405, "method_not_allowed")


def test_a_client_that_leaves_while_control_is_asked(own):
    own.control.delay = 0.5
    session_id, token, _, guest = own.session(simple)
    stream = own.events(session_id, token, start=False)
    time.sleep(0.1)
    stream.connection.close()
    time.sleep(0.8)
    own.control.delay = 0
    assert not guest.streams and b"space_gateway_streams_open 0\n" in own.get("/metrics")[1]


def test_a_sandbox_that_never_answers_connect(own):
    session_id, token, _, guest = own.session(simple, answer="")
    begun = time.monotonic()
    stream = own.events(session_id, token)
    assert stream.status == 503 and time.monotonic() - begun < 10
    assert len(guest.streams) == 1


def test_many_streams_at_once(own):
    """More than a sample of what the limit promises would take too long here; the bench has the rest."""
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        go.wait(60)
        stream.exited()

    go = threading.Event()
    sessions = [own.session(script) for _ in range(20)]
    streams = [own.events(*session[:2]) for session in sessions for _ in range(10)]
    for stream in streams:
        assert stream.next()[0] == "process_started"
    assert b"space_gateway_streams_open 200\n" in own.get("/metrics")[1]
    go.set()
    for stream in streams:
        assert stream.all()[-1][0] == "process_exited"
        stream.close()


def test_no_answer_without_a_request(gateway):
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=5)
    connection.connect()
    connection.sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    assert connection.sock.recv(4096).startswith(b"HTTP/1.1 400 ")


# ---- a sandbox that wakes

def waking(gateway, session_id, token):
    """Control says not_ready for now; returns what lets it through."""
    key = session_id, hashlib.sha256(token.encode()).hexdigest()
    answer = gateway.control.sessions[key]
    gateway.control.sessions[key] = (409, "not_ready")
    return lambda final=None: gateway.control.sessions.__setitem__(key, final or answer)


def test_attach_waits_for_a_sandbox_that_wakes(gateway):
    session_id, token, _, guest = gateway.session(simple)
    wake = waking(gateway, session_id, token)
    threading.Timer(0.7, wake).start()
    begin = time.monotonic()
    stream = gateway.events(session_id, token)
    assert stream.status == 200 and 0.6 < time.monotonic() - begin < 3
    assert stream.all()[-1][0] == "process_exited" and len(guest.streams) == 1
    assert gateway.control.attach_calls > 3


def test_a_wake_that_fails_is_told(gateway):
    session_id, token, _, guest = gateway.session(simple)
    wake = waking(gateway, session_id, token)
    threading.Timer(0.3, lambda: wake((409, "sandbox_not_running"))).start()
    stream = gateway.events(session_id, token)
    assert (stream.status, stream.problem["code"]) == (409, "sandbox_not_running") and not guest.streams


def test_a_client_that_leaves_while_it_waits(gateway):
    session_id, token, _, guest = gateway.session(simple)
    waking(gateway, session_id, token)
    stream = gateway.events(session_id, token, start=False)
    time.sleep(0.3)
    stream.connection.close()
    time.sleep(0.5)
    before = gateway.control.attach_calls
    time.sleep(0.6)
    assert gateway.control.attach_calls == before and not guest.streams
