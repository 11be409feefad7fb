# SPDX-License-Identifier: Apache-2.0
"""A fake internal API of control (spec/internal-api.md), for one node and any number of sessions."""

import hashlib
import http.server
import json
import re
import threading
import time

from fakes import PATIENCE, new_id

TOKEN = "spi_" + "i" * 43
OBSERVED = {"id", "generation", "state", "ready", "error", "accelerator", "kernel", "vmm", "timings", "start_kind", "operation",
            "snapshot", "active_at", "streams"}


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
        self.gone = set()           # snapshots the node is to remove
        self.pools = []             # as the desired list has them
        self.snapshots = {}         # id → state, as nodes reported them
        self.settle = True          # take note of snapshots
        self.asked = []             # ids a node asked after
        self.pool_reports = []
        self.garbage = []
        self.removed = []
        self.snapshot_reports = []
        self.failures = {}          # operation → error
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
        if match := re.fullmatch(r"/internal/v1/nodes/([A-Za-z0-9.%-]+)/(register|desired|observed|snapshots)", path):
            handler = {"register": self.register, "desired": self.desired, "observed": self.take_observed,
                       "snapshots": self.known_snapshots}[match[2]]
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

    def wait_states(self, n, timeout=PATIENCE):
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
            return 200, {"revision": self.revision, "sandboxes": rows, "snapshots_gone": sorted(self.gone), "pools": self.pools}

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

    def move(self, sandbox_id, desired, kind, **fields):
        """An operation on a sandbox: what control's list says from now on."""
        with self.lock:
            row = self.sandboxes[sandbox_id]
            row.update({"start": None, "snapshot": None, "operation_id": new_id("op"), "operation_kind": kind, "desired": desired,
                        **fields})
            if "observed" not in fields:
                row["observed"] = {"pause": "pausing", "suspend": "suspending", "wake": "waking"}.get(kind, row["observed"])
            if row["snapshot"]:
                self.snapshots.setdefault(row["snapshot"]["id"], "creating")
            self.changed()
            return row["operation_id"]

    def observe(self, row, item):
        """What the report makes of the row; the operation on its way ends when its aim is reached, or failed."""
        before = (row["observed"], row.get("operation_id"))
        operation = item.get("operation") or {}
        failed = operation.get("id") == row.get("operation_id") and "error" in operation
        if row["observed"] not in ("failed", "deleted") and item["state"] != "creating" and item["generation"] == row["generation"]:
            aim = row["desired"] == item["state"] and (not row.get("snapshot") or
                                                       self.snapshots.get(row["snapshot"]["id"]) != "creating")
            if failed or aim or item["state"] == "failed":
                row.update({"observed": item["state"], "operation_id": None, "operation_kind": None, "start": None, "snapshot": None})
            if failed:
                row["desired"] = item["state"]
                self.failures[operation["id"]] = operation["error"]
        if before != (row["observed"], row.get("operation_id")):
            self.changed()

    def observed_call(self, body):
        unknown, settled = [], []
        for item in body["sandboxes"]:
            assert set(item) <= OBSERVED, item
            self.observed.append({**item, "at": time.monotonic()})
            row = self.sandboxes.get(item["id"])
            if snapshot := item.get("snapshot"):
                self.snapshot_reports.append(snapshot)
                if self.settle:
                    self.snapshots[snapshot["id"]] = snapshot["state"]
                    settled.append(snapshot["id"])
            if row is None:
                unknown.append(item["id"])
                continue
            if item["state"] == "deleted" and row["observed"] == "failed":
                row["listed"] = False
            elif item["state"] == "deleted" and row["desired"] == "deleted":
                row["listed"] = False
                row["observed"] = "deleted"
            else:
                self.observe(row, item)
        for key in body.get("snapshots_removed", []):
            self.removed.append(key)
            self.gone.discard(key)
            self.snapshots.pop(key, None)
            self.changed()
        return unknown, settled

    def take_observed(self, body, _):
        with self.lock:
            unknown, settled = self.observed_call(body)
            if "capacity" in body:
                self.capacities.append(body["capacity"])
            if "garbage" in body:
                self.garbage.append(body["garbage"])
            if "pools" in body:
                self.pool_reports.append({p["pool_id"]: p for p in body["pools"]})
            self.lock.notify_all()
        return 200, {"accepted": len(body["sandboxes"]), "unknown": unknown, "settled": settled}

    def known_snapshots(self, body, _):
        with self.lock:
            self.asked.extend(body["ids"])
            self.lock.notify_all()
            return 200, {"unknown": [i for i in body["ids"] if i not in self.snapshots]}

    def reports(self, sandbox_id):
        return [item for item in self.observed if item["id"] == sandbox_id]

    def wait_report(self, sandbox_id, state, timeout=PATIENCE):
        """The first report of that state."""
        def find():
            return next((item for item in self.reports(sandbox_id) if item["state"] == state), None)
        with self.lock:
            assert self.lock.wait_for(find, timeout), (state, self.reports(sandbox_id))
            return find()

    def wait_for(self, condition, timeout=PATIENCE):
        """Conditions of others too, which notify nobody: looked at again and again."""
        end = time.monotonic() + timeout
        with self.lock:
            while not condition():
                assert time.monotonic() < end
                self.lock.wait(0.02)
