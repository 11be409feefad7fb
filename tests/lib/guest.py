# SPDX-License-Identifier: Apache-2.0
"""Programs that tests run inside a guest, and how to follow them from outside."""

import base64
import http.client
import json
import threading
import time

from lib import api as apilib

COUNTER = "import time\nn = 0\nwhile True:\n n += 1\n open('/tmp/counter', 'w').write('%d' % n)\n time.sleep(0.05)\n"


class Follower(threading.Thread):
    """Reads a stream in the background and takes it up again where it broke. `arrivals` are (monotonic, bytes) of stdout."""

    def __init__(self, session, until=None, timeout=120):
        super().__init__(daemon=True)
        self.session, self.over, self.limit = session, threading.Event(), timeout
        self.result, self.arrivals, self.connections, self.until = apilib.Result(), [], 0, until
        self.last_id, self.stream = None, None

    def run(self):
        end = time.monotonic() + self.limit
        while not self.over.is_set() and time.monotonic() < end and not self.result.exited and not self.result.error:
            try:
                with apilib.Stream(self.session, last_id=self.last_id, timeout=40) as s:
                    self.stream = s
                    self.connections += 1
                    if s.status == 200:
                        self._read(s)
                    self.last_id = s.last_id
            except (OSError, http.client.HTTPException):
                pass
            self.over.wait(0.1)

    def _read(self, stream):
        r = self.result
        for event, _, data in stream:
            if event == "stdout":
                raw = base64.b64decode(data["data"])
                if data["offset"] != len(r.stdout):
                    r.faults.append("offset %d, expected %d" % (data["offset"], len(r.stdout)))
                r.stdout += raw
                self.arrivals.append((time.monotonic(), len(raw)))
            elif event == "process_exited":
                r.exited = data
            elif event == "process_started":
                r.started = data
            elif event == "error":
                r.error = data
            elif event != "stderr":
                r.faults.append((event, data))
            if self.over.is_set():
                return

    def wait(self, condition, timeout=30):
        end = time.monotonic() + timeout
        while not condition(self.result):
            assert time.monotonic() < end and not self.result.exited and not self.result.error, self.result
            time.sleep(0.01)

    def stop(self):
        self.over.set()
        if self.stream:
            self.stream.cut()
        self.join(50)
        return self.result


def follow(session, **kw):
    f = Follower(session, **kw)
    f.start()
    return f


def detached(api, sandbox, argv, **body):
    """Starts a command and leaves it running; returns its session."""
    session = api.session(sandbox, argv, **body)
    with apilib.Stream(session) as s:
        s.collect(until=lambda r: r.started or r.error)
    return session


def write(api, sandbox, path, text):
    r = api.run(sandbox, ["sh", "-c", 'printf %s "$1" > "$2" && sync "$2"', "sh", text, path])
    assert r.code == 0, r


def read(api, sandbox, path):
    r = api.run(sandbox, ["cat", path])
    assert r.code == 0, r
    return r.stdout.decode()


def python(api, sandbox, program, *args, **kw):
    r = api.run(sandbox, ["python3", "-c", program, *args], **kw)
    assert r.code == 0, r
    return r.stdout.decode()


def values(api, sandbox, program, *args, **kw):
    return json.loads(python(api, sandbox, program, *args, **kw))


def count(api, sandbox, timeout=30):
    """The number that COUNTER has come to. The file is there once the program has started, and empty while it is rewritten."""
    end = time.monotonic() + timeout
    while True:
        text = api.run(sandbox, ["cat", "/tmp/counter"]).stdout.decode()
        if text:
            return int(text)
        assert time.monotonic() < end, "the counter's file stays empty"
        time.sleep(0.05)
