#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ten minutes of random operations on several sandboxes at once while ours is killed at random: daemons, database, space-vm, VMMs, steps
of the broker. Every sandbox's file says what was acknowledged last; afterwards it must be there, every state one of the table, and the
host as it was. `soak_lost` and `soak_left` are to be 0. SPACE_SOAK_SEED repeats a run's choices."""

import os
import random
import signal
import sys
import threading
import time

from report import Report, arguments, finish

from lib import benching as b
from lib import guest, hostdiff
from lib.system import System

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fault"))
from points import named_points  # noqa: E402

SETTLED = ("running", "paused", "suspended", "failed", "deleted")


class Faults(threading.Thread):
    def __init__(self, system, rng):
        super().__init__(daemon=True)
        self.system, self.rng, self.over, self.made = system, rng, threading.Event(), {}

    def victims(self):
        low = int(self.system.settings["uid_base"])
        found = []
        for p in os.listdir("/proc"):
            try:
                if p.isdigit() and low + 64 <= os.stat("/proc/" + p).st_uid < low + 8192:
                    found.append((open("/proc/%s/comm" % p).read().strip(), int(p)))
            except OSError:
                pass
        return found

    def one(self):
        kind = self.rng.choice(["daemon", "daemon", "vm", "point", "point", "point"])
        if kind == "daemon":
            what = self.rng.choice(["broker", "node", "control", "gateway", "postgres", "supervisor"])
            self.system.kill(what)
            if what == "supervisor":
                time.sleep(0.3)
                self.system.cli("up", check=False)
        elif kind == "vm":
            what, pid = self.rng.choice(self.victims() or [("nobody", 0)])
            if pid:
                os.kill(pid, signal.SIGKILL)
        else:
            point, action = self.rng.choice(named_points()), self.rng.choice(["error", "enospc", "kill", "kill_broker", "sleep=300"])
            if action == "kill_broker" and point.startswith(("vm.", "stub.")):
                action = "kill"
            self.system.faults.arm(point, action)
            what = "step"
        self.made[what] = self.made.get(what, 0) + 1

    def run(self):
        while not self.over.wait(self.rng.uniform(2, 6)):
            try:
                self.one()
            except (OSError, ValueError, IndexError):
                pass
        self.system.faults.disarm()


class Client(threading.Thread):
    """Owns one sandbox at a time and knows what was acknowledged of it."""

    def __init__(self, number, system, rng, until):
        super().__init__(daemon=True)
        self.number, self.system, self.api, self.rng, self.until = number, system, system.api, rng, until
        self.sid, self.operations, self.lost, self.codes, self.wrong = None, 0, [], {}, []
        self.written = 0   # in the guest, seen by a read
        self.durable = 0   # in a snapshot that was acknowledged
        self.children = []

    def patient(self, method, path, body=None):
        key = "soak-%d-%d-%d" % (os.getpid(), self.number, self.operations)
        while True:
            try:
                a = self.api.call(method, path, body, key=key, timeout=60)
                if a.status < 500 and a.status != 429:
                    return a
                self.codes[a.json["code"]] = self.codes.get(a.json["code"], 0) + 1
            except (OSError, ValueError, AssertionError):
                pass
            time.sleep(0.3)

    def get(self, path):
        return self.patient("GET", path)

    def final(self, op_id):
        end = time.monotonic() + 320
        while True:
            op = self.get("/v1/operations/%s?wait=10" % op_id).json
            if op["state"] in ("succeeded", "failed"):
                if op["state"] == "failed":
                    self.codes[op["error"]["code"]] = self.codes.get(op["error"]["code"], 0) + 1
                return op
            if time.monotonic() > end:
                self.wrong.append("operation %s %s does not end" % (op_id, op["kind"]))
                return op

    def settled(self, sid):
        end = time.monotonic() + 120
        while True:
            s = self.get("/v1/sandboxes/" + sid).json
            if s["state"] in SETTLED:
                return s
            if time.monotonic() > end:
                self.wrong.append("%s stays %s" % (sid, s["state"]))
                return s
            time.sleep(0.05)

    def operate(self, verb, body=None):
        self.operations += 1
        a = self.patient("POST", "/v1/sandboxes/%s/%s" % (self.sid, verb), body)
        if a.status != 202:
            self.codes[a.json["code"]] = self.codes.get(a.json["code"], 0) + 1
            return None
        return self.final(a.json["operation_id"])

    def inside(self, script):
        """Output of a command, None when it could not be run or followed to its end."""
        for _ in range(8):
            try:
                r = self.api.run(self.sid, ["sh", "-c", script], timeout=30)
                if r.code == 0 and not r.error:
                    return r.stdout.decode()
            except (OSError, AssertionError, ValueError):
                pass
            if self.get("/v1/sandboxes/" + self.sid).json["state"] not in ("running", "waking"):
                return None
            time.sleep(0.3)
        return None

    def fresh(self):
        self.operations += 1
        a = self.patient("POST", "/v1/sandboxes", b.CREATE)
        if a.status != 202:
            time.sleep(1)
            return
        self.sid, self.written, self.durable = a.json["sandbox"]["id"], 0, 0
        if self.final(a.json["operation_id"])["state"] != "succeeded":
            self.drop()

    def drop(self):
        sid, self.sid = self.sid, None
        for x in [sid] + self.children:
            self.operations += 1
            a = self.patient("DELETE", "/v1/sandboxes/" + x)
            if a.status == 202:
                self.final(a.json["operation_id"])
        self.children = []

    def check(self, at_least):
        """What the file in the guest says; at_least was acknowledged."""
        seen = self.inside("cat /home/user/n 2>/dev/null || echo 0")
        if seen is None:
            return
        if int(seen) < at_least:
            self.lost.append("%s holds %s, %d was acknowledged" % (self.sid, seen.strip(), at_least))
        self.written = int(seen)

    def step(self):
        state = self.settled(self.sid)["state"]
        if state == "deleted":
            self.wrong.append("%s was deleted by nobody" % self.sid)
            self.sid = None
        elif state == "failed":
            if self.durable == 0:
                self.drop()
                return
            op = self.operate("wake")
            if op and op["state"] == "succeeded":
                self.check(self.durable)
        elif state in ("paused", "suspended"):
            op = self.operate("wake") if self.rng.random() < 0.8 else self.operate("suspend")
            if op and op["state"] == "succeeded" and op["kind"] == "wake":
                self.check(self.written if state == "paused" and self.settled(self.sid)["state"] == "running" else self.durable)
        else:
            self.running_step()

    def running_step(self):
        what = self.rng.choice(["write", "write", "pause", "suspend", "snapshot", "snapshot", "fork", "rollback", "delete"])
        if what == "write":
            n = self.written + 1
            if self.inside("echo %d > /home/user/n && sync && cat /home/user/n" % n) is not None:
                self.written = n
        elif what in ("suspend", "snapshot"):
            known = self.written
            op = self.operate(what, {} if what == "snapshot" else None)
            if op and op["state"] == "succeeded":
                self.durable = max(self.durable, known)
        elif what == "pause":
            self.operate("pause")
        elif what == "fork":
            op = self.operate("fork", {"count": 2})
            self.children += [c["sandbox_id"] for c in (op or {}).get("children") or []]
            if len(self.children) > 4:
                self.drop()
        elif what == "rollback":
            ready = [s for s in self.get("/v1/snapshots?sandbox_id=%s&kind=snapshot" % self.sid).json["items"] if s["state"] == "ready"]
            if ready:
                op = self.operate("rollback", {"snapshot_id": ready[0]["id"]})
                if op and op["state"] == "succeeded":
                    self.written = 0
                    self.durable = 0  # the line begins anew from what that snapshot held
                    self.check(0)
        elif self.rng.random() < 0.5:
            self.drop()

    def run(self):
        while time.monotonic() < self.until:
            try:
                if self.sid is None:
                    self.fresh()
                else:
                    self.step()
            except AssertionError as e:
                self.wrong.append(str(e)[:300])


def clean(system):
    api = system.api
    for s in api.ok("GET", "/v1/sandboxes?limit=200")["items"]:
        api.delete(s["id"])
    for _ in range(3):
        api.delete_snapshots()
        time.sleep(0.5)


def main():
    args = arguments(__doc__, minutes={"type": float, "default": 10}, clients={"type": int, "default": 4})
    report = Report("soak")
    seed = int(os.environ.get("SPACE_SOAK_SEED", time.time()))
    report.conditions.update({"run": "%g minutes, %d clients, seed %d" % (args.minutes, args.clients, seed)})
    system = System(faults=True, max_sandboxes=64)
    look = lambda: hostdiff.snapshot(str(system.root), int(system.settings["uid_base"]), standing_by=True)  # noqa: E731
    try:
        system.up()
        system.seed()
        b.raise_quotas(system.api)
        system.api.delete(system.api.create())
        before = look()
        until = time.monotonic() + args.minutes * 60
        faults = Faults(system, random.Random(seed))
        clients = [Client(i, system, random.Random(seed + i + 1), until) for i in range(args.clients)]
        for t in [faults] + clients:
            t.start()
        for t in clients:
            t.join()
        faults.over.set()
        faults.join()
        system.cli("up")
        system.wait_ready()
        clean(system)
        end = time.monotonic() + 120
        while (left := hostdiff.diff(before, look())) and time.monotonic() < end:
            system.api.delete_snapshots()
            time.sleep(1)
        codes = {}
        for c in clients:
            for k, v in c.codes.items():
                codes[k] = codes.get(k, 0) + v
        wrong = [w for c in clients for w in c.wrong]
        lost = [x for c in clients for x in c.lost]
        report.conditions.update({"faults": str(faults.made), "refusals and failures": str(codes)})
        report.add("soak_operations", [sum(c.operations for c in clients)], unit="operations")
        report.add("soak_lost", [len(lost)], unit="acknowledgements", budget={"max": 0})
        report.add("soak_wrong", [len(wrong)], unit="states", budget={"max": 0})
        report.add("soak_left", [sum(map(len, left.values()))], unit="things", budget={"max": 0})
        print("lost: %s\nwrong: %s\nleft: %s" % (lost[:10], wrong[:10], left))
        assert guest.read(system.api, system.api.create(), "/etc/hostname") is not None
    finally:
        system.remove()
    finish(report, args)


if __name__ == "__main__":
    main()
