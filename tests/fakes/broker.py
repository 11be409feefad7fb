# SPDX-License-Identifier: Apache-2.0
"""A fake broker (run/broker.sock) with fake VMs (control.sock), as spec/node-protocol.md §2 and §3 have them. It is as strict as the
real one: a request that is not in the table, or has unknown keys, closes the connection."""

import json
import pathlib
import shutil
import socket
import threading
import time

REQUESTS = {
    "hello": {"version"}, "vm_start": {"id", "mode", "template", "snapshot", "kernel", "accelerator", "vcpus", "memory_mib", "config"},
    "vm_stop": {"id"}, "vm_list": {"after"}, "snapshot_seal": {"id", "snapshot", "manifest"}, "snapshot_remove": {"snapshot"},
    "template_list": set(), "template_remove": {"template"}, "stat": set(), "sweep": {"known"}}
CONFIG = {"acpi", "tsc_khz", "qemu_version", "cpu_model", "generation", "identity", "output_window", "session_retention_ms", "probe",
          "start", "deadline_ms"}


class Refusal(Exception):
    """A broker's error reply: code, field, text."""


class FakeVm:
    """A space-vm: says its status to every client of control.sock."""

    def __init__(self, broker, request):
        self.broker = broker
        self.id = request["id"]
        self.request = request
        self.mode = request["mode"]
        self.state = "starting"
        self.error = None
        self.clients = []
        self.alive = True
        self.ready = None
        self.answers = True
        self.lock = threading.Lock()
        self.directory = broker.state_dir / "run" / "vm" / self.id
        self.directory.mkdir(parents=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.directory / "control.sock"))
        self.listener.listen(8)
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self.live, daemon=True).start()

    def live(self):
        script = self.broker.scripts.get(self.id) or self.broker.scripts.get(self.mode)
        if script:
            script(self)
        elif self.mode == "clone":
            self.set("running")
        else:
            time.sleep(self.broker.boot_time)
            self.set("saved")

    def status(self):
        status = {"event": "status", "id": self.id, "mode": self.mode, "state": self.state,
                  "ready": self.state == "running" if self.ready is None else self.ready,
                  "generation": self.request["config"]["generation"], "vmm_pid": 4242,
                  "accelerator": self.request["accelerator"], "kernel": self.request["kernel"],
                  "timings": {"load_ms": 12.5, "total_ms": 80}}
        if self.error:
            status["error"] = {"code": self.error[0], "message": self.error[1]}
        return status

    def set(self, state, error=None, ready=None):
        with self.lock:
            self.state, self.error, self.ready = state, error, ready
            for client in self.clients:
                self.send(client, self.status())

    def say(self, message):
        with self.lock:
            for client in self.clients:
                self.send(client, message)

    @staticmethod
    def send(client, message):
        try:
            client.send(message if isinstance(message, bytes) else json.dumps(message).encode())
        except OSError:
            pass

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                if not self.alive:
                    client.close()
                    return
                self.clients.append(client)
                self.send(client, self.status())
            threading.Thread(target=self._requests, args=(client,), daemon=True).start()

    def _requests(self, client):
        try:
            while data := client.recv(65536):
                assert json.loads(data) == {"request": "ping"}
                answer = {"agent": {"uptime_ns": 1}} if self.answers else {"error": {"code": "guest_silent", "message": "no PONG"}}
                self.send(client, {"event": "pong", **answer})
        except OSError:
            pass

    def hang_up(self):
        """Drops every client, as a confused space-vm might, but goes on."""
        with self.lock:
            clients, self.clients = self.clients, []
        for client in clients:
            client.shutdown(socket.SHUT_RDWR)
            client.close()

    def die(self):
        """SIGKILL: the sockets close, the files stay."""
        self.alive = False
        if self.listener.fileno() >= 0:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        self.hang_up()

    def remove(self):
        self.die()
        shutil.rmtree(self.directory, ignore_errors=True)


class FakeBroker:
    def __init__(self, state_dir):
        self.state_dir = pathlib.Path(state_dir)
        self.vms = {}
        self.snapshots = set()
        self.templates = {"d" * 64}
        self.requests = []      # (request, fields), in order
        self.problems = []      # why a connection was closed
        self.fail = {}          # request → function(fields) that may raise Refusal
        self.scripts = {}       # id or mode → function(vm)
        self.slow = {}          # request → seconds
        self.swept = []
        self.accelerators = ["tcg"]
        self.boot_time = 0.02
        self.page = 100
        self.peak = {"clone": 0, "template_boot": 0}
        self.lock = threading.Condition()
        self.listener = None
        self.connections = []
        self.start()

    def start(self):
        path = self.state_dir / "run" / "broker.sock"
        path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(8)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def stop(self):
        """The broker dies; VMs live on."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
        self.connections.clear()

    def close(self):
        self.stop()
        for vm in list(self.vms.values()):
            vm.remove()

    def _accept(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        greeted = False
        try:
            while data := connection.recv(65536):
                request = json.loads(data)
                name, seq = request.pop("request"), request.pop("seq", None)
                if len(data) > 32768 or name not in REQUESTS or set(request) - REQUESTS[name] or (name == "hello") == greeted:
                    self.problems.append((name, request))
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                greeted = True
                threading.Thread(target=self._answer, args=(connection, name, request, seq), daemon=True).start()
        except (OSError, ValueError):
            pass

    def _answer(self, connection, name, fields, seq):
        with self.lock:
            self.requests.append((name, fields))
            self.lock.notify_all()
        time.sleep(self.slow.get(name, 0))
        try:
            with self.lock:
                if name in self.fail:
                    self.fail[name](fields)
                reply = {"ok": True, **(getattr(self, "do_" + name)(fields) or {})}
                self.lock.notify_all()
        except Refusal as refusal:
            code, field, text = refusal.args
            reply = {"ok": False, "error": {"code": code, "errno": 0, "op": name, "field": field, "text": text}}
        if seq is not None:
            reply["seq"] = seq
        try:
            connection.send(json.dumps(reply).encode())
        except OSError:
            pass

    # ---- requests

    def do_hello(self, fields):
        assert fields == {"version": 1}
        return {"version": 1, "accelerators": self.accelerators, "cgroup": "v1"}

    def do_vm_start(self, fields):
        if set(fields["config"]) - CONFIG or len(json.dumps(fields["config"])) > 16384:
            raise Refusal("invalid", "config", "unknown keys or too long")
        if fields["template"] not in self.templates:
            raise Refusal("not_found", "", "there is no template")
        if fields["mode"] == "clone" and fields["snapshot"] not in self.snapshots:
            raise Refusal("not_found", "", "there is no snapshot")
        if fields["id"] in self.vms:
            raise Refusal("conflict", "id", "there is such a VM")
        self.vms[fields["id"]] = FakeVm(self, fields)
        mode = fields["mode"]
        running = [vm for vm in self.vms.values() if vm.mode == mode and vm.state not in ("running", "failed", "saved")]
        self.peak[mode] = max(self.peak[mode], len(running))
        return {"pid": 77, "start_time": 1, "uid": 720064}

    def do_vm_stop(self, fields):
        vm = self.vms.pop(fields["id"], None)
        if vm:
            vm.remove()
        return {"existed": vm is not None}

    def do_vm_list(self, fields):
        ids = sorted(i for i in self.vms if i > fields.get("after", ""))
        vms = [{"id": i, "mode": self.vms[i].mode, "pid": 77, "start_time": 1, "alive": self.vms[i].alive, "uid": 720064,
                "created_realtime_ns": 1} for i in ids[:self.page]]
        return {"vms": vms, "more": len(ids) > self.page}

    def do_snapshot_seal(self, fields):
        vm = self.vms.get(fields["id"])
        if not vm or vm.state != "saved":
            raise Refusal("conflict", "id", "not a stopped template boot")
        self.snapshots.add(fields["snapshot"])

    def do_snapshot_remove(self, fields):
        if any(vm.request.get("snapshot") == fields["snapshot"] for vm in self.vms.values()):
            raise Refusal("conflict", "snapshot", "in use")
        self.snapshots.discard(fields["snapshot"])

    def do_template_list(self, _):
        return {"templates": sorted(self.templates), "snapshots": sorted(self.snapshots)}

    def do_stat(self, _):
        return {"store_free_mib": 100000, "store_total_mib": 200000, "memory_available_mib": 10000}

    def do_sweep(self, fields):
        self.swept.append(fields["known"])
        return {"removed": []}

    # ---- looking

    def count(self, name, **fields):
        return sum(1 for request, given in self.requests
                   if request == name and all(given.get(k) == v for k, v in fields.items()))

    def wait(self, condition, timeout=10):
        with self.lock:
            assert self.lock.wait_for(condition, timeout), self.requests[-5:]
