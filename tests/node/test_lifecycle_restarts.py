# SPDX-License-Identifier: Apache-2.0
"""The node, the broker or the host ends in the middle of a lifecycle activity, and the node finds out what became of it."""

import threading
import time

import pytest

from fakes import new_id
from test_pause import fresh, paused, reported, snapshot, suspended, wake


def restart(node):
    node.kill()
    fresh(node)
    node.start()


def test_paused_ones_are_adopted(node):
    sandbox_id = paused(node)
    restart(node)
    with node.control.lock:
        node.control.sandboxes[sandbox_id]["observed"] = "pausing"
    assert not reported(node, sandbox_id, "paused")["ready"]
    node.control.move(sandbox_id, "running", "wake")
    reported(node, sandbox_id, "running")
    assert node.broker.count("vm_start", id=sandbox_id) == 1


@pytest.mark.parametrize("activity", ["pause", "resume"])
def test_killed_in(node, activity):
    sandbox_id = paused(node) if activity == "resume" else node.running()
    hold = threading.Event()
    node.broker.hooks[activity] = lambda vm: hold.wait(5) and None
    aim = "running" if activity == "resume" else "paused"
    before = len(node.broker.vms[sandbox_id].asked)
    node.control.move(sandbox_id, aim, "wake" if activity == "resume" else "pause")
    node.broker.wait(lambda: len(node.broker.vms[sandbox_id].asked) > before)
    restart(node)
    time.sleep(0.3)
    hold.set()
    reported(node, sandbox_id, aim)


@pytest.mark.parametrize("when", ["working", "made"])
def test_killed_in_a_suspend(node, when):
    """The broker goes on; the snapshot counts because the VM has stood still since."""
    sandbox_id = node.running()
    (node.broker.slow if when == "working" else node.broker.late)["vm_snapshot"] = 0.6
    key = snapshot("suspend")
    node.control.move(sandbox_id, "suspended", "suspend", snapshot=key)
    node.broker.wait(lambda: node.broker.count("vm_snapshot"))
    time.sleep(0.2)
    restart(node)
    reported(node, sandbox_id, "suspended")
    assert sandbox_id not in node.broker.vms and key["id"] in node.broker.snapshots
    assert not node.broker.count("snapshot_remove")
    assert node.control.snapshots[key["id"]] == "ready"


def test_a_snapshot_that_the_vm_has_run_on_since(node):
    sandbox_id = node.running()
    key = snapshot("suspend")
    node.broker.snapshots.add(key["id"])  # made before, and the VM went on
    node.control.move(sandbox_id, "suspended", "suspend", snapshot=key)
    reported(node, sandbox_id, "suspended")
    assert node.broker.count("snapshot_remove", snapshot=key["id"]) == 1 and node.broker.count("vm_snapshot") == 2


def test_suspended_and_the_report_was_lost(node):
    """Nothing is on the host but the snapshot that was asked for."""
    sandbox_id, key = suspended(node)
    node.kill()
    with node.control.lock:
        node.control.sandboxes[sandbox_id].update(observed="suspending", operation_id=new_id("op"), operation_kind="suspend",
                                                  snapshot={"id": key, "kind": "suspend"})
        node.control.snapshots[key] = "creating"
        node.control.observed.clear()
    node.start()
    assert reported(node, sandbox_id, "suspended")["snapshot"]["state"] == "ready"


def test_a_vm_lost_before_it_was_suspended(node):
    sandbox_id = node.running()
    node.kill()
    node.broker.vms.pop(sandbox_id).remove()
    node.control.move(sandbox_id, "suspended", "suspend", snapshot=snapshot("suspend"))
    node.start()
    assert reported(node, sandbox_id, "failed")["error"]["code"] == "vmm_killed"


def test_a_host_that_was_booted_anew(node):
    """What ran or was paused is lost; what was suspended is there and wakes."""
    running, still, (asleep, key) = node.running(), paused(node), suspended(node)
    node.kill()
    for vm in list(node.broker.vms.values()):
        vm.die()
    fresh(node)
    node.start()
    for sandbox_id in (running, still):
        assert reported(node, sandbox_id, "failed")["error"]["code"] == "vmm_killed"
    time.sleep(0.3)
    assert not [r for r in node.control.reports(asleep) if r["state"] != "suspended"]
    wake(node, asleep, key)
    reported(node, asleep, "running", generation=2)


def doing(node):
    """How often the broker was asked for anything that takes long here."""
    return sum(node.broker.count(r) for r in ("vm_start", "vm_snapshot", "snapshot_copy", "snapshot_remove", "vm_stop"))


@pytest.mark.parametrize("activity", ["wake", "rollback", "snapshot", "copy"])
def test_killed_in_what_the_broker_does(node, activity):
    if activity in ("wake", "copy"):
        sandbox_id, key = suspended(node)
    else:
        sandbox_id, key = node.running(), "snp_" + "0" * 26
        node.broker.snapshots.add(key)
    node.broker.slow.update(vm_start=0.5, vm_snapshot=0.5, snapshot_copy=0.5)
    before = doing(node)
    wanted = snapshot("snapshot")
    if activity == "wake":
        wake(node, sandbox_id, key)
    elif activity == "rollback":
        node.control.move(sandbox_id, "running", "rollback", generation=2, start={"snapshot_id": key})
    elif activity == "snapshot":
        node.control.move(sandbox_id, "running", "snapshot", snapshot=wanted)
    else:
        node.control.move(sandbox_id, "suspended", "snapshot", snapshot=wanted, start={"snapshot_id": key})
    node.broker.wait(lambda: doing(node) > before)
    restart(node)
    if activity in ("wake", "rollback"):
        reported(node, sandbox_id, "running", generation=2)
    else:
        node.control.wait_for(lambda: node.control.snapshots.get(wanted["id"]) == "ready")
    time.sleep(0.3)
    assert len([v for v in node.broker.vms if v == sandbox_id]) == (0 if activity == "copy" else 1)


@pytest.mark.parametrize("activity", ["suspend", "snapshot", "copy", "wake", "rollback", "gone"])
@pytest.mark.parametrize("when", ["before", "working"])
def test_the_broker_away_in(node, activity, when):
    if activity in ("wake", "copy"):
        sandbox_id, key = suspended(node)
    else:
        sandbox_id, key = node.running(), "snp_" + "0" * 26
        node.broker.snapshots.add(key)
    if when == "before":
        node.broker.stop()
    else:
        node.broker.slow.update(vm_start=0.4, vm_snapshot=0.4, snapshot_copy=0.4, snapshot_remove=0.4, vm_stop=0.4)
    before = doing(node)
    wanted = snapshot("suspend" if activity == "suspend" else "snapshot")
    if activity == "suspend":
        node.control.move(sandbox_id, "suspended", "suspend", snapshot=wanted)
    elif activity == "snapshot":
        node.control.move(sandbox_id, "running", "snapshot", snapshot=wanted)
    elif activity == "copy":
        node.control.move(sandbox_id, "suspended", "snapshot", snapshot=wanted, start={"snapshot_id": key})
    elif activity == "wake":
        wake(node, sandbox_id, key)
    elif activity == "rollback":
        node.control.move(sandbox_id, "running", "rollback", generation=2, start={"snapshot_id": key})
    else:
        with node.control.lock:
            node.control.gone.add(key)
            node.control.changed()
    if when == "working":
        node.broker.wait(lambda: doing(node) > before)
        node.broker.stop()
        node.broker.quiet()
        node.broker.slow.clear()
    else:
        time.sleep(0.2)
    node.broker.start()
    if activity == "suspend":
        reported(node, sandbox_id, "suspended")
    elif activity in ("snapshot", "copy"):
        node.control.wait_for(lambda: node.control.snapshots.get(wanted["id"]) == "ready")
    elif activity == "gone":
        node.control.wait_for(lambda: key in node.control.removed)
    else:
        reported(node, sandbox_id, "running", generation=2)
    assert "failed" not in {r["state"] for r in node.control.reports(sandbox_id)}
