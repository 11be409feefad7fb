# SPDX-License-Identifier: Apache-2.0
"""Promise: whatever is cut off at whatever step of whatever operation (the step fails, the disk is full, the job, the broker, the node,
control, the database, space-vm or the VMM is killed), afterwards the sandbox is in a state the table allows, what was acknowledged is
there, no half-made snapshot is loaded, and the host holds nothing that it did not hold before.

How much of it runs is SPACE_FAULT_CELLS: `sample` (every operation, a few cells each), `points` (every fault point with kill and with a
full disk, each in one operation that passes it), `all` (every operation x point x action)."""

import os
import random
import signal
import threading
import time
import uuid

import pytest

from lib import guest, hostdiff
from lib.sizes import FULL, say
from lib.system import ROOT, System
from points import named_points

SETTLED = ("running", "paused", "suspended", "failed", "deleted")
FINAL = ("succeeded", "failed")
INSIDE = ("error", "enospc", "kill", "kill_broker")           # what the point itself does
OUTSIDE = ("node", "control", "postgres", "space-vm", "vmm")  # who is killed while the step stalls
JAILED = ("vm.", "stub.")                                     # no child in a jail can reach the broker
CELLS = os.environ.get("SPACE_FAULT_CELLS") or ("all" if FULL else "sample")
SAMPLE = 2                                                    # cells of each operation in a sample
POOLED_MIB = 300                                              # a size of its own, so that the pool serves what asks for it only


class Rig:
    """A system with fault points, and a sandbox whose acknowledged content is known."""

    def __init__(self):
        self.system = System(faults=True, max_sandboxes=64)
        self.faults, self.sid, self.number, self.killed = self.system.faults, None, 0, None
        self.system.up()
        self.system.seed()
        self.api = self.system.api
        self.api.ok = self.ok
        self.api.delete(self.api.create())
        self.before = self.look()

    def look(self):
        return hostdiff.snapshot(str(self.system.root), int(self.system.settings["uid_base"]), standing_by=True)

    def sandbox(self, state):
        """The sandbox in that state, with a base snapshot, and a file written just now."""
        api = self.api
        if self.sid is None or api.sandbox(self.sid)["state"] in ("failed", "deleted"):
            self.drop()
            self.sid = api.create()
            guest.write(api, self.sid, "/home/user/base", self.sid)
            self.base = api.take_snapshot(self.sid, "base")
            self.disk = api.operate(self.sid, "snapshot", {"content": "disk"})["snapshot_id"]
        now = api.sandbox(self.sid)["state"]
        if now != "running":
            api.wake(self.sid)
        self.number += 1
        guest.write(api, self.sid, "/home/user/fresh", str(self.number))
        if state == "pooled":
            self.pool()
        elif state == "paused":
            api.pause(self.sid)
        elif state == "suspended":
            api.suspend(self.sid)
        return self.sid

    def pool(self):
        """A machine of POOLED_MIB stands by."""
        want = {"template": "seed:latest", "resources": {"memory_mib": POOLED_MIB}, "size": 1}
        mine = [p for p in self.patient(lambda: self.api.call("GET", "/v1/pools")).json["items"] if p["resources"]["memory_mib"] == POOLED_MIB]
        pool = mine[0] if mine else self.api.ok("POST", "/v1/pools", want)
        end = time.monotonic() + 60
        while not any(n["warm"] for p in self.patient(lambda: self.api.call("GET", "/v1/pools")).json["items"] if p["id"] == pool["id"] for n in p["nodes"]):
            assert time.monotonic() < end, "no member came up\n" + self.system.logs()
            time.sleep(0.1)

    def drop(self):
        if self.sid:
            self.api.delete(self.sid)
            self.api.delete_snapshots(self.sid)
            self.sid = None

    def patient(self, fn, timeout=90):
        end = time.monotonic() + timeout
        while True:
            try:
                a = fn()
                if a.status < 500 and a.status != 429:
                    return a
            except OSError:
                pass
            assert time.monotonic() < end, "the API did not come back\n" + self.system.logs()
            time.sleep(0.1)

    def ok(self, method, path, body=None, **kw):
        """As every client should: a 503 is repeated with the same key."""
        kw.setdefault("key", str(uuid.uuid4()))
        a = self.patient(lambda: self.api.call(method, path, body, **kw))
        assert 200 <= a.status < 300, "%s %s: %r" % (method, path, a)
        return a.json

    def final(self, op_id):
        end = time.monotonic() + 150
        while True:
            op = self.patient(lambda: self.api.call("GET", "/v1/operations/%s?wait=10" % op_id)).json
            if op["state"] in FINAL:
                return op
            assert time.monotonic() < end, "%s is %s\n%s" % (op_id, op["state"], self.system.logs())

    def back(self, whom):
        """Who was killed is there again: another process, not one that was asked before it was dead."""
        if whom in ("node", "control", "postgres"):
            self.system.wait_restarted(whom, self.killed)
        self.system.wait_ready()
        if whom == "postgres":  # each connection of control's finds out by itself
            self.patient(lambda: self.api.call("POST", "/v1/sandboxes/%s/sessions" % self.sid, {"command": "true"}))

    def kill(self, whom):
        if whom in ("space-vm", "vmm"):
            try:
                pid = self.system.vm_pids(self.sid)[0 if whom == "space-vm" else 1]
            except (OSError, ValueError, KeyError):
                pid = None
            if pid:
                os.kill(pid, signal.SIGKILL)
            return bool(pid)
        self.killed = self.system.kill(whom)
        return True


# name: (state before, how it is asked for)
OPERATIONS = {
    "create": ("running", lambda r: ("POST", "/v1/sandboxes", {"template": "seed:latest", "resources": {"memory_mib": 256}})),
    "create from a pool": ("pooled", lambda r: ("POST", "/v1/sandboxes", {"template": "seed:latest", "resources": {"memory_mib": POOLED_MIB}})),
    "boot": ("running", lambda r: ("POST", "/v1/sandboxes", {"template": "seed:latest",
                                                             "resources": {"memory_mib": 256 + 4 * (1 + r.number % 200)}})),
    "pause": ("running", lambda r: ("POST", "/v1/sandboxes/%s/pause" % r.sid, None)),
    "snapshot": ("running", lambda r: ("POST", "/v1/sandboxes/%s/snapshot" % r.sid, {})),
    "snapshot of the disk": ("running", lambda r: ("POST", "/v1/sandboxes/%s/snapshot" % r.sid, {"content": "disk"})),
    "snapshot of a paused one": ("paused", lambda r: ("POST", "/v1/sandboxes/%s/snapshot" % r.sid, {})),
    "snapshot of a suspended one": ("suspended", lambda r: ("POST", "/v1/sandboxes/%s/snapshot" % r.sid, {})),
    "suspend": ("running", lambda r: ("POST", "/v1/sandboxes/%s/suspend" % r.sid, None)),
    "wake from paused": ("paused", lambda r: ("POST", "/v1/sandboxes/%s/wake" % r.sid, None)),
    "wake": ("suspended", lambda r: ("POST", "/v1/sandboxes/%s/wake" % r.sid, None)),
    "fork": ("running", lambda r: ("POST", "/v1/sandboxes/%s/fork" % r.sid, {"count": 2})),
    "rollback": ("running", lambda r: ("POST", "/v1/sandboxes/%s/rollback" % r.sid, {"snapshot_id": r.base})),
    "rollback to a disk": ("running", lambda r: ("POST", "/v1/sandboxes/%s/rollback" % r.sid, {"snapshot_id": r.disk})),
    "delete": ("running", lambda r: ("DELETE", "/v1/sandboxes/%s" % r.sid, None)),
}
CREATES = ("create", "create from a pool", "boot")
AIM = {"pause": "paused", "suspend": "suspended", "wake": "running", "wake from paused": "running", "rollback": "running", "rollback to a disk": "running",
       "snapshot": "running", "snapshot of the disk": "running",
       "fork": "running", "snapshot of a paused one": "paused", "snapshot of a suspended one": "suspended", "delete": "deleted"}


@pytest.fixture(scope="module")
def rig():
    r = Rig()
    try:
        yield r
    finally:
        r.system.remove()


def settled(rig, quiet=1.2):
    """The points passed until none was for a while: what is done behind an answer, spare machines made anew among it."""
    points, last = [], time.monotonic()
    while time.monotonic() - last < quiet:
        new = rig.faults.passed()
        points += new
        last = time.monotonic() if new else last
        time.sleep(0.05)
    return points


@pytest.fixture(scope="module")
def passed(rig):
    """operation -> (the points it passes, those passed behind its answer); from a run of each without faults."""
    found = {}
    for name, (state, request) in OPERATIONS.items():
        rig.sandbox(state)
        settled(rig)
        method, path, body = request(rig)
        a = rig.api.call(method, path, body)
        assert a.status == 202, (name, a)
        assert rig.final(a.json["operation_id"])["state"] == "succeeded"
        during = list(dict.fromkeys(rig.faults.passed()))
        behind = [p for p in dict.fromkeys(settled(rig)) if p not in during]
        found[name] = (during, behind)
        tidy(rig, name, a.json)
    return found


def tidy(rig, name, answer):
    """What an operation made beside the sandbox itself."""
    made = [c["sandbox_id"] for c in answer.get("children", [])]
    if name in CREATES:
        made.append(answer["sandbox"]["id"])
    for sid in made:
        a = rig.patient(lambda sid=sid: rig.api.call("DELETE", "/v1/sandboxes/" + sid))
        assert a.status == 202 and rig.final(a.json["operation_id"])["state"] == "succeeded"
    if rig.sid:
        for s in rig.api.snapshots(rig.sid):
            if s["id"] not in (rig.base, rig.disk) and s["state"] in ("ready", "failed"):
                rig.api.call("DELETE", "/v1/snapshots/" + s["id"])


def test_every_named_point_is_passed(passed):
    names = named_points()
    seen = {p for during, behind in passed.values() for p in during + behind}
    say("%d fault points, passed by: %s" % (len(names), {k: "%d + %d behind" % (len(v[0]), len(v[1])) for k, v in passed.items()}))
    assert len(names) >= 25
    # A step that takes more than an operation to come (memory in thousands of pieces) is driven by a test below the system.
    elsewhere = "".join(p.read_text() for p in (ROOT / "tests" / "broker").glob("test_*.py"))
    missing = [n for n in names if n not in seen and '"%s"' % n not in elsewhere and "%s:" % n not in elsewhere]
    assert not missing, missing


def check(rig, name, op, vm_killed, answer):
    """The sandbox after the fault."""
    api = rig.api
    if name == "delete":
        assert op["state"] == "succeeded", op
        assert api.wait_state(rig.sid, "deleted")
        rig.sid = None
        return
    sandbox = api.wait_state(rig.sid, *SETTLED, timeout=90)
    state = sandbox["state"]
    if op["state"] == "succeeded" and name in AIM:
        assert state == AIM[name] or (vm_killed and state == "failed"), (name, op, sandbox)
    elif op["state"] == "failed":
        assert op["error"]["code"], op
    assert state != "failed" or vm_killed or name.startswith("rollback") or "broken" in str(sandbox["error"]), (name, op, sandbox, rig.system.logs())
    for s in api.snapshots(rig.sid):
        assert s["state"] in ("ready", "failed", "deleting"), s
    if state != "running":
        woken = api.wake(rig.sid, good=False)
        assert woken["state"] == "succeeded", (name, op, woken, rig.system.logs())
    assert guest.read(api, rig.sid, "/home/user/base") == rig.sid
    lost_allowed = name.startswith("rollback") or (state == "failed" and name not in ("wake", "snapshot of a suspended one"))
    if not lost_allowed:
        assert guest.read(api, rig.sid, "/home/user/fresh") == str(rig.number), (name, op)
    if name.startswith("snapshot") and op["state"] == "succeeded":
        api.rollback(rig.sid, answer["snapshot"]["id"])
        assert guest.read(api, rig.sid, "/home/user/fresh") == str(rig.number)
    for child in op.get("children") or []:
        if child["state"] == "succeeded" and api.sandbox(child["sandbox_id"])["state"] == "running":
            assert guest.read(api, child["sandbox_id"], "/home/user/fresh") == str(rig.number)


def case(rig, name, point, action, is_behind):
    """One cell. True when the fault was met."""
    state, request = OPERATIONS[name]
    rig.sandbox(state)
    method, path, body = request(rig)
    outside = action in OUTSIDE
    after_ms = int(point[3:]) if point.startswith("ms.") else None
    if after_ms is None:
        rig.faults.arm(point, "sleep=400" if outside else action)
    vm_killed = False
    try:
        key = "fault-%d-%d" % (os.getpid(), rig.number)
        killer = threading.Timer(after_ms / 1000, rig.kill, (action,)) if after_ms is not None else None
        if killer:
            killer.start()
        a = rig.patient(lambda: rig.api.call(method, path, body, key=key))
        assert a.status == 202, (name, a)
        if killer:
            killer.join()
            op, vm_killed = rig.final(a.json["operation_id"]), action in ("space-vm", "vmm")
            rig.back(action)
            check(rig, name, op, vm_killed, a.json)
            return True
        end = time.monotonic() + 10
        over = None  # a moment behind the end of the operation the fault will not be met any more
        while not rig.faults.hit() and time.monotonic() < (over or end):
            if over is None and rig.patient(lambda: rig.api.call("GET", "/v1/operations/" + a.json["operation_id"])).json["state"] in FINAL:
                over = time.monotonic() + (4 if is_behind else 0.3)
            time.sleep(0.02)
        met = rig.faults.hit()
        if met and outside:
            vm_killed = rig.kill(action) and action in ("space-vm", "vmm")
        op = rig.final(a.json["operation_id"])
    finally:
        rig.faults.disarm()
    if met and action in ("kill_broker",) + OUTSIDE:
        rig.back(action)
    check(rig, name, op, vm_killed, a.json)
    tidy(rig, name, a.json)
    return met


def cells(passed):
    """(operation, point, action, whether the point comes behind the answer)"""
    out = []
    for name, (during, behind) in passed.items():
        if not during:  # control, node and the VM among themselves: somebody dies that many milliseconds after the request began
            out += [(name, "ms.%d" % ms, action, False) for ms in (1, 4, 8, 12, 20) for action in OUTSIDE]
        for point in during + behind:
            for action in INSIDE + OUTSIDE:
                if action == "kill_broker" and point.startswith(JAILED):
                    continue
                if action in ("space-vm", "vmm") and (name in CREATES + ("delete", "wake", "snapshot of a suspended one") or point in behind):
                    continue  # there is none of this sandbox to kill
                if point.startswith("remove.") and action in INSIDE[:2] and name != "delete":
                    continue
                out.append((name, point, action, point in behind))
    return out


def chosen(everything, rng):
    """The cells of this run, in random order."""
    everything = sorted(everything)
    rng.shuffle(everything)
    if CELLS == "all":
        return everything
    picked, seen = [], {}
    for c in everything:
        name, point, action, is_behind = c
        if CELLS == "points":
            if action in ("kill", "enospc") and (point, action) not in seen:
                seen[(point, action)] = True
                picked.append(c)
        elif action not in ("space-vm", "vmm") and not is_behind and seen.get(name, 0) < SAMPLE:
            seen[name] = seen.get(name, 0) + 1
            picked.append(c)
    return picked


def test_matrix(rig, passed):
    everything = cells(passed)
    seed = int(os.environ.get("SPACE_FAULT_SEED", time.time() if CELLS == "all" else 1))
    todo = chosen(everything, random.Random(seed))
    missed, wrong, begun = [], [], time.monotonic()
    for cell in todo:
        t = time.monotonic()
        try:
            if not case(rig, *cell):
                missed.append(cell)
        except AssertionError as e:
            wrong.append(cell + (str(e)[:1500],))
            rig.faults.disarm()
            rig.system.wait_ready()
            rig.sid = rig.sid if len(wrong) > 20 else None  # a fresh one; the old one is looked at in the host difference
        print("%-28s %-20s %-12s %5.1f s" % (*cell[:3], time.monotonic() - t), flush=True)
    say("fault matrix (%s), seed %d: %d points, %d cells, %d run, %d faults met, %d wrong, %.0f s" % (
        CELLS, seed, len({p for ps in passed.values() for p in ps[0] + ps[1]}), len(everything), len(todo), len(todo) - len(missed),
        len(wrong), time.monotonic() - begun))
    assert not wrong, "%d wrong:\n" % len(wrong) + "\n".join(map(str, wrong[:8]))
    assert len(missed) <= len(todo) * 0.25, missed


def test_everything_dies_at_once(rig):
    """The host's power went: all of ours is gone but the state directory."""
    api = rig.api
    running = rig.sandbox("running")
    paused, suspended = api.create(), api.create()
    for sid in (paused, suspended):
        guest.write(api, sid, "/home/user/base", sid)
        api.take_snapshot(sid)
    api.pause(paused)
    api.suspend(suspended)
    low = int(rig.system.settings["uid_base"])
    os.kill(rig.system.pid("supervisor"), signal.SIGKILL)
    for name in ("node", "control", "gateway", "broker", "postgres"):
        rig.system.kill(name)
    for p in os.listdir("/proc"):
        try:
            if p.isdigit() and low <= os.stat("/proc/" + p).st_uid < low + 8192:
                os.kill(int(p), signal.SIGKILL)
        except OSError:
            pass
    time.sleep(1)
    rig.system.cli("up")
    rig.system.wait_ready()
    assert api.sandbox(suspended)["state"] == "suspended"
    for sid in (running, paused):
        assert api.wait_state(sid, "failed")["error"]["code"]
    for sid in (running, paused, suspended):
        api.wake(sid)
        assert guest.read(api, sid, "/home/user/base") == sid
    for sid in (paused, suspended):
        api.delete(sid)
        api.delete_snapshots(sid)


def test_nothing_is_left(rig):
    rig.sid = None
    for s in rig.api.ok("GET", "/v1/sandboxes?limit=200")["items"]:
        rig.api.delete(s["id"])
    for p in rig.api.ok("GET", "/v1/pools")["items"]:
        rig.api.ok("DELETE", "/v1/pools/" + p["id"])
    end = time.monotonic() + 120
    while True:
        rig.api.delete_snapshots()
        left = {c: [n for n in names if not _of_a_template(n)] for c, names in hostdiff.diff(rig.before, rig.look()).items()}
        if not any(left.values()):
            break
        assert time.monotonic() < end, left
        time.sleep(0.5)
    assert list((rig.system.state / "store" / "snapshots").glob("*.tmp")) == []


def _of_a_template(name):
    """Snapshots of templates (named by a hash) are kept: one for each size that was asked for."""
    parts = name.split("snapshots/", 1)
    return len(parts) == 2 and not parts[1].startswith("snp_") and ".tmp" not in parts[1]
