# SPDX-License-Identifier: Apache-2.0
"""Promise: every operation does in every state what the table says; a sandbox that was left is found again as it was left: files,
running programs, open streams; a snapshot can be gone back to, forward again, forked and deleted without hurting what came of it."""

import os
import signal
import time

import pytest

from lib import api as apilib
from lib import guest
from lib.sizes import say, size

VERBS = ("pause", "suspend", "wake", "snapshot", "fork", "rollback")
# state → verb → state afterwards, or the refusal's code (architecture.md §3)
TABLE = {
    "running": {"pause": "paused", "suspend": "suspended", "wake": "running", "snapshot": "running", "fork": "running",
                "rollback": "running"},
    "paused": {"pause": "paused", "suspend": "suspended", "wake": "running", "snapshot": "paused", "fork": "paused",
               "rollback": "running"},
    "suspended": {"pause": "wrong_state", "suspend": "suspended", "wake": "running", "snapshot": "suspended", "fork": "suspended",
                  "rollback": "running"},
}


@pytest.fixture
def cleanup(api):
    """Sandboxes and snapshots that a test leaves go with it."""
    ids = []
    yield ids
    for sid in reversed(ids):
        api.delete(sid)
    for sid in ids:
        api.delete_snapshots(sid)


@pytest.fixture
def box(api, cleanup):
    sid = api.create()
    cleanup.append(sid)
    return sid


def bring_to(api, sid, state):
    now = api.sandbox(sid)["state"]
    if now == state:
        return
    if now != "running":
        api.wake(sid)
    if state == "paused":
        api.pause(sid)
    elif state == "suspended":
        api.suspend(sid)
    assert api.sandbox(sid)["state"] == state


@pytest.mark.parametrize("state", TABLE)
def test_every_operation_in_every_state(api, box, cleanup, state):
    guest.write(api, box, "/home/user/kept", state)
    snapshot = api.take_snapshot(box, "base")
    took = {}
    for verb in VERBS:
        bring_to(api, box, state)
        body = {"rollback": {"snapshot_id": snapshot}, "fork": {"count": 1}}.get(verb)
        a = api.ask(box, verb, body)
        expected = TABLE[state][verb]
        if expected == "wrong_state":
            assert a.status == 409 and a.json["code"] == "wrong_state", (verb, a)
            continue
        assert a.status == 202, (verb, a)
        begun = time.monotonic()
        op = api.wait(a.json["operation_id"])
        took[verb] = round((time.monotonic() - begun) * 1000)
        assert op["state"] == "succeeded", (verb, op)
        sandbox = api.sandbox(box)
        assert sandbox["state"] == expected and sandbox["ready"] == (expected == "running"), (verb, sandbox)
        if verb == "fork":
            for child in op["children"]:
                cleanup.append(child["sandbox_id"])
                assert guest.read(api, child["sandbox_id"], "/home/user/kept") == state
    say("%s: ms of each operation %s" % (state, took))
    bring_to(api, box, "running")
    assert guest.read(api, box, "/home/user/kept") == state


@pytest.mark.parametrize("state", ["running", "paused", "suspended"])
def test_delete_in_every_state(system, api, state):
    sid = api.create()
    bring_to(api, sid, state)
    api.delete(sid)
    assert api.sandbox(sid)["state"] == "deleted"
    for verb in VERBS:
        a = api.ask(sid, verb, {"snapshot_id": "snp_" + "0" * 26} if verb == "rollback" else None)
        assert a.status == 410, (verb, a)
    left = system.state / "store" / "sandboxes" / sid
    assert not left.exists()
    end = time.monotonic() + 90
    while left := [s for s in api.snapshots(sid) if s["kind"] == "suspend" and s["state"] == "ready"]:
        assert time.monotonic() < end, left  # what it was suspended on is of no use to anybody
        time.sleep(0.5)


def test_a_second_operation_waits_its_turn(api, box):
    """One at a time: 409 names the running one, delete is always accepted."""
    first = api.ask(box, "suspend")
    assert first.status == 202, first
    second = api.ask(box, "pause")
    if second.status == 409 and second.json["code"] == "operation_in_progress":
        assert second.json["operation_id"] == first.json["operation_id"], second
    else:
        assert second.status == 409 and second.json["code"] == "wrong_state", second  # it was over already
    assert api.wait(first.json["operation_id"])["state"] == "succeeded"
    assert api.sandbox(box)["state"] == "suspended"


def test_streams_survive_pause_and_snapshot(api, box):
    session = api.session(box, ["sh", "-c", "for i in $(seq 1 80); do echo $i; sleep 0.1; done; exit 4"])
    f = guest.follow(session)
    f.wait(lambda r: len(r.stdout) > 10)
    api.pause(box)
    before = len(f.result.stdout)
    time.sleep(1.5)
    stood = len(f.result.stdout) - before
    api.wake(box)
    for _ in range(3):
        api.take_snapshot(box)
    f.join(60)
    r = f.result
    assert r.code == 4 and bytes(r.stdout) == b"".join(b"%d\n" % i for i in range(1, 81)) and not r.faults and not r.error, r
    assert f.connections == 1 and stood < 16, (f.connections, stood)  # what was on its way arrives; then nothing


def test_stdin_waits_for_a_paused_sandbox(api, box):
    session = api.session(box, ["cat"], stdin=True)
    f = guest.follow(session)
    f.wait(lambda r: r.started)
    api.pause(box)
    api.wake(box)
    assert apilib.stdin(session, b"after", close=True).status in (200, 202, 204)
    f.join(30)
    assert f.result.code == 0 and bytes(f.result.stdout) == b"after", f.result


def test_files_and_a_running_counter_over_suspend(api, box):
    """Cycles of write file, suspend, wake; then back to one in the middle and forward again."""
    cycles = size(6, 20)
    middle = size(3, 7)
    guest.detached(api, box, ["python3", "-c", guest.COUNTER])
    snapshots, counts, times = [], [], {"suspend": [], "wake": []}
    for i in range(cycles):
        guest.write(api, box, "/home/user/f%d" % i, "cycle %d" % i)
        before = guest.count(api, box)
        snapshots.append(api.take_snapshot(box, "cycle-%d" % i))
        t = time.monotonic()
        api.suspend(box)
        times["suspend"].append((time.monotonic() - t) * 1000)
        time.sleep(0.3)
        t = time.monotonic()
        api.wake(box)
        times["wake"].append((time.monotonic() - t) * 1000)
        counts.append(guest.count(api, box))
        # the program went on where it stood: it did not start over, and did not run while the sandbox was on disk
        assert before <= counts[-1] <= before + 40, (i, before, counts[-1])
        for k in range(i + 1):
            assert guest.read(api, box, "/home/user/f%d" % k) == "cycle %d" % k
    for at in (middle - 1, cycles - 1, 0, cycles - 1):
        api.rollback(box, snapshots[at])
        back = guest.count(api, box)  # at once: it runs on
        names = api.run(box, ["sh", "-c", "ls /home/user | grep -c ^f"]).stdout.strip()
        assert int(names) == at + 1
        for k in range(at + 1):
            assert guest.read(api, box, "/home/user/f%d" % k) == "cycle %d" % k
        assert (0 if at == 0 else counts[at - 1]) <= back <= counts[at] + 60, (at, back, counts)
    say("%d cycles: suspend ms %s, wake ms %s, rolled back to %d and forward again" % (
        cycles, [round(x) for x in times["suspend"]], [round(x) for x in times["wake"]], middle))


def test_generation_rises(api, box):
    seen = [api.sandbox(box)["generation"]]
    snapshot = api.take_snapshot(box)
    for step in (lambda: (api.suspend(box), api.wake(box)), lambda: api.rollback(box, snapshot)):
        step()
        seen.append(api.sandbox(box)["generation"])
        assert guest.read(api, box, "/run/space/generation").strip().startswith(str(seen[-1])), seen
    assert seen == sorted(set(seen)), seen


def test_fork_of_a_fork(api, box, cleanup):
    guest.write(api, box, "/home/user/who", "parent")
    guest.detached(api, box, ["python3", "-c", guest.COUNTER])
    line, current = [box], box
    for depth in range(size(3, 8)):
        before = guest.count(api, current)
        _, (child,) = api.fork(current)
        cleanup.append(child)
        assert api.sandbox(child)["parent"]["sandbox_id"] == current
        assert guest.read(api, child, "/home/user/who") == ("parent" if depth == 0 else "depth %d" % (depth - 1))
        assert guest.count(api, child) >= before
        guest.write(api, child, "/home/user/who", "depth %d" % depth)
        line.append(child)
        current = child
    assert guest.read(api, box, "/home/user/who") == "parent"
    api.delete(line[1])  # a parent goes, its children stay
    for depth, sid in list(enumerate(line[2:], 1)):
        assert guest.read(api, sid, "/home/user/who") == "depth %d" % depth
        assert api.suspend(sid) and api.wake(sid)
        assert guest.read(api, sid, "/home/user/who") == "depth %d" % depth


def test_snapshots_can_go_while_what_came_of_them_lives(system, api, box, cleanup):
    guest.write(api, box, "/home/user/kept", "yes")
    first = api.take_snapshot(box, "first")
    second = api.take_snapshot(box, "second")
    from_first = api.ok("POST", "/v1/sandboxes", {"snapshot_id": first})
    child = from_first["sandbox"]["id"]
    cleanup.append(child)
    assert api.wait(from_first["operation_id"])["state"] == "succeeded"
    _, (forked,) = api.fork(child)
    cleanup.append(forked)
    for s in (first, second):
        a = api.call("DELETE", "/v1/snapshots/" + s)
        assert a.status in (202, 409), a
        if a.status == 409:
            assert a.json["code"] == "snapshot_in_use" and s == second, a
    end = time.monotonic() + 60
    while (system.state / "store" / "snapshots" / first).exists():
        assert time.monotonic() < end, "the snapshot's files stay"
        time.sleep(0.1)
    for sid in (child, forked):
        assert guest.read(api, sid, "/home/user/kept") == "yes"
        api.suspend(sid)
        api.wake(sid)
        assert guest.read(api, sid, "/home/user/kept") == "yes"
    a = api.ask(box, "rollback", {"snapshot_id": first})
    assert a.status in (404, 409, 410), a


def test_a_suspended_sandboxes_snapshot_is_kept(api, box):
    api.suspend(box)
    on_disk = api.sandbox(box)["snapshot_id"]
    a = api.call("DELETE", "/v1/snapshots/" + on_disk)
    assert a.status == 409 and a.json["code"] == "snapshot_in_use", a
    api.wake(box)


def test_rollback_wants_a_snapshot_of_the_line(api, box, cleanup):
    other = api.create()
    cleanup.append(other)
    foreign = api.take_snapshot(other)
    a = api.ask(box, "rollback", {"snapshot_id": foreign})
    assert a.status in (400, 404, 409), a
    assert api.ask(box, "rollback", {"snapshot_id": "snp_" + "0" * 26}).status == 404
    assert api.sandbox(box)["state"] == "running"


def test_idle_snapshots_do_not_grow(system, api, box):
    """Only what changed since the last one costs anything: the tenth holds no more of its own than the second did."""
    api.run(box, ["sh", "-c", "head -c 20M /dev/urandom > /tmp/x; rm /tmp/x"])
    ids = [api.take_snapshot(box) for _ in range(10)]
    held = {s["id"]: s for s in api.snapshots(box)}
    exclusive = [held[i]["exclusive_bytes"] for i in ids]
    stalls = [held[i]["stall_us"] for i in ids]
    say("exclusive KiB of ten idle snapshots %s, stall us %s" % ([x >> 10 for x in exclusive], stalls))
    assert exclusive[9] <= 2 * exclusive[1] + (4 << 20), exclusive


def test_a_failed_sandbox_is_woken_from_its_last_good_snapshot(system, api, box):
    guest.write(api, box, "/home/user/kept", "yes")
    api.take_snapshot(box)
    _, vmm = system.vm_pids(box)
    os.kill(vmm, signal.SIGKILL)
    failed = api.wait_state(box, "failed")
    assert failed["error"]["code"] == "vmm_killed", failed
    for verb in ("pause", "suspend", "snapshot"):
        a = api.ask(box, verb)
        assert a.status == 409 and a.json["code"] == "wrong_state", (verb, a)
    api.wake(box)
    assert guest.read(api, box, "/home/user/kept") == "yes"


@pytest.mark.parametrize("program", ["control", "node", "broker", "gateway"])
def test_restart_in_mid_operation(system, api, box, program):
    """Whatever is killed while an operation runs: it ends, and the sandbox is what the answer says."""
    guest.write(api, box, "/home/user/kept", program)
    for verb, wanted in (("suspend", "suspended"), ("wake", "running"), ("pause", "paused"), ("wake", "running"), ("snapshot", "running")):
        a = api.ask(box, verb)
        assert a.status == 202, (verb, a)
        time.sleep(0.01)
        system.restart(program)
        op = api.wait(a.json["operation_id"])
        sandbox = api.wait_state(box, "running", "paused", "suspended", "failed")
        assert op["state"] == "failed" or sandbox["state"] == wanted, (verb, op, sandbox)
        assert sandbox["state"] != "failed", (verb, sandbox["error"], system.logs())
        if op["state"] == "failed":
            say("%s while %s was killed: %s" % (verb, program, op["error"]))
            bring_to(api, box, wanted)
    assert guest.read(api, box, "/home/user/kept") == program


def test_restart_of_all_with_paused_and_suspended(system, api, cleanup):
    ids = [api.create() for _ in range(3)]
    cleanup += ids
    for i in ids:
        guest.write(api, i, "/home/user/me", i)
    api.pause(ids[0])
    api.suspend(ids[1])
    for program in ("broker", "node", "control", "gateway"):
        system.restart(program)
    assert [api.sandbox(i)["state"] for i in ids] == ["paused", "suspended", "running"]
    api.wake(ids[0])
    api.wake(ids[1])
    for i in ids:
        assert guest.read(api, i, "/home/user/me") == i


def test_operations_say_where_the_time_went(api, box):
    for verb in ("pause", "wake", "suspend", "wake"):
        op = api.operate(box, verb)
        assert op["timings"]["control_total_ms"] > 0 and op["reason"] == "client", op
        assert op["accepted_at"] <= op["started_at"] <= op["finished_at"], op
    assert op["start_kind"] in ("warm", "blank", "cold"), op


def test_new_session_wakes(api, box):
    """Traffic wakes a sandbox unless it was told not to."""
    for put in (api.pause, api.suspend):
        put(box)
        r = api.run(box, ["echo", "here"])
        assert r.code == 0 and bytes(r.stdout) == b"here\n", r
        assert api.sandbox(box)["state"] == "running"
        ops = api.ok("GET", "/v1/operations?sandbox_id=%s&limit=5" % box)["items"]
        assert [o["reason"] for o in ops if o["kind"] == "wake"][0] == "traffic", ops
    api.ok("PATCH", "/v1/sandboxes/" + box, {"lifecycle": {"wake_on_traffic": False}})
    api.pause(box)
    a = api.call("POST", "/v1/sandboxes/%s/sessions" % box, {"command": "true"})
    assert a.status == 409 and a.json["code"] == "sandbox_not_running", a
    api.wake(box)
