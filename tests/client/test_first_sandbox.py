# SPDX-License-Identifier: Apache-2.0
"""The client contract of examples/first_sandbox.py, against a server that misbehaves on purpose."""

import base64
import importlib.util
import io
import json
import os
import pathlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

PATH = pathlib.Path(__file__).resolve().parents[2] / "examples" / "first_sandbox.py"
spec = importlib.util.spec_from_file_location("first_sandbox", PATH)
fs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fs)

SBX, OP, OPD, SES = "sbx_" + "0" * 26, "op_" + "1" * 26, "op_" + "2" * 26, "ses_" + "3" * 26
ATTACH = "spa_" + "A" * 43
TOKEN = "spm_" + "B" * 43


def frame(event, data, event_id=None):
    text = "event: %s\n" % event
    if event_id:
        text += "id: %s\n" % event_id
    return (text + "data: %s\n\n" % json.dumps(data)).encode()


def stdout(text, offset=0):
    return frame("stdout", {"offset": offset, "data": base64.b64encode(text).decode()}, "o=%d" % (offset + len(text)))


EXIT0 = frame("process_exited", {"exit_code": 0, "signal": None, "oom_killed": False, "reason": "exited", "duration_ms": 1})


class Fake:
    """One server that plays both origins; `routes` may be overridden by a test, everything it sees is in `seen`."""

    def __init__(self):
        self.seen, self.streams, self.fail = [], [[stdout(b"hello\n"), EXIT0]], {}
        self.attach_url = None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fake.seen.append((self.command, self.path, dict(self.headers), body))
                status = fake.fail.get((self.command, self.path.split("?")[0]))
                if status:
                    action = status.pop(0)
                    if not status:
                        del fake.fail[(self.command, self.path.split("?")[0])]
                    return self.misbehave(action)
                return self.answer()

            do_GET = do_POST = do_DELETE = lambda self: self.handle_one()

            def misbehave(self, action):
                if action == "drop":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                elif action == "hang":
                    time.sleep(3)
                elif action == "redirect":
                    self.send_response(307)
                    self.send_header("Location", "http://127.0.0.1:1/steal")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self.json(action, {"code": "unavailable", "detail": "try later"})

            def json(self, status, value):
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def answer(self):
                path = self.path.split("?")[0]
                sandbox = {"id": SBX, "state": "running", "ready": True, "template": {"digest": "d" * 64}}
                if path == "/v1/sandboxes":
                    return self.json(202, {"operation_id": OP, "sandbox": sandbox})
                if path == "/v1/sandboxes/" + SBX:
                    return self.json(202, {"operation_id": OPD}) if self.command == "DELETE" else self.json(200, sandbox)
                if path.startswith("/v1/operations/"):
                    return self.json(200, {"kind": "create", "state": "succeeded"})
                if path.endswith("/sessions"):
                    return self.json(201, {"session_id": SES, "attachment_token": ATTACH, "attach_url": fake.attach_url})
                return self.stream()

            def stream(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for piece in fake.streams.pop(0) if fake.streams else []:
                    self.wfile.write(piece)
                self.close_connection = True

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        self.attach_url = "%s/v1/sessions/%s/events" % (self.url, SES)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def paths(self, method):
        return [p for m, p, _, _ in self.seen if m == method]


@pytest.fixture
def fake():
    f = Fake()
    yield f
    f.server.shutdown()


@pytest.fixture
def run(tmp_path):
    return fs.RunDir(str(tmp_path / "run"))


def client(fake, **kw):
    return fs.Client(fake.url, fake.url, TOKEN, **{"timeout": 5, "pause": 0.01, **kw})


def go(fake, run, delete=True, **kw):
    out = io.BytesIO()
    outcome = fs.run_all(client(fake, **kw.pop("client", {})), run, "seed:latest", ["echo", "hello"], lambda _: delete, out, **kw)
    return outcome, out.getvalue()


def test_whole_run_succeeds_and_deletes(fake, run):
    outcome, out = go(fake, run)
    assert outcome.success and out == b"hello\n"
    assert run.state["step"] == "deleted"
    assert fake.paths("DELETE") == ["/v1/sandboxes/" + SBX]


def test_kept_when_the_operator_says_no(fake, run):
    go(fake, run, delete=False)
    assert fake.paths("DELETE") == [] and run.state["step"] == "followed"


def test_no_token_is_stored(fake, run):
    go(fake, run)
    for f in os.listdir(run.path):
        text = open(os.path.join(run.path, f)).read()
        assert TOKEN not in text and ATTACH not in text
    with pytest.raises(fs.ClientError):
        run.save(oops=ATTACH)


def test_run_directory_is_private(run, tmp_path):
    assert os.stat(run.path).st_mode & 0o077 == 0
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    os.chmod(shared, 0o755)
    with pytest.raises(fs.ClientError):
        fs.RunDir(str(shared))


@pytest.mark.parametrize("url", [
    "http://127.0.0.1:1/v1/sessions/%s/events" % SES,
    "https://127.0.0.1/v1/sessions/%s/events" % SES,
    "http://evil.example/v1/sessions/%s/events" % SES,
])
def test_wrong_origin_gets_no_token(fake, run, url):
    fake.attach_url = url
    with pytest.raises(fs.ClientError, match="token was not sent"):
        go(fake, run)
    assert not any(ATTACH in str(h) for _, _, h, _ in fake.seen)


@pytest.mark.parametrize("path", ["/v1/sessions/other/events", "/v1/sessions/%s/events?x=1" % SES, "/"])
def test_wrong_path_gets_no_token(fake, run, path):
    fake.attach_url = fake.url + path
    with pytest.raises(fs.ClientError, match="token was not sent"):
        go(fake, run)


def test_management_token_never_reaches_the_data_plane(fake, run):
    go(fake, run)
    for _, path, headers, _ in fake.seen:
        assert headers["Authorization"] == "Bearer " + (ATTACH if path.endswith("/events") else TOKEN)


def test_redirects_are_refused(fake, run):
    fake.fail[("POST", "/v1/sandboxes")] = ["redirect"]
    with pytest.raises(fs.ClientError, match="redirect"):
        go(fake, run)
    fake.fail[("GET", "/v1/sessions/%s/events" % SES)] = ["redirect"]
    with pytest.raises(fs.ClientError, match="redirect"):
        go(fake, run)


def test_proxy_variables_are_ignored(fake, run, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert go(fake, run)[0].success


def test_nonzero_exit_is_no_success(fake, run):
    fake.streams = [[frame("process_exited", {"exit_code": 7, "signal": None})]]
    outcome, _ = go(fake, run)
    assert not outcome.success and outcome.exited["exit_code"] == 7


def test_cut_frame_is_taken_up_again_with_the_last_id(fake, run):
    fake.streams = [[stdout(b"hel"), b"event: stdout\ndata: {\"off"], [stdout(b"lo\n", 3), EXIT0]]
    outcome, out = go(fake, run)
    assert outcome.success and out == b"hello\n"
    last = [h for _, p, h, _ in fake.seen if p.endswith("/events")][-1]
    assert last["Last-Event-ID"] == "o=3"


def test_end_without_exit_is_no_success(fake, run):
    fake.streams = [[stdout(b"hello\n")]]
    outcome, _ = go(fake, run, run_timeout=0.1)
    assert not outcome.success and "cut" in outcome.faults[-1]


@pytest.mark.parametrize("event", ["gap", "resync_required", "error"])
def test_faults_spoil_success(fake, run, event):
    fake.streams = [[frame(event, {"code": "x", "message": "y"}), EXIT0]]
    assert not go(fake, run)[0].success


def test_lost_create_answer_is_repeated_with_the_same_key(fake, run):
    fake.fail[("POST", "/v1/sandboxes")] = ["drop", 503]
    assert go(fake, run)[0].success
    keys = [h["Idempotency-Key"] for m, p, h, _ in fake.seen if (m, p) == ("POST", "/v1/sandboxes")]
    assert len(keys) == 3 and len(set(keys)) == 1


def test_delete_is_retried_with_the_same_key(fake, run):
    fake.fail[("DELETE", "/v1/sandboxes/" + SBX)] = ["drop", 503]
    go(fake, run)
    keys = [h["Idempotency-Key"] for m, _, h, _ in fake.seen if m == "DELETE"]
    assert len(keys) == 3 and len(set(keys)) == 1


def test_resume_uses_the_keys_of_the_first_try(fake, run):
    fake.fail[("POST", "/v1/sandboxes/%s/sessions" % SBX)] = [400]
    with pytest.raises(fs.Refused):
        go(fake, run)
    again = fs.RunDir(run.path)
    assert go(fake, again)[0].success
    creates = [(h["Idempotency-Key"], b) for m, p, h, b in fake.seen if (m, p) == ("POST", "/v1/sandboxes")]
    assert len(creates) == 2 and len(set(creates)) == 1


def test_timeout_of_the_api_is_an_error(fake, run):
    fake.fail[("GET", "/v1/sandboxes/" + SBX)] = ["hang", "hang"]
    with pytest.raises(fs.ClientError, match="no answer"):
        go(fake, run, client={"timeout": 0.2, "attempts": 2})


def test_operation_that_never_ends_is_left_for_later(fake, run):
    c = client(fake)
    c.call = lambda *a, **k: {"state": "running", "kind": "create"}
    with pytest.raises(fs.ClientError, match="still running"):
        c.wait_operation(OP, time.monotonic() - 1)


def test_failed_operation_names_its_reason(fake, run):
    c = client(fake)
    c.call = lambda *a, **k: {"state": "failed", "kind": "create", "error": {"code": "no_capacity", "message": "full"}}
    with pytest.raises(fs.ClientError, match="no_capacity"):
        c.wait_operation(OP, time.monotonic() + 5)


def test_not_ready_is_an_error(fake, run):
    real = fs.Client.call

    def not_ready(self, method, path, *a, **k):
        answer = real(self, method, path, *a, **k)
        if method == "GET" and path == "/v1/sandboxes/" + SBX:
            answer["ready"] = False
        return answer

    fs.Client.call = not_ready
    try:
        with pytest.raises(fs.ClientError, match="not ready"):
            go(fake, run)
    finally:
        fs.Client.call = real


def test_refusal_is_not_retried(fake, run):
    fake.fail[("POST", "/v1/sandboxes")] = [400]
    with pytest.raises(fs.Refused):
        go(fake, run)
    assert len(fake.paths("POST")) == 1


def test_bad_origins_are_refused():
    for url in ("ftp://x", "http://user@x", "http://x/path", "x", "http://x?y"):
        with pytest.raises(fs.ClientError):
            fs.Origin(url, "SPACE_API_URL")


def test_inspect_shows_the_state_and_no_token(fake, run, capsys):
    go(fake, run, delete=False)
    fs.inspect(run, client(fake))
    shown = json.loads(capsys.readouterr().out)
    assert shown["sandbox_now"] == "running" and shown["session_id"] == SES
