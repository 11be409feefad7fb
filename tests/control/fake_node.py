# SPDX-License-Identifier: Apache-2.0
"""A node that speaks the internal API and has no virtual machines: it reports what a test tells it to."""
import sys
import threading
import time
import traceback
import uuid

from harness import Client


class FakeNode:
    """Polls for its desired state in a thread. `reaction(item)` gives the reports for an item: a list of dicts."""

    def __init__(self, ports, token, node_id="node-a", memory_mib=65536, vcpus=8, max_sandboxes=256, disk_mib=100000,
                 reaction=None, removes_snapshots=True):
        self.ports, self.token, self.id = list(ports), token, node_id
        self.capacity = {"vcpus": vcpus, "memory_mib": memory_mib, "disk_mib": disk_mib, "max_sandboxes": max_sandboxes}
        self.boot_id = str(uuid.uuid4())
        self.reaction = reaction or self.obey
        self.removes_snapshots = removes_snapshots
        self.gateway_url = "http://127.0.0.1:7999"
        self.desired, self.first_seen, self.revision = {}, {}, 0
        self.unknown, self.settled = [], []
        self.snapshots, self.gone_list, self.pools = set(), [], []
        self._stop = threading.Event()
        self._thread = None
        self._clients = {}
        self.lock = threading.Lock()

    def call(self, method, path, body=None):
        """Any replica answers any call: walk until one does."""
        last = None
        for port in list(self.ports):
            client = self._clients.setdefault((threading.get_ident(), port), Client(port, self.token, check=False))
            try:
                answer = client.call(method, f"/internal/v1{path}", body=body)
            except Exception as error:  # noqa: BLE001: whatever it is, the next replica is asked
                last = error
                continue
            if answer.status < 500:
                return answer
            last = answer
        raise ConnectionError(f"no replica answers: {last}")

    def register(self):
        answer = self.call("POST", f"/nodes/{self.id}/register", {
            "boot_id": self.boot_id, "hostname": "host-a", "version": "0.1.0", "accelerator": "tcg", "vmm": "qemu 7.2",
            "kernels": [{"profile": "lean", "version": "6.1", "sha256": "0" * 64}], "capacity": self.capacity,
            "gateway_url": self.gateway_url})
        assert answer.status == 200, answer
        return self

    def observe(self, *reports, **more):
        answer = self.call("POST", f"/nodes/{self.id}/observed", {"sandboxes": list(reports), **more})
        assert answer.status == 200, answer
        return answer.json

    @staticmethod
    def running(item, ready=True):
        return {"id": item["id"], "generation": item["generation"], "state": "running", "ready": ready, "accelerator": "tcg",
                "kernel": "lean", "vmm": "qemu 7.2", "timings": {"restore_ms": 12.5}}

    @staticmethod
    def gone(item):
        return {"id": item["id"], "generation": item["generation"], "state": "deleted", "ready": False}

    @staticmethod
    def failed(item, code="vmm_failed", message="it broke"):
        return {"id": item["id"], "generation": item["generation"], "state": "failed", "ready": False,
                "error": {"code": code, "message": message}}

    @staticmethod
    def says(item, state, ready=False, **more):
        return {"id": item["id"], "generation": item["generation"], "state": state, "ready": ready, **more}

    @staticmethod
    def snapshot_of(item, state="ready", **more):
        done = {"memory_bytes": 1 << 20, "disk_bytes": 4096, "exclusive_bytes": 8192, "stall_us": 3000}
        if item["snapshot"]["content"] == "disk":
            done["memory_bytes"] = 0
        return {"id": item["snapshot"]["id"], "state": state, **(done if state == "ready" else {}), **more}

    def obey(self, item):
        """Everything that is asked for comes true at once."""
        if item["desired"] == "deleted":
            return [self.gone(item)]
        more = {"snapshot": self.snapshot_of(item)} if item["snapshot"] else {}
        if item["observed"] in ("creating", "waking"):
            if item["start"] and item["start"]["snapshot_id"] not in self.snapshots:
                return []
            boots = item["start"] and item["start"]["content"] == "disk"
            return [{**self.running(item), "start_kind": "boot" if boots else "warm"}]
        if item["observed"] in ("pausing", "suspending") or more:
            if more:
                self.snapshots.add(item["snapshot"]["id"])
            return [self.says(item, item["desired"], item["desired"] == "running", **more)]
        return []

    def poll(self, wait=10):
        answer = self.call("GET", f"/nodes/{self.id}/desired?since={self.revision}&wait={wait}")
        if answer.status == 404:
            self.register()
            return
        assert answer.status == 200, answer
        seen = time.monotonic()
        body = answer.json
        with self.lock:
            self.revision = body["revision"]
            self.desired = {s["id"]: s for s in body["sandboxes"]}
            for sandbox_id in self.desired:
                self.first_seen.setdefault(sandbox_id, seen)
            self.gone_list, self.pools = body["snapshots_gone"], body["pools"]
        reports = [r for item in body["sandboxes"] for r in self.reaction(item)]
        removed = body["snapshots_gone"] if self.removes_snapshots else []
        if reports or removed:
            self.snapshots -= set(removed)
            answer = self.observe(*reports, **({"snapshots_removed": removed} if removed else {}))
            self.unknown += answer["unknown"]
            self.settled += answer["settled"]

    def _run(self):
        while not self._stop.is_set():
            try:
                self.poll(wait=2)
            except Exception:  # noqa: BLE001: replicas come and go in these tests
                self._stop.wait(0.1)

    def start(self):
        self.register()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def stop(self):
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=15)
            if self._thread.is_alive():
                frame = sys._current_frames()[self._thread.ident]
                raise AssertionError("the node's thread hangs:\n" + "".join(traceback.format_stack(frame)))
