# SPDX-License-Identifier: Apache-2.0
"""A fake broker (run/broker.sock) with fake VMs (control.sock), as spec/node-protocol.md §2 and §3 have them. It is as strict as the
real one: a request that is not in the table, or has unknown keys, closes the connection."""

import json
import pathlib
import shutil
import socket
import threading
import time

from fakes import PATIENCE

REQUESTS = {
    "hello": {"version"}, "vm_start": {"id", "mode", "template", "snapshot", "kernel", "accelerator", "vcpus", "memory_mib", "config"},
    "vm_load": {"id", "bind", "template", "snapshot", "config"}, "vm_bind": {"id", "sandbox"},
    "vm_snapshot": {"id", "snapshot", "then", "content", "manifest"}, "snapshot_copy": {"snapshot", "to", "manifest"},
    "snapshot_stat": {"snapshot"}, "snapshot_list": {"after"},
    "vm_stop": {"id"}, "vm_list": {"after"}, "snapshot_seal": {"id", "snapshot", "manifest"}, "snapshot_remove": {"snapshot"},
    "template_list": set(), "template_remove": {"template"}, "stat": set(), "sweep": {"known"},
    "engine_list": set(), "engine_remove": {"engine"}}
CONFIG = {"acpi", "tsc_khz", "cpu_model", "generation", "identity", "output_window", "session_retention_ms", "probe",
          "start", "deadline_ms"}
LIFECYCLE = {"pause": {"request", "seq"}, "resume": {"request", "seq"},
             "identify": {"request", "seq", "id", "generation", "identity", "session_retention_ms"}}


class Refusal(Exception):
    """A broker's error reply: code, field, text."""


class FakeVm:
    """A space-vm: says its status to every client of control.sock. `id` is where it lies, `called` what it calls itself."""

    def __init__(self, broker, request):
        self.broker = broker
        self.id = self.called = request["id"]
        self.request = request
        self.mode = request["mode"]
        self.state = "starting"
        self.generation = request["config"]["generation"]
        self.identity = request["config"]["identity"]
        self.error = None
        self.snapshot = None
        self.streams, self.active = 0, 0
        self.clients = []
        self.asked = []  # lifecycle requests, in order
        self.alive = True
        self.ready = None
        self.answers = True
        self.lock = threading.RLock()
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
        elif self.mode == "boot":
            self.set("booting")
            self.set("running")
        elif self.mode == "clone":
            self.set("running")
        elif self.mode == "blank":
            self.set("blank")
        else:
            time.sleep(self.broker.boot_time)
            self.set("saved")

    def status(self):
        status = {"event": "status", "id": self.called, "mode": self.mode, "state": self.state,
                  "ready": self.state == "running" if self.ready is None else self.ready,
                  "generation": self.generation, "vmm_pid": 4242,
                  "accelerator": self.request["accelerator"], "kernel": self.request["kernel"], "vmm": "qemu 7.2.22",
                  "streams": self.streams, "active_realtime_ns": self.active,
                  "timings": {"load_ms": 12.5, "total_ms": 80}}
        if self.snapshot:
            status["snapshot"] = self.snapshot
        if self.error:
            status["error"] = {"code": self.error[0], "message": self.error[1]}
        return status

    def set(self, state, error=None, ready=None):
        with self.lock:
            if state == "running":
                self.snapshot = None
            self.state, self.error, self.ready = state, error, ready
            for client in self.clients:
                self.send(client, self.status())

    # ---- what the broker does to it

    def load(self, fields):
        """A blank gets its memory; it runs, or is warm when it is bound to nobody."""
        self.request = {**self.request, **fields}
        self.generation, self.identity = fields["config"]["generation"], fields["config"]["identity"]
        if "bind" in fields:
            self.called = fields["bind"]

        def restore():
            script = self.broker.scripts.get("load")
            if script:
                script(self)
            else:
                self.set("restoring")
                self.set("running" if "bind" in fields else "warm")
        threading.Thread(target=restore, daemon=True).start()

    def move(self, new_id):
        """The directory has another name; open sockets go with it."""
        target = self.directory.parent / new_id
        self.directory.rename(target)
        self.directory, self.id = target, new_id

    # ---- what the node asks

    def lifecycle(self, client, request):
        """pause, resume, identify; a hook may refuse, be slow, or let it die."""
        name, seq = request["request"], request["seq"]
        self.asked.append(name)
        error = None
        hook = self.broker.hooks.get(name)
        if hook:
            error = hook(self)
        if error == "silent":
            return
        if not error:
            with self.lock:
                error = self.obey(name, request)
        answer = {"event": "done", "seq": seq, "ok": not error}
        if error:
            answer["error"] = {"code": error, "message": "told to"}
        self.send(client, answer)

    def obey(self, name, request):
        if name == "pause" and self.state in ("running", "paused"):
            if self.state == "running":
                self.set("pausing")
                self.set("paused")
            return None
        if name == "resume" and self.state in ("running", "paused"):
            if self.state == "paused":
                self.set("running")
            return None
        if name == "identify" and self.state == "warm":
            self.called, self.generation, self.identity = request["id"], request["generation"], request["identity"]
            self.set("identifying")
            self.set("running")
            return None
        return "invalid_state"

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
                request = json.loads(data)
                if request == {"request": "ping"}:
                    answer = {"agent": {"uptime_ns": 1}} if self.answers else {"error": {"code": "guest_silent", "message": "no PONG"}}
                    self.send(client, {"event": "pong", **answer})
                else:
                    assert set(request) <= LIFECYCLE[request["request"]], request
                    threading.Thread(target=self.lifecycle, args=(client, request), daemon=True).start()
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
        self.bound = {}         # sandbox → the spare's VM it got
        self.requests = []      # (request, fields), in order
        self.working = 0        # requests that are not answered yet
        self.problems = []      # why a connection was closed
        self.fail = {}          # request → function(fields) that may raise Refusal
        self.scripts = {}       # id or mode → function(vm)
        self.slow = {}          # request → seconds
        self.late = {}          # request → seconds between the deed and its answer
        self.hooks = {}         # pause, resume, identify → function(vm) that may return an error code, or "silent"
        self.swept = []
        self.accelerators = ["tcg"]
        self.engine = "e" * 64
        self.engines = {}  # others: how many snapshots need each
        self.boot_time = 0.02
        self.page = 100
        self.disks = set()      # of the snapshots: those of the disk alone
        self.peak = {"clone": 0, "template_boot": 0, "blank": 0, "boot": 0}
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
                if len(data) > 49152 or name not in REQUESTS or set(request) - REQUESTS[name] or (name == "hello") == greeted:
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
            self.working += 1
            self.lock.notify_all()
        try:
            self._work(connection, name, fields, seq)
        finally:
            with self.lock:
                self.working -= 1
                self.lock.notify_all()

    def _work(self, connection, name, fields, seq):
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
        time.sleep(self.late.get(name, 0))
        try:
            connection.send(json.dumps(reply).encode())
        except OSError:
            pass

    # ---- requests

    def do_hello(self, fields):
        assert fields == {"version": 1}
        return {"version": 1, "accelerators": self.accelerators, "cgroup": "v1", "engine": self.engine}

    def do_engine_list(self, fields):
        return {"engines": [{"engine": e, "qemu_version": "7.2.22", "bytes": 50000, "snapshots": n, "vms": 0, "current": e == self.engine}
                            for e, n in {self.engine: 0, **self.engines}.items()]}

    def do_engine_remove(self, fields):
        if fields["engine"] == self.engine or self.engines.get(fields["engine"]):
            raise Refusal("conflict", "", "in use")
        self.engines.pop(fields["engine"], None)

    def do_vm_start(self, fields):
        self.check_config(fields)
        mode, prefix = fields["mode"], {"clone": "sbx_", "template_boot": "tpb_", "blank": "spr_", "boot": "sbx_"}
        assert fields["id"].startswith(prefix[mode]) and ("template" in fields) == (mode != "blank"), fields
        assert ("snapshot" in fields) == (mode in ("clone", "boot")), fields
        if mode != "blank" and fields["template"] not in self.templates:
            raise Refusal("not_found", "template", "there is no template")
        if "snapshot" in fields and fields["snapshot"] not in self.snapshots:
            raise Refusal("not_found", "snapshot", "there is no snapshot")
        if "snapshot" in fields and (fields["snapshot"] in self.disks) != (mode == "boot"):
            raise Refusal("invalid", "snapshot", "it holds something else")
        if fields["id"] in self.vms:
            raise Refusal("conflict", "id", "there is such a VM")
        self.vms[fields["id"]] = FakeVm(self, fields)
        running = [vm for vm in self.vms.values() if vm.mode == mode and vm.state not in ("running", "failed", "saved", "blank")]
        self.peak[mode] = max(self.peak[mode], len(running))
        return {"pid": 77, "start_time": 1, "uid": 720064}

    @staticmethod
    def check_config(fields):
        if set(fields["config"]) - CONFIG or len(json.dumps(fields["config"])) > 32768:
            raise Refusal("invalid", "config", "unknown keys or too long")

    def spare(self, fields, state):
        vm = self.vms.get(fields["id"])
        if not vm or not vm.alive:
            raise Refusal("not_found", "id", "there is no such spare")
        if vm.state != state:
            raise Refusal("conflict", "id", f"it is {vm.state}")
        return vm

    def rename(self, vm, new_id):
        del self.vms[vm.id]
        vm.move(new_id)
        self.vms[new_id] = vm
        self.bound[new_id] = vm

    def do_vm_load(self, fields):
        self.check_config(fields)
        vm = self.spare(fields, "blank")
        if fields["snapshot"] not in self.snapshots - self.disks:
            vm.state = "spoiled"
            raise Refusal("not_found", "snapshot", "there is no snapshot")
        if "bind" in fields:
            if fields["bind"] in self.vms:
                raise Refusal("conflict", "bind", "the sandbox has a VM")
            self.rename(vm, fields["bind"])
        vm.load(fields)
        return {"uid": 720065, "timings_us": {}}

    def do_vm_bind(self, fields):
        bound = self.vms.get(fields["sandbox"])
        if bound and bound.request["id"] == fields["id"]:
            return None
        if bound:
            raise Refusal("conflict", "sandbox", "the sandbox has a VM")
        vm = self.vms.get(fields["id"])
        if not vm or not vm.alive:
            raise Refusal("not_found", "id", "there is no such spare")
        assert "snapshot" in vm.request, "it was not loaded"
        self.rename(vm, fields["sandbox"])
        return None

    def do_vm_snapshot(self, fields):
        vm, key = self.vms.get(fields["id"]), fields["snapshot"]
        assert key.startswith("snp_") and fields["then"] in ("resume", "stop") and fields["manifest"]
        if key in self.snapshots:
            return {"existed": True, **self.sizes()}
        if not vm or not vm.alive:
            raise Refusal("not_found", "id", "there is no VM")
        disk = fields.get("content", "full") == "disk"
        assert fields.get("content", "full") in ("full", "disk") and not (disk and fields["then"] == "stop"), fields
        if vm.state not in (("running",) if disk else ("running", "paused")):
            raise Refusal("conflict", "id", f"it is {vm.state}")
        with vm.lock:
            if fields["then"] == "stop":
                vm.set("paused")
                vm.snapshot = key
                vm.set("paused")
        self.snapshots.add(key)
        if disk:
            self.disks.add(key)
            return {"existed": False, "pages": 0, "stall_us": 9000, "timings_us": {}, **self.sizes(), "memory_bytes": 0}
        return {"existed": False, "pages": 200, "stall_us": 9000, "timings_us": {"copy": 1500}, **self.sizes()}

    @staticmethod
    def sizes():
        return {"memory_bytes": 4096000, "disk_bytes": 8192, "exclusive_bytes": 12288}

    def do_snapshot_copy(self, fields):
        if fields["snapshot"] not in self.snapshots:
            raise Refusal("not_found", "snapshot", "there is no snapshot")
        existed = fields["to"] in self.snapshots
        self.snapshots.add(fields["to"])
        return {"existed": existed, **self.sizes()}

    def do_snapshot_stat(self, fields):
        if fields["snapshot"] not in self.snapshots:
            raise Refusal("not_found", "snapshot", "there is no snapshot")
        return {**self.sizes(), "shared_bytes": 0}

    def do_snapshot_list(self, fields):
        keys = sorted(k for k in self.snapshots if k.startswith("snp_") and k > fields.get("after", ""))
        return {"snapshots": [{"snapshot": k, "exclusive_bytes": 1000} for k in keys[:self.page]], "more": len(keys) > self.page}

    def do_vm_stop(self, fields):
        vm = self.vms.pop(fields["id"], None)
        if vm:
            vm.remove()
        return {"existed": vm is not None}

    def do_vm_list(self, fields):
        ids = sorted(i for i in self.vms if i > fields.get("after", ""))
        vms = [{"id": i, "mode": self.vms[i].mode, "pid": 77, "start_time": 1, "alive": self.vms[i].alive, "uid": 720064,
                "snapshot": self.vms[i].request.get("snapshot"), "phase": "kept", "created_realtime_ns": 1} for i in ids[:self.page]]
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
        return {"templates": sorted(self.templates), "snapshots": sorted(k for k in self.snapshots if not k.startswith("snp_"))}

    def do_stat(self, _):
        return {"store_free_mib": 100000, "store_total_mib": 200000, "memory_available_mib": 10000}

    def do_sweep(self, fields):
        self.swept.append(fields["known"])
        return {"removed": []}

    # ---- looking

    def count(self, name, **fields):
        return sum(1 for request, given in self.requests
                   if request == name and all(given.get(k) == v for k, v in fields.items()))

    def quiet(self):
        """Until all that was asked for is done and answered, by a broker that died meanwhile too."""
        self.wait(lambda: not self.working)

    def wait(self, condition, timeout=PATIENCE):
        """What a VM does by itself notifies nobody: looked at again and again."""
        end = time.monotonic() + timeout
        with self.lock:
            while not condition():
                assert time.monotonic() < end, self.requests[-5:]
                self.lock.wait(0.02)
