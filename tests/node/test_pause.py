# SPDX-License-Identifier: Apache-2.0
"""Pause, wake, suspend, snapshots, rollback: each to its aim, each failing well, delete in the middle of each."""

import threading
import time

import pytest

from fakes import new_id
from test_failures import at, refuse


def reported(node, sandbox_id, state, **fields):
    """Waits for a report made from now on."""
    def find():
        return next((r for r in node.control.reports(sandbox_id)
                     if r["state"] == state and all(r.get(k) == v for k, v in fields.items())), None)
    node.control.wait_for(find)
    return find()


def fresh(node):
    with node.control.lock:
        node.control.observed.clear()


def snapshot(kind):
    return {"id": new_id("snp"), "kind": kind}


def paused(node):
    sandbox_id = node.running()
    node.control.move(sandbox_id, "paused", "pause")
    reported(node, sandbox_id, "paused")
    fresh(node)
    return sandbox_id


def suspended(node):
    sandbox_id = node.running()
    wanted = snapshot("suspend")
    operation = node.control.move(sandbox_id, "suspended", "suspend", snapshot=wanted)
    report = reported(node, sandbox_id, "suspended")["operation"]
    assert report["id"] == operation and report["timings"]["broker_copy_ms"] == 1.5 and "node_ms" in report["timings"]
    fresh(node)
    return sandbox_id, wanted["id"]


def wake(node, sandbox_id, key):
    row = node.control.sandboxes[sandbox_id]
    return node.control.move(sandbox_id, "running", "wake", generation=row["generation"] + 1, start={"snapshot_id": key})


def test_pause_and_wake(node):
    sandbox_id = node.running()
    for _ in range(3):
        fresh(node)
        operation = node.control.move(sandbox_id, "paused", "pause")
        report = reported(node, sandbox_id, "paused")
        assert not report["ready"] and report["generation"] == 1 and report["operation"]["id"] == operation
        fresh(node)
        node.control.move(sandbox_id, "running", "wake")
        assert reported(node, sandbox_id, "running", ready=True)["generation"] == 1
    assert node.broker.vms[sandbox_id].asked == ["pause", "resume"] * 3
    assert node.broker.count("vm_start", id=sandbox_id) == 1


def test_little_is_said_on_the_way(node):
    """Pause and wake cost one report each: nothing of the states between."""
    sandbox_id = node.running()
    fresh(node)
    node.control.move(sandbox_id, "paused", "pause")
    reported(node, sandbox_id, "paused")
    node.control.move(sandbox_id, "running", "wake")
    reported(node, sandbox_id, "running")
    time.sleep(0.3)
    assert [r["state"] for r in node.control.reports(sandbox_id)] == ["paused", "running"]


@pytest.mark.parametrize("code", ["guest_busy", "io"])
def test_a_pause_that_is_refused(node, code):
    sandbox_id = node.running()
    fresh(node)
    node.broker.hooks["pause"] = lambda vm: code
    operation = node.control.move(sandbox_id, "paused", "pause")
    node.control.wait_for(lambda: operation in node.control.failures)
    assert node.control.failures[operation] == {"code": code, "message": "told to"}
    report = node.control.reports(sandbox_id)[-1]
    assert report["state"] == "running" and report["ready"]
    time.sleep(0.3)
    assert node.broker.vms[sandbox_id].asked == ["pause"]
    node.broker.hooks.clear()
    node.control.move(sandbox_id, "paused", "pause")
    reported(node, sandbox_id, "paused")


def test_a_wake_that_is_refused(node):
    sandbox_id = paused(node)
    node.broker.hooks["resume"] = lambda vm: "io"
    operation = node.control.move(sandbox_id, "running", "wake")
    node.control.wait_for(lambda: operation in node.control.failures)
    assert node.control.reports(sandbox_id)[-1]["state"] == "paused"


@pytest.mark.parametrize("kind", ["pause", "resume"])
def test_a_vm_that_dies_on_the_way(node, kind):
    sandbox_id = paused(node) if kind == "resume" else node.running()
    node.broker.hooks[kind] = lambda vm: vm.die() or "silent"
    node.control.move(sandbox_id, *(("running", "wake") if kind == "resume" else ("paused", "pause")))
    assert reported(node, sandbox_id, "failed")["error"]["code"] == "vmm_killed"
    node.broker.wait(lambda: sandbox_id not in node.broker.vms)


def test_a_connection_lost_on_the_way(node):
    """The request went nowhere, or its answer did: the status after the connection was made again shows which."""
    sandbox_id = node.running()
    lost = []

    def hang_up(vm):
        if not lost:
            lost.append(1)
            vm.hang_up()
            return "silent"
        return None
    node.broker.hooks["pause"] = hang_up
    node.control.move(sandbox_id, "paused", "pause")
    reported(node, sandbox_id, "paused")
    assert node.broker.vms[sandbox_id].asked == ["pause", "pause"]


def test_suspend_and_wake(node):
    sandbox_id, key = suspended(node)
    assert sandbox_id not in node.broker.vms and key in node.broker.snapshots
    assert node.control.snapshots[key] == "ready"
    assert node.control.snapshot_reports[-1] == {"id": key, "state": "ready", "memory_bytes": 4096000, "disk_bytes": 8192,
                                                 "exclusive_bytes": 12288, "stall_us": 9000}
    wake(node, sandbox_id, key)
    report = reported(node, sandbox_id, "running", ready=True, generation=2)
    assert report["start_kind"] == "cold"
    assert node.broker.vms[sandbox_id].request["snapshot"] == key
    assert node.broker.vms[sandbox_id].request["config"]["generation"] == 2


def test_suspend_of_a_paused_one(node):
    sandbox_id = paused(node)
    key = snapshot("suspend")
    node.control.move(sandbox_id, "suspended", "suspend", snapshot=key)
    reported(node, sandbox_id, "suspended")
    assert sandbox_id not in node.broker.vms and key["id"] in node.broker.snapshots


@pytest.mark.parametrize("before", ["running", "paused"])
@pytest.mark.parametrize("error,code", [(("no_space", ""), "host_disk_full"), (("guest", "guest_busy"), "guest_busy"),
                                        (("io", ""), "io")])
def test_a_suspend_that_fails_leaves_it_well(node, before, error, code):
    sandbox_id = paused(node) if before == "paused" else node.running()
    node.broker.fail["vm_snapshot"] = refuse(*error)
    operation = node.control.move(sandbox_id, "suspended", "suspend", snapshot=snapshot("suspend"))
    node.control.wait_for(lambda: operation in node.control.failures)
    assert node.control.failures[operation]["code"] == code
    assert node.control.snapshot_reports[-1]["state"] == "failed" and node.control.snapshot_reports[-1]["error"]["code"] == code
    assert node.control.reports(sandbox_id)[-1]["state"] == before == node.broker.vms[sandbox_id].state
    node.broker.fail.clear()
    node.control.move(sandbox_id, "suspended", "suspend", snapshot=snapshot("suspend"))
    reported(node, sandbox_id, "suspended")


def test_a_suspend_that_fails_with_the_vm_standing_still(node):
    """The broker failed after the VM was stopped: one that ran goes on."""
    sandbox_id = node.running()

    def fail_late(fields):
        node.broker.vms[fields["id"]].set("paused")
        refuse("no_space")(fields)
    node.broker.fail["vm_snapshot"] = fail_late
    operation = node.control.move(sandbox_id, "suspended", "suspend", snapshot=snapshot("suspend"))
    node.control.wait_for(lambda: operation in node.control.failures)
    assert node.control.reports(sandbox_id)[-1]["state"] == "running" == node.broker.vms[sandbox_id].state


def test_a_vm_that_dies_in_its_suspend(node):
    sandbox_id = node.running()
    node.broker.slow["vm_snapshot"] = 0.3
    key = snapshot("suspend")
    node.control.move(sandbox_id, "suspended", "suspend", snapshot=key)
    node.broker.wait(lambda: node.broker.count("vm_snapshot"))
    node.broker.vms[sandbox_id].die()
    report = reported(node, sandbox_id, "failed")
    assert report["error"]["code"] == "vmm_killed" and report["snapshot"]["state"] == "failed"


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_snapshot_beside_it(node, state):
    sandbox_id = paused(node) if state == "paused" else node.running()
    fresh(node)
    key = snapshot("snapshot")
    operation = node.control.move(sandbox_id, state, "snapshot", snapshot=key)
    node.control.wait_for(lambda: node.control.snapshots.get(key["id"]) == "ready")
    assert node.broker.vms[sandbox_id].state == state and operation not in node.control.failures
    assert node.broker.count("vm_snapshot", id=sandbox_id, then="resume") == 1
    assert {r["state"] for r in node.control.reports(sandbox_id)} == {state}
    request = next(f for r, f in node.broker.requests if r == "vm_snapshot")
    assert request["manifest"]["sandbox"] == sandbox_id and request["manifest"]["kind"] == "snapshot"


def test_a_snapshot_of_the_disk_alone(node):
    """Asked for as such; a sandbox that is set back to it, or woken from it, boots: no blank and no pool serves it."""
    sandbox_id = node.running()
    key = {**snapshot("checkpoint"), "content": "disk"}
    node.control.move(sandbox_id, "running", "snapshot", snapshot=key)
    node.control.wait_for(lambda: node.control.snapshots.get(key["id"]) == "ready")
    assert node.broker.count("vm_snapshot", id=sandbox_id, then="resume", content="disk") == 1
    assert next(f for r, f in node.broker.requests if r == "vm_snapshot")["manifest"]["content"] == "disk"
    assert node.control.snapshot_reports[-1]["memory_bytes"] == 0
    fresh(node)
    start = {"snapshot_id": key["id"], "content": "disk"}
    node.control.move(sandbox_id, "running", "rollback", generation=2, start=start)
    report = reported(node, sandbox_id, "running", generation=2, ready=True)
    assert report["start_kind"] == "boot"
    vm = node.broker.vms[sandbox_id]
    assert vm.mode == "boot" and vm.request["snapshot"] == key["id"] and "probe" not in vm.request["config"]
    vm.die()
    reported(node, sandbox_id, "failed")
    with node.control.lock:
        node.control.sandboxes[sandbox_id]["desired"] = "running"
    node.control.move(sandbox_id, "running", "wake", generation=3, start=start)
    assert reported(node, sandbox_id, "running", generation=3)["start_kind"] == "boot"
    full = snapshot("snapshot")
    node.control.move(sandbox_id, "running", "snapshot", snapshot=full)
    node.control.wait_for(lambda: node.control.snapshots.get(full["id"]) == "ready")
    assert node.broker.count("vm_snapshot", snapshot=full["id"], content="full") == 1


@pytest.mark.parametrize("code", ["guest_silent", "vmm_failed"])
def test_a_boot_that_fails(node, code):
    sandbox_id = node.running()
    key = {**snapshot("snapshot"), "content": "disk"}
    node.control.move(sandbox_id, "running", "snapshot", snapshot=key)
    node.control.wait_for(lambda: node.control.snapshots.get(key["id"]) == "ready")
    node.broker.scripts["boot"] = lambda vm: vm.set("failed", error=(code, "no kernel"))
    node.control.move(sandbox_id, "running", "rollback", generation=2, start={"snapshot_id": key["id"], "content": "disk"})
    assert reported(node, sandbox_id, "failed", generation=2)["error"]["code"] == code
    assert node.broker.count("vm_start", mode="boot") == 2  # on a busy host the next one may come up


def test_a_boot_that_comes_up_at_the_second_attempt(node):
    sandbox_id = node.running()
    key = {**snapshot("snapshot"), "content": "disk"}
    node.control.move(sandbox_id, "running", "snapshot", snapshot=key)
    node.control.wait_for(lambda: node.control.snapshots.get(key["id"]) == "ready")
    node.broker.scripts["boot"] = lambda vm: (node.broker.scripts.clear(), vm.set("failed", error=("vmm_failed", "panic")))
    node.control.move(sandbox_id, "running", "rollback", generation=2, start={"snapshot_id": key["id"], "content": "disk"})
    assert reported(node, sandbox_id, "running", generation=2)["start_kind"] == "boot"
    assert node.broker.count("vm_start", mode="boot") == 2


def test_a_snapshot_that_fails(node):
    sandbox_id = node.running()
    node.broker.fail["vm_snapshot"] = refuse("guest", "guest_busy")
    key = snapshot("snapshot")
    operation = node.control.move(sandbox_id, "running", "snapshot", snapshot=key)
    node.control.wait_for(lambda: operation in node.control.failures)
    assert node.control.snapshots[key["id"]] == "failed" and node.control.failures[operation]["code"] == "guest_busy"
    time.sleep(0.3)
    assert node.broker.count("vm_snapshot") == 1


def test_a_snapshot_is_said_until_it_is_settled(node):
    sandbox_id = node.running()
    node.control.settle = False
    key = snapshot("snapshot")
    node.control.move(sandbox_id, "running", "snapshot", snapshot=key)
    node.control.wait_for(lambda: len(node.control.snapshot_reports) >= 1)
    for _ in range(3):
        time.sleep(0.7)
        with node.control.lock:
            node.control.changed()
    node.control.settle = True
    time.sleep(1.1)
    with node.control.lock:
        node.control.changed()
    node.control.wait_for(lambda: node.control.snapshots.get(key["id"]) == "ready")
    time.sleep(0.3)
    n = len(node.control.snapshot_reports)
    node.control.move(sandbox_id, "paused", "pause")
    reported(node, sandbox_id, "paused")
    assert 2 <= n == len(node.control.snapshot_reports) and node.broker.count("vm_snapshot") == 1


def test_a_snapshot_of_a_suspended_one_is_a_copy(node):
    sandbox_id, old = suspended(node)
    key = snapshot("snapshot")
    node.control.move(sandbox_id, "suspended", "snapshot", snapshot=key, start={"snapshot_id": old})
    node.control.wait_for(lambda: node.control.snapshots.get(key["id"]) == "ready")
    assert {old, key["id"]} <= node.broker.snapshots and node.broker.count("snapshot_copy") == 1
    assert sandbox_id not in node.broker.vms


@pytest.mark.parametrize("before", ["running", "paused", "suspended"])
def test_rollback(node, before):
    sandbox_id = node.running()
    key = snapshot("snapshot")
    node.control.move(sandbox_id, "running", "snapshot", snapshot=key)
    node.control.wait_for(lambda: node.control.snapshots.get(key["id"]) == "ready")
    if before == "paused":
        node.control.move(sandbox_id, "paused", "pause")
        reported(node, sandbox_id, "paused")
    elif before == "suspended":
        node.control.move(sandbox_id, "suspended", "suspend", snapshot=snapshot("suspend"))
        reported(node, sandbox_id, "suspended")
    node.control.move(sandbox_id, "running", "rollback", generation=2, start={"snapshot_id": key["id"]})
    reported(node, sandbox_id, "running", generation=2)
    assert node.broker.vms[sandbox_id].request["snapshot"] == key["id"]


def test_a_wake_that_finds_no_room_stays_suspended(node):
    sandbox_id, key = suspended(node)
    node.broker.fail["vm_start"] = refuse("no_capacity")
    operation = wake(node, sandbox_id, key)
    node.control.wait_for(lambda: operation in node.control.failures)
    assert node.control.failures[operation]["code"] == "no_capacity"
    assert node.control.reports(sandbox_id)[-1]["state"] == "suspended" and sandbox_id not in node.broker.vms
    node.broker.fail.clear()
    wake(node, sandbox_id, key)
    reported(node, sandbox_id, "running", generation=3)


@pytest.mark.parametrize("how,code", [("missing", "snapshot_missing"), ("broken", "snapshot_broken")])
def test_a_wake_without_a_good_snapshot_fails(node, how, code):
    sandbox_id, key = suspended(node)
    if how == "missing":
        node.broker.snapshots.discard(key)
    else:
        node.broker.fail["vm_start"] = refuse("corrupt", "snapshot")
    wake(node, sandbox_id, key)
    assert reported(node, sandbox_id, "failed")["error"]["code"] == code


def test_a_failed_one_is_woken(node):
    sandbox_id, key = suspended(node)
    wake(node, sandbox_id, key)
    reported(node, sandbox_id, "running")
    node.broker.vms[sandbox_id].die()
    reported(node, sandbox_id, "failed")
    with node.control.lock:
        node.control.sandboxes[sandbox_id]["desired"] = "running"
    wake(node, sandbox_id, key)
    reported(node, sandbox_id, "running", generation=3)


def test_a_failed_one_that_was_tidied_up_is_woken(node):
    sandbox_id, key = suspended(node)
    node.broker.fail["vm_start"] = refuse("corrupt", "snapshot")
    wake(node, sandbox_id, key)
    reported(node, sandbox_id, "failed")
    with node.control.lock:  # as control's list has failed ones
        node.control.sandboxes[sandbox_id].update(desired="deleted")
        node.control.changed()
    reported(node, sandbox_id, "deleted")
    node.broker.fail.clear()
    node.control.sandboxes[sandbox_id]["listed"] = True
    wake(node, sandbox_id, key)
    reported(node, sandbox_id, "running", generation=3)


# ---- delete

@pytest.mark.parametrize("activity", ["pause", "resume", "suspend", "snapshot", "copy", "wake", "rollback"])
def test_delete_during(node, activity):
    """Delete wins at once, whatever is under way, and nothing comes back."""
    if activity in ("copy", "wake"):
        sandbox_id, key = suspended(node)
    elif activity == "resume":
        sandbox_id, key = paused(node), None
    else:
        sandbox_id, key = node.running(), None
    hold = threading.Event()
    node.broker.hooks["pause"] = node.broker.hooks["resume"] = lambda vm: hold.wait(30) and None
    node.broker.slow.update(vm_snapshot=2, snapshot_copy=2, vm_start=2)

    def asked():
        return sum(node.broker.count(r) for r in node.broker.slow) + sum(len(vm.asked) for vm in list(node.broker.vms.values()))
    before = asked()
    if activity == "pause":
        node.control.move(sandbox_id, "paused", "pause")
    elif activity == "resume":
        node.control.move(sandbox_id, "running", "wake")
    elif activity == "suspend":
        node.control.move(sandbox_id, "suspended", "suspend", snapshot=snapshot("suspend"))
    elif activity == "snapshot":
        node.control.move(sandbox_id, "running", "snapshot", snapshot=snapshot("snapshot"))
    elif activity == "copy":
        node.control.move(sandbox_id, "suspended", "snapshot", snapshot=snapshot("snapshot"), start={"snapshot_id": key})
    elif activity == "wake":
        wake(node, sandbox_id, key)
    else:
        node.broker.snapshots.add("snp_" + "0" * 26)
        node.control.move(sandbox_id, "running", "rollback", generation=2, start={"snapshot_id": "snp_" + "0" * 26})
    if activity == "rollback":
        time.sleep(0.2)
    else:
        node.broker.wait(lambda: asked() > before)
    begun = time.monotonic()
    fresh(node)
    node.control.delete(sandbox_id)
    reported(node, sandbox_id, "deleted")
    if activity in ("suspend", "snapshot", "pause", "resume"):
        assert time.monotonic() - begun < 1.5  # not when what was under way is over
    hold.set()
    node.broker.quiet()
    time.sleep(0.3)
    assert sandbox_id not in node.broker.vms
    assert {r["state"] for r in node.control.reports(sandbox_id)} <= {"deleted", "creating"}


def test_activity_is_told(node):
    sandbox_id = node.running()
    vm = node.broker.vms[sandbox_id]
    vm.streams, vm.active = 3, 1_700_000_000_123_000_000
    vm.set("running")
    report = reported(node, sandbox_id, "running", streams=3)
    assert report["active_at"] == "2023-11-14T22:13:20.123Z"


def test_a_deadline_of_a_wake(node):
    sandbox_id, key = suspended(node)
    node.broker.scripts["clone"] = lambda vm: None
    row = node.control.sandboxes[sandbox_id]
    operation = node.control.move(sandbox_id, "running", "wake", generation=row["generation"] + 1, start={"snapshot_id": key},
                                  deadline_at=at(0.7))
    node.control.wait_for(lambda: operation in node.control.failures)
    assert node.control.failures[operation]["code"] == "deadline_exceeded" and sandbox_id not in node.broker.vms
