# SPDX-License-Identifier: Apache-2.0
"""Promise: whatever of ours is killed whenever, after a restart every sandbox is in a state the table allows, nothing acknowledged is
lost, and the host holds nothing that was not there before."""

import os
import random
import signal
import threading
import time

import pytest

from lib import hostdiff
from lib.sizes import say, size
from lib.system import System, running_system

ALLOWED = {"creating", "running", "pausing", "paused", "suspending", "suspended", "waking", "deleting", "deleted", "failed"}


@pytest.fixture
def own():
    with running_system() as s:
        s.api.delete(s.api.create())  # the template's snapshot is made: from here on the host's state is settled
        yield s


class Killer(threading.Thread):
    """Kills one of our processes at random moments: daemons, the supervisor, the database, space-vm and VMMs."""

    def __init__(self, system, rng):
        super().__init__()
        self.system, self.rng, self.over, self.killed = system, rng, threading.Event(), {}

    def victims(self):
        low = int(self.system.settings["uid_base"])
        names = ["broker", "control", "node", "gateway", "supervisor", "postgres"]
        found = []
        for n in names:
            try:
                found.append((n, self.system.pid(n)))
            except (OSError, ValueError, IndexError):
                pass
        for p in os.listdir("/proc"):
            try:
                if p.isdigit() and low + 64 <= os.stat("/proc/" + p).st_uid < low + 8192:
                    found.append((open("/proc/%s/comm" % p).read().strip(), int(p)))
            except OSError:
                pass
        return found

    def run(self):
        while not self.over.wait(self.rng.uniform(0.3, 1.5)):
            name, pid = self.rng.choice(self.victims())
            try:
                os.kill(pid, signal.SIGKILL)
                self.killed[name] = self.killed.get(name, 0) + 1
            except OSError:
                pass
            if name == "supervisor":
                time.sleep(0.3)
                self.system.cli("up", check=False)


def patient(fn, timeout=120):
    """A client that repeats with the same key, as clients must."""
    end = time.monotonic() + timeout
    while True:
        try:
            a = fn()
            if a.status < 500 and a.status != 429:
                return a
        except OSError:
            pass
        assert time.monotonic() < end, "the API did not come back"
        time.sleep(0.2)


def settled(before, look, seconds):
    """The difference once it has gone or time is over: a sweep, or init reaping a dead process, takes a moment."""
    end = time.monotonic() + seconds
    while True:
        left = hostdiff.diff(before, look())
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.5)


def test_create_delete_under_random_kills(own):
    cycles = size(15, 200)
    seed = int(os.environ.get("SPACE_CHAOS_SEED", time.time()))
    rng = random.Random(seed)
    look = lambda: hostdiff.snapshot(str(own.root), int(own.settings["uid_base"]), standing_by=True)  # noqa: E731
    before = look()
    killer = Killer(own, rng)
    killer.start()
    acknowledged, outcomes = {}, {}
    try:
        for i in range(cycles):
            body = {"template": "seed:latest", "name": "c%d" % i, "resources": {"memory_mib": 256}}
            a = patient(lambda: own.api.call("POST", "/v1/sandboxes", body, key="create-%d-%d" % (seed, i)))
            assert a.status == 202, a
            sid = a.json["sandbox"]["id"]
            acknowledged[sid] = a.json["operation_id"]
            time.sleep(rng.choice((0, 0.1, 0.5)))
            d = patient(lambda: own.api.call("DELETE", "/v1/sandboxes/" + sid, key="delete-%d-%d" % (seed, i)))
            assert d.status == 202, d
    finally:
        killer.over.set()
        killer.join()
    own.cli("up")
    own.wait_ready()
    end = time.monotonic() + 180
    for sid in acknowledged:
        while True:
            state = patient(lambda: own.api.call("GET", "/v1/sandboxes/" + sid)).json["state"]
            assert state in ALLOWED
            if state == "deleted":
                break
            assert time.monotonic() < end, "%s is still %s\n%s" % (sid, state, own.logs())
            time.sleep(0.2)
        outcomes[state] = outcomes.get(state, 0) + 1
    left = settled(before, look, 90)  # the sweep runs by itself
    say("seed %d, %d cycles, killed %s, outcomes %s, left on the host: %s" % (seed, cycles, killer.killed, outcomes, left or "nothing"))
    assert not left
    sid = own.api.create()
    assert own.api.run(sid, ["echo", "fine"]).code == 0
    own.api.delete(sid)


def live(own, rng, sid, tag, steps):
    """A few lifecycle operations, as they come. Returns what happened, and the children of forks."""
    said, children = {}, []
    for n in range(steps):
        verb = rng.choice(["pause", "suspend", "wake", "wake", "snapshot", "fork"])
        a = patient(lambda verb=verb, n=n: own.api.call("POST", "/v1/sandboxes/%s/%s" % (sid, verb), key="%s-%d" % (tag, n)))
        assert a.status in (202, 409), (verb, a)
        if a.status == 409:
            assert a.json["code"] in ("wrong_state", "operation_in_progress"), a
            said[a.json["code"]] = said.get(a.json["code"], 0) + 1
            time.sleep(0.2)
            continue
        children += [c["sandbox_id"] for c in a.json.get("children", [])]
        end = time.monotonic() + 330
        while (op := patient(lambda a=a: own.api.call("GET", "/v1/operations/" + a.json["operation_id"])).json)["state"] not in ("succeeded", "failed"):
            assert time.monotonic() < end, "%s does not end\n%s" % (op, own.logs())
            time.sleep(0.1)
        word = verb if op["state"] == "succeeded" else "%s: %s" % (verb, op["error"]["code"])
        said[word] = said.get(word, 0) + 1
    return said, children


def gone(own, sid, seconds=180):
    end = time.monotonic() + seconds
    while (state := patient(lambda: own.api.call("GET", "/v1/sandboxes/" + sid)).json["state"]) != "deleted":
        assert state in ALLOWED
        assert time.monotonic() < end, "%s is still %s\n%s" % (sid, state, own.logs())
        time.sleep(0.2)


def test_lifecycle_under_random_kills(own):
    cycles, steps = size(4, 60), 5
    seed = int(os.environ.get("SPACE_CHAOS_SEED", time.time()))
    rng = random.Random(seed)
    look = lambda: hostdiff.snapshot(str(own.root), int(own.settings["uid_base"]), standing_by=True)  # noqa: E731
    before = look()
    killer = Killer(own, rng)
    killer.start()
    made, outcomes = [], {}
    try:
        for i in range(cycles):
            body = {"template": "seed:latest", "resources": {"memory_mib": 256}}
            a = patient(lambda: own.api.call("POST", "/v1/sandboxes", body, key="life-%d-%d" % (seed, i)))
            assert a.status == 202, a
            made.append(a.json["sandbox"]["id"])
            said, children = live(own, rng, made[-1], "step-%d-%d" % (seed, i), steps)
            made += children
            for k, v in said.items():
                outcomes[k] = outcomes.get(k, 0) + v
            d = patient(lambda: own.api.call("DELETE", "/v1/sandboxes/" + made[-1 - len(children)], key="over-%d-%d" % (seed, i)))
            assert d.status == 202, d
    finally:
        killer.over.set()
        killer.join()
    own.cli("up")
    own.wait_ready()
    for sid in made:
        assert patient(lambda: own.api.call("DELETE", "/v1/sandboxes/" + sid)).status == 202
    for sid in made:
        gone(own, sid)
    end = time.monotonic() + 90
    while (left := hostdiff.diff(before, look())) and time.monotonic() < end:
        own.api.delete_snapshots()
        time.sleep(0.5)
    say("seed %d, %d sandboxes, killed %s, outcomes %s, left on the host: %s" % (seed, len(made), killer.killed, outcomes, left or "nothing"))
    assert not left


def test_down_leaves_nothing():
    s = System()
    look = lambda: hostdiff.snapshot("/tmp/no-such-state", int(s.settings["uid_base"]))  # noqa: E731
    before = look()
    try:
        s.up()
        s.seed()
        s.api.create()
        s.cli("down")
        assert not settled(before, look, 60)
        s.up()  # and comes back: the sandbox whose VM went down with us is failed, with a reason
        end = time.monotonic() + 60
        while True:
            items = s.api.ok("GET", "/v1/sandboxes")["items"]
            if [x["state"] for x in items] == ["failed"] or time.monotonic() > end:
                break
            time.sleep(0.2)
        assert [x["state"] for x in items] == ["failed"] and items[0]["error"]["code"], items
    finally:
        s.remove()
