# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL, real space-control processes, and a client that checks every exchange against the OpenAPI document."""
import http.client
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "lib"))
import openapi_check  # noqa: E402
from ports import free_port  # noqa: E402

PG_BIN = pathlib.Path(os.environ.get("SPACE_PG_BIN", "/usr/lib/postgresql/15/bin"))
SPEC = openapi_check.Spec()


def build_file(name):
    """A file of the build directory: $SPACE_BUILD_DIR, else the first that has it."""
    for build in filter(None, [os.environ.get("SPACE_BUILD_DIR"), ROOT / "build", ROOT / "build-control"]):
        path = pathlib.Path(build) / name
        if path.exists():
            return path
    raise RuntimeError(f"{name} has not been built")


def wait_for(check, seconds=60, what="condition"):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about within {seconds} s")


class Postgres:
    """A cluster of its own: unix socket only, in a directory that goes away. Its processes are killed in tests, the
    machine is not, so nothing is lost in memory and without fsync; measurements take the disk and turn it on."""

    def __init__(self, fsync=False):
        self.fsync = "on" if fsync else "off"
        memory = None if fsync or not os.access("/dev/shm", os.W_OK) else "/dev/shm"
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="space-pg-", dir=memory))
        self.as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self.as_user:
            shutil.chown(self.dir, "postgres")
        self._run("initdb", "-D", self.dir / "data", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N")
        self.start()

    def _run(self, program, *args):
        subprocess.run([*self.as_user, PG_BIN / program, *map(str, args)], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.PIPE, cwd=self.dir)

    def start(self):
        self._run("pg_ctl", "-D", self.dir / "data", "-w", "-l", self.dir / "log", "-o",
                  f"-c listen_addresses='' -c unix_socket_directories={self.dir} -c max_connections=200 -c fsync={self.fsync}",
                  "start")

    def stop(self, mode="fast"):
        self._run("pg_ctl", "-D", self.dir / "data", "-w", "-m", mode, "stop")

    def remove(self):
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def url(self, database):
        return f"host={self.dir} user=postgres dbname={database}"

    def sql(self, database, statement):
        """Rows as lists of texts."""
        out = subprocess.run(["psql", "-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-h", str(self.dir), "-U",
                              "postgres", "-d", database, "-c", statement], check=True, capture_output=True, text=True)
        return [line.split("\t") for line in out.stdout.splitlines()]

    def create(self, database):
        self.sql("postgres", f"CREATE DATABASE {database}")


class Answer:
    def __init__(self, status, headers, body, seconds):
        self.status, self.headers, self.raw, self.seconds = status, headers, body, seconds

    @property
    def json(self):
        return json.loads(self.raw)

    @property
    def code(self):
        return self.json["code"]

    def __repr__(self):
        return f"<{self.status} {self.raw[:300]!r}>"


class Client:
    """One bearer token at one address; a kept connection for each thread."""

    def __init__(self, port, token, check=True):
        self.port, self.token, self.checks = port, token, check
        self._local = threading.local()

    def _connection(self):
        if time.monotonic() - getattr(self._local, "used", 0) > 10:  # the server closes one that is idle for long
            self.close()
        self._local.used = time.monotonic()
        if getattr(self._local, "connection", None) is None:
            self._local.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
            self._local.connection.connect()
            self._local.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._local.connection

    def close(self):
        if getattr(self._local, "connection", None) is not None:
            self._local.connection.close()
            self._local.connection = None

    def call(self, method, path, body=None, raw=None, key=None, prefer=None, headers=None, token=None):
        h = {"Authorization": f"Bearer {token or self.token}"} if (token or self.token) else {}
        if body is not None or raw is not None:
            h["Content-Type"] = "application/json"
        if key is not None:
            h["Idempotency-Key"] = key
        if prefer is not None:
            h["Prefer"] = f"wait={prefer}"
        h.update(headers or {})
        data = raw if raw is not None else (json.dumps(body).encode() if body is not None else None)
        begin = time.monotonic()
        try:
            connection = self._connection()
            connection.request(method, path, body=data, headers=h)
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, response.read(), time.monotonic() - begin)
            self._local.used = time.monotonic()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        if self.checks:
            SPEC.check(method, path, answer.status, answer.headers, answer.raw)
        return answer

    def get(self, path, **kw):
        return self.call("GET", path, **kw)

    def post(self, path, body=None, **kw):
        return self.call("POST", path, body=body, **kw)

    def put(self, path, body=None, **kw):
        return self.call("PUT", path, body=body, **kw)

    def patch(self, path, body=None, **kw):
        return self.call("PATCH", path, body=body, **kw)

    def delete(self, path, **kw):
        return self.call("DELETE", path, **kw)


def new_token(prefix="spm"):
    return f"{prefix}_{secrets.token_urlsafe(32)}"


class Control:
    """One replica."""

    def __init__(self, postgres, database, directory, admin_token=None, create_timeout_s=60, name="control",
                 test_clock=False):
        self.postgres, self.database, self.dir, self.name = postgres, database, pathlib.Path(directory), name
        self.port, self.internal_port = free_port(), free_port()
        self.create_timeout_s, self.test_clock = create_timeout_s, test_clock
        self.admin_token = admin_token or new_token()
        (self.dir / "admin_token").write_text(self.admin_token + "\n")
        internal = self.dir / "internal_token"
        if not internal.exists():
            internal.write_text(new_token("spi") + "\n")
        self.internal_token = internal.read_text().strip()
        self.log = self.dir / f"{name}.log"
        self.process = None

    def arguments(self):
        return [str(build_file("src/control/space-control")), "--control-listen", f"127.0.0.1:{self.port}",
                "--internal-listen", f"127.0.0.1:{self.internal_port}", "--internal-token-file",
                str(self.dir / "internal_token"), "--database-url", self.postgres.url(self.database),
                "--create-timeout-s", str(self.create_timeout_s), "--log-level", "info", "--bootstrap-token-file",
                str(self.dir / "admin_token")]

    def start(self, wait=True):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.arguments(), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            env={**os.environ, "SPACE_CONFIG": "/dev/null",
                                                 "SPACE_TEST_CLOCK": "1" if self.test_clock else ""})
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"space-control ended: {self.log.read_text()[-2000:]}")
            try:
                client = Client(self.port, None)
                answer = client.get("/readyz")
                client.close()
                return answer.status == 200
            except OSError:
                return False
        wait_for(ready, what="readyz")

    def stop(self, sig=signal.SIGTERM):
        if self.process is None:
            return None
        self.process.send_signal(sig)
        begin = time.monotonic()
        code = self.process.wait(timeout=30)
        assert time.monotonic() - begin < 13, "the grace is 10 seconds"
        self.process = None
        return code

    def admin(self):
        return Client(self.port, self.admin_token)

    def internal(self):
        return Client(self.internal_port, self.internal_token, check=False)

    def metric(self, name):
        text = self.admin().get("/metrics").raw.decode()
        found = re.search(rf"^{re.escape(name)} ([0-9.e+]+)$", text, re.M)
        return float(found.group(1)) if found else None
