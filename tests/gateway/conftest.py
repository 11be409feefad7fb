# SPDX-License-Identifier: Apache-2.0
"""A gateway of its own for every test: state directory, port, fake control, fake guests."""

import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from fakes import BUILD, new_id  # noqa: E402
from fakes.control import TOKEN, FakeControl  # noqa: E402
from fakes.guest import FakeGuest  # noqa: E402
from lib.ports import free_port  # noqa: E402


class Events:
    """A client of an event stream: (event, id, data) triples and comments."""

    def __init__(self, gateway, session_id, token, last_event_id=None, start=True):
        self.connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
        headers = {"Authorization": f"Bearer {token}"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        self.connection.request("GET", f"/v1/sessions/{session_id}/events", headers=headers)
        self.comments = []
        self.response = None
        if start:
            self.open()

    def open(self):
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.problem = json.loads(self.response.read()) if self.status != 200 else None
        return self

    def next(self):
        """The next event, or None at the end of the response (which must be a clean one)."""
        name, event_id, data = None, None, ""
        while True:
            line = self.response.readline().decode()
            if not line:
                return None
            line = line.rstrip("\n")
            if line.startswith(":"):
                self.comments.append(line[1:])
            elif not line and name:
                return name, event_id, json.loads(data)
            elif line:
                key, _, value = line.partition(": ")
                name = value if key == "event" else name
                event_id = value if key == "id" else event_id
                data += value if key == "data" else ""

    def all(self):
        events = []
        while event := self.next():
            events.append(event)
        return events

    def close(self):
        if self.response:
            self.response.close()
        self.connection.close()


class Gateway:
    def __init__(self):
        self.state_dir = pathlib.Path(tempfile.mkdtemp(prefix="spgw", dir="/tmp"))
        (self.state_dir / "run" / "vm").mkdir(parents=True)
        self.token_file = self.state_dir / "internal_token"
        self.token_file.write_text(TOKEN + "\n")
        self.control = FakeControl()
        self.port = free_port()
        self.log = self.state_dir / "gateway.log"
        self.process = None
        self.guests = []
        self.tokens = []

    def start(self, **settings):
        flags = {"state-dir": self.state_dir, "gateway-listen": f"127.0.0.1:{self.port}", "internal-urls": self.control.url,
                 "internal-token-file": self.token_file, "log-level": "debug", **settings}
        argv = [str(BUILD / "src" / "gateway" / "space-gateway")]
        for key, value in flags.items():
            argv += [f"--{key}", str(value)]
        # Freed memory is given back at once: tests look at what is really held.
        env = {**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=0:thread_local_quarantine_size_kb=0:malloc_context_size=8"}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(argv, stderr=log, env=env)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                self.get("/healthz")
                return self
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.02)
        raise AssertionError("the gateway does not listen")

    def stop(self):
        """Ends it politely; what the sanitizers found is a failure."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        if self.process:
            assert self.process.returncode == 0, self.log.read_text()[-4000:]

    def close(self):
        try:
            self.stop()
            text = self.log.read_text()
            for token in self.tokens + [TOKEN]:
                assert token not in text, "a token is in the log"
        finally:
            self.close_guests()
            self.control.stop()
            shutil.rmtree(self.state_dir, ignore_errors=True)

    def close_guests(self):
        for guest in self.guests:
            guest.close()
        self.guests.clear()

    # ---- sessions

    def session(self, script, answer="OK 1", **fields):
        """A session whose sandbox runs `script` for every stream: (session id, token, process id, guest)."""
        session_id, sandbox_id, process_id = new_id("ses"), new_id("sbx"), new_id("prc")
        token = "spa_" + session_id[4:] + "x" * 17
        self.tokens.append(token)
        self.control.add_session(session_id, token, {
            "session_id": session_id, "sandbox_id": sandbox_id, "process_id": process_id, "node_id": "local",
            "command": "/bin/sh", "args": ["-c", "echo hi"], "env": {"A": "1", "B": "two"}, "cwd": None, "user": "user",
            "pty": None, "stdin": True, "timeout_s": None, "on_disconnect": "keep", "may_start": True,
            "sandbox_state": "running", "expires_at": "2030-01-01T00:00:00Z", **fields})
        guest = None
        if script:
            guest = FakeGuest(self.state_dir, sandbox_id, lambda stream: script(stream, process_id), answer)
            self.guests.append(guest)
        return session_id, token, process_id, guest

    def events(self, session_id, token, **options):
        return Events(self, session_id, token, **options)

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, data, response.headers

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def post(self, path, token, value=None, **options):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **options.pop("headers", {})}
        body = json.dumps(value) if value is not None and not isinstance(value, (bytes, str)) else value
        status, data, _ = self.request("POST", path, body=body, headers=headers, **options)
        return status, json.loads(data)

    def rss_kib(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")


@pytest.fixture
def cold():
    """A gateway of the test's own, not started yet."""
    gateway = Gateway()
    yield gateway
    gateway.close()


@pytest.fixture
def own(cold):
    """A gateway of the test's own: for those that count, or stop things."""
    return cold.start()


@pytest.fixture(scope="module")
def shared():
    gateway = Gateway().start()
    yield gateway
    gateway.close()


@pytest.fixture
def gateway(shared):
    """One gateway for all tests of a file."""
    shared.control.reset()
    yield shared
    shared.close_guests()
