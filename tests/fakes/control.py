# SPDX-License-Identifier: Apache-2.0
"""A fake internal API of control (spec/internal-api.md), for one node and any number of sessions."""

import hashlib
import http.server
import json
import re
import threading
import time

TOKEN = "spi_" + "i" * 43


class FakeControl:
    def __init__(self, port=0):
        self.lock = threading.Condition()
        self.registered = []
        self.observed = []          # every report's sandboxes, in order, with a time
        self.sandboxes = {}         # id → desired row
        self.revision = 1
        self.sessions = {}          # (session_id, token_sha256) → answer or (status, code)
        self.states = []            # (session_id, body)
        self.attach_calls = 0
        self.polls = 0
        self.fail = None            # status every call is answered with
        self.delay = 0
        self.token = TOKEN
        self.capacities = []
        self.port = port
        self.server = None
        self.start()

    def reset(self):
        with self.lock:
            self.states.clear()
            self.attach_calls = 0

    # ---- life

    def start(self):
        control = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_GET(self):
                control.serve(self, None)

            def do_POST(self):
                control.serve(self, json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0)))))

        class Server(http.server.ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """Closes the listener; connections that are open answer 503 from now on."""
        server, self.server = self.server, None
        if server:
            self.fail = 503
            with self.lock:
                self.lock.notify_all()
            server.shutdown()
            server.server_close()

    def resume(self):
        self.fail = None
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    # ---- requests

    def serve(self, request, body):
        if self.delay:
            time.sleep(self.delay)
        status, answer = self.answer(request, body)
        if self.server is None:
            status, answer = 503, {"code": "unavailable"}
        data = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json" if status < 400 else "application/problem+json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def answer(self, request, body):
        path, _, query = request.path.partition("?")
        if self.fail:
            return self.fail, {"code": "unavailable", "detail": "told to"}
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return 401, {"code": "unauthorized", "field": "Authorization", "detail": "not the internal token"}
        if path == "/internal/v1/attach":
            return self.attach(body)
        if match := re.fullmatch(r"/internal/v1/sessions/([a-z0-9_]+)/state", path):
            with self.lock:
                self.states.append((match[1], body))
                self.lock.notify_all()
            return 200, {}
        if match := re.fullmatch(r"/internal/v1/nodes/([A-Za-z0-9.%-]+)/(register|desired|observed)", path):
            handler = {"register": self.register, "desired": self.desired, "observed": self.take_observed}[match[2]]
            return handler(body, dict(p.split("=") for p in query.split("&") if p))
        return 404, {"code": "not_found", "detail": path}

    # ---- sessions

    def add_session(self, session_id, token, answer):
        self.sessions[session_id, hashlib.sha256(token.encode()).hexdigest()] = answer

    def attach(self, body):
        self.attach_calls += 1
        answer = self.sessions.get((body["session_id"], body["token_sha256"]))
        if answer is None:
            return 401, {"code": "unauthorized", "field": "token", "detail": "wrong token"}
        if isinstance(answer, tuple):
            return answer[0], {"code": answer[1], "detail": "told to"}
        return 200, answer

    def wait_states(self, n, timeout=5):
        with self.lock:
            assert self.lock.wait_for(lambda: len(self.states) >= n, timeout), self.states
            return list(self.states)

    # ---- a node

    def register(self, body, _):
        with self.lock:
            self.registered.append(body)
            self.lock.notify_all()
        return 200, {"node_id": "local"}

    def rows(self):
        return [row for row in self.sandboxes.values() if row.get("listed", True)]

    def desired(self, _, query):
        with self.lock:
            self.polls += 1
            self.lock.notify_all()
            if query.get("since") == str(self.revision):
                self.lock.wait_for(lambda: str(self.revision) != query["since"] or self.fail, int(query.get("wait", 0)))
            if self.fail:
                return self.fail, {"code": "unavailable", "detail": "told to"}
            rows = [{k: v for k, v in row.items() if k != "listed"} for row in self.rows()]
            return 200, {"revision": self.revision, "sandboxes": rows}

    def want(self, row):
        with self.lock:
            self.sandboxes[row["id"]] = row
            self.changed()

    def delete(self, sandbox_id):
        with self.lock:
            self.sandboxes[sandbox_id]["desired"] = "deleted"
            self.changed()

    def forget(self, sandbox_id):
        with self.lock:
            del self.sandboxes[sandbox_id]
            self.changed()

    def changed(self):
        self.revision += 1
        self.lock.notify_all()

    def observed_call(self, body):
        unknown = []
        for item in body["sandboxes"]:
            self.observed.append({**item, "at": time.monotonic()})
            row = self.sandboxes.get(item["id"])
            if row is None:
                unknown.append(item["id"])
                continue
            if item["state"] == "deleted" and row["observed"] == "failed":
                row["listed"] = False
            elif item["state"] == "deleted" and row["desired"] == "deleted":
                row["listed"] = False
                row["observed"] = "deleted"
            elif row["observed"] not in ("failed", "deleted"):
                row["observed"] = item["state"]
        return unknown

    def take_observed(self, body, _):
        with self.lock:
            unknown = self.observed_call(body)
            if "capacity" in body:
                self.capacities.append(body["capacity"])
            self.lock.notify_all()
        return 200, {"accepted": len(body["sandboxes"]), "unknown": unknown}

    def reports(self, sandbox_id):
        return [item for item in self.observed if item["id"] == sandbox_id]

    def wait_report(self, sandbox_id, state, timeout=10):
        """The first report of that state."""
        def find():
            return next((item for item in self.reports(sandbox_id) if item["state"] == state), None)
        with self.lock:
            assert self.lock.wait_for(find, timeout), (state, self.reports(sandbox_id))
            return find()

    def wait_for(self, condition, timeout=10):
        with self.lock:
            assert self.lock.wait_for(condition, timeout)
