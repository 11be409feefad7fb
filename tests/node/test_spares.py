# SPDX-License-Identifier: Apache-2.0
"""Blanks and warm pools: hit, miss, dead and outdated members, the race for one, restarts in the middle, children of a fork."""

import threading
import time

import pytest

from fakes import new_id
from test_failures import refuse
from test_pause import fresh, reported, snapshot

DIGEST = "d" * 64
MANIFEST = {"env": {"PATH": "/bin", "LANG": "C"}, "workdir": "/w", "user": "u", "start_command": None, "readiness_probe": None}


def pool(size, **fields):
    return {"pool_id": "pool_1", "template": {"digest": DIGEST, "manifest": MANIFEST}, "resources": {"vcpus": 1, "memory_mib": 128},
            "size": size, **fields}


def set_pools(node, *pools):
    with node.control.lock:
        node.control.pools = list(pools)
        node.control.changed()


def of_state(node, state):
    return [vm for vm in list(node.broker.vms.values()) if vm.state == state and vm.id.startswith("spr_")]


def pool_says(node, **fields):
    """Until the node's last report says so of the pool."""
    def found():
        pool = node.control.pool_reports[-1].get("pool_1") if node.control.pool_reports else None
        return pool and all(pool[k] == v for k, v in fields.items())
    node.control.wait_for(found)


def wait_warm(node, n):
    node.broker.wait(lambda: len(of_state(node, "warm")) == n)
    if node.control.pools:
        pool_says(node, warm=n)  # the node has heard it too
    else:
        time.sleep(0.5)


@pytest.fixture
def warm(cold):
    cold.start()
    set_pools(cold, pool(2))
    wait_warm(cold, 2)
    return cold


def test_a_hit(warm):
    members = {vm.id for vm in of_state(warm, "warm")}
    sandbox_id = warm.want(generation=3)
    report = warm.control.wait_report(sandbox_id, "running")
    assert report["start_kind"] == "warm" and report["ready"] and report["generation"] == 3
    vm = warm.broker.vms[sandbox_id]
    assert vm.request["id"] in members and vm.called == sandbox_id
    assert vm.identity == {"hostname": "box", "machine_id": "0123456789abcdef" * 2, "env": ["PATH=/bin", "LANG=de", "MINE=1"]}
    assert not warm.broker.count("vm_start", mode="clone")
    states = [r["state"] for r in warm.control.reports(sandbox_id)]
    slow = report["timings"]["node_total_ms"] > 25  # what takes 40 ms is told by its beginning too
    assert states == ["running"] or slow and states == ["creating", "running"]
    wait_warm(warm, 2)
    pool_says(warm, pool_id="pool_1", warm=2, filling=0, target=2, hits=1, misses=0)
    warm.control.delete(sandbox_id)
    warm.control.wait_report(sandbox_id, "deleted")


def test_bind_and_identify_do_not_wait_for_each_other(warm):
    warm.broker.slow["vm_bind"] = 2
    sandbox_id = warm.want()
    warm.broker.wait(lambda: warm.broker.count("vm_bind"))
    vm = warm.broker.vms[next(f["id"] for r, f in warm.broker.requests if r == "vm_bind")]
    warm.broker.wait(lambda: vm.state == "running")
    assert vm.asked == ["identify"] and vm.id.startswith("spr_")
    time.sleep(0.2)
    assert not warm.control.reports(sandbox_id) or warm.control.reports(sandbox_id)[-1]["state"] == "creating"
    assert warm.control.wait_report(sandbox_id, "running")["start_kind"] == "warm"


def test_a_burst_takes_all_and_the_rest_misses(warm):
    warm.broker.late["vm_bind"] = 0.3
    rows = [warm.row() for _ in range(5)]
    with warm.control.lock:  # all in one list
        warm.control.sandboxes.update({row["id"]: row for row in rows})
        warm.control.changed()
    ids = [row["id"] for row in rows]
    kinds = [warm.control.wait_report(i, "running")["start_kind"] for i in ids]
    assert sorted(kinds) == ["cold"] * 3 + ["warm"] * 2
    owners = [warm.broker.vms[i].request["id"] for i in ids]
    assert len(set(owners)) == 5
    pool_says(warm, misses=3)


def test_another_size_misses(warm):
    assert warm.control.wait_report(warm.want(resources={"vcpus": 2, "memory_mib": 128}), "running")["start_kind"] == "cold"
    assert len(of_state(warm, "warm")) == 2


def test_a_dead_member_is_replaced(warm):
    victim = of_state(warm, "warm")[0]
    victim.die()
    warm.broker.wait(lambda: victim.id not in warm.broker.vms)
    wait_warm(warm, 2)
    assert warm.control.wait_report(warm.want(), "running")["start_kind"] == "warm"


def test_a_member_that_does_not_answer_is_replaced(warm):
    victim = of_state(warm, "warm")[0]
    victim.lifecycle = lambda *_: None
    victim.__class__ = type("Mute", (victim.__class__,), {"send": staticmethod(lambda client, message: None)})
    warm.broker.wait(lambda: victim.id not in warm.broker.vms)


@pytest.mark.parametrize("how", ["refused", "dies", "bind_lost", "bind_conflict"])
def test_a_member_that_fails_the_sandbox(warm, how):
    """The sandbox gets a VM of its own; what became of the member is removed."""
    members = {vm.id for vm in of_state(warm, "warm")}
    if how == "refused":
        warm.broker.hooks["identify"] = lambda vm: "guest_silent"
    elif how == "dies":
        warm.broker.hooks["identify"] = lambda vm: vm.die() or "silent"
    else:
        warm.broker.fail["vm_bind"] = refuse("not_found" if how == "bind_lost" else "conflict", "id")
    sandbox_id = warm.want()
    report = warm.control.wait_report(sandbox_id, "running")
    assert report["start_kind"] == "cold" and warm.broker.vms[sandbox_id].request["id"] == sandbox_id
    warm.broker.hooks.clear()
    warm.broker.fail.clear()
    taken = next(f["id"] for r, f in warm.broker.requests if r == "vm_bind")
    assert taken in members
    warm.broker.wait(lambda: taken not in warm.broker.vms)
    wait_warm(warm, 2)
    assert "failed" not in {r["state"] for r in warm.control.reports(sandbox_id)}


def test_an_outdated_pool_is_replaced(warm):
    old = {vm.id for vm in of_state(warm, "warm")}
    warm.broker.templates.add("e" * 64)
    set_pools(warm, pool(2, template={"digest": "e" * 64, "manifest": MANIFEST}))
    warm.broker.wait(lambda: not old & set(warm.broker.vms))
    wait_warm(warm, 2)
    assert {vm.request["template"] for vm in of_state(warm, "warm")} == {"e" * 64}
    set_pools(warm)
    warm.broker.wait(lambda: not warm.broker.vms)


def test_a_pool_shrinks(warm):
    set_pools(warm, pool(1))
    wait_warm(warm, 1)


def test_delete_during_a_bind(warm):
    warm.broker.slow["vm_bind"] = 0.5
    sandbox_id = warm.want()
    warm.broker.wait(lambda: warm.broker.count("vm_bind"))
    warm.control.delete(sandbox_id)
    warm.control.wait_report(sandbox_id, "deleted")
    taken = next(f["id"] for r, f in warm.broker.requests if r == "vm_bind")
    warm.broker.wait(lambda: taken not in warm.broker.vms and sandbox_id not in warm.broker.vms)
    assert not [r for r in warm.control.reports(sandbox_id) if r["state"] == "running"]


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("identified", [True, False])
def test_the_node_dies_in_a_bind(warm, cut, identified):
    """What the broker wrote down decides: the VM is the sandbox's, or it goes and the sandbox gets another one."""
    warm.broker.slow["vm_bind"] = 1 if cut == "before" else 0
    warm.broker.late["vm_bind"] = 1
    if not identified:
        warm.broker.hooks["identify"] = lambda vm: "silent"
    if cut == "before":
        warm.broker.fail["vm_bind"] = refuse("unavailable", text="the request never arrived")
    sandbox_id = warm.want()
    warm.broker.wait(lambda: warm.broker.count("vm_bind"))
    taken = next(f["id"] for r, f in warm.broker.requests if r == "vm_bind")
    member = next(vm for vm in list(warm.broker.vms.values()) if vm.request["id"] == taken)
    warm.broker.wait(lambda: member.state == "running" if identified else member.asked)
    warm.kill()
    warm.broker.quiet()
    warm.broker.slow.clear()
    warm.broker.late.clear()
    warm.broker.fail.clear()
    warm.broker.hooks.clear()
    fresh(warm)
    warm.start()
    report = warm.control.wait_report(sandbox_id, "running")
    vm = warm.broker.vms[sandbox_id]
    assert report["ready"] and vm.called == sandbox_id and vm.identity["hostname"] == "box"
    if identified or cut == "after":  # else it is as warm as it was, and may be taken as well as another, or stay
        assert (vm.request["id"] == taken) == (cut == "after")
        warm.broker.wait(lambda: taken not in warm.broker.vms)
    assert len([v for v in warm.broker.vms.values() if v.called == sandbox_id]) == 1


def test_the_broker_dies_in_a_bind(warm):
    warm.broker.late["vm_bind"] = 1
    sandbox_id = warm.want()
    warm.broker.wait(lambda: sandbox_id in warm.broker.vms)
    warm.broker.stop()
    warm.broker.quiet()
    warm.broker.late.clear()
    assert not [r for r in warm.control.reports(sandbox_id) if r["state"] == "running"]
    warm.broker.start()
    assert warm.control.wait_report(sandbox_id, "running")["start_kind"] == "warm"


def test_spares_outlive_the_node(cold):
    cold.start(blank_vmms=1)
    set_pools(cold, pool(2))
    wait_warm(cold, 2)
    cold.broker.wait(lambda: len(of_state(cold, "blank")) >= 1)
    before = {vm.id for vm in of_state(cold, "warm")}
    blanks = {vm.id for vm in of_state(cold, "blank")}
    cold.kill()
    dead = of_state(cold, "warm")[0]
    dead.die()
    cold.start(blank_vmms=1)
    wait_warm(cold, 2)
    cold.broker.wait(lambda: dead.id not in cold.broker.vms)
    assert before - {dead.id} <= {vm.id for vm in of_state(cold, "warm")}
    assert cold.control.wait_report(cold.want(), "running")["start_kind"] == "warm"
    assert blanks & set(cold.broker.vms) or of_state(cold, "warm")


def test_spares_of_another_engine_go(cold):
    cold.start()
    set_pools(cold, pool(2))
    wait_warm(cold, 2)
    old = {vm.id for vm in of_state(cold, "warm")}
    cold.stop()
    (cold.state_dir / "kernels" / "stock" / "initrd.cpio").write_bytes(b"another agent")
    cold.start()
    cold.broker.wait(lambda: not old & set(cold.broker.vms))
    wait_warm(cold, 2)


def test_a_template_in_demand_gets_warm_ones(cold):
    cold.start(pool_demand_max=2)
    ids = [cold.running() for _ in range(3)]
    wait_warm(cold, 2)
    assert cold.control.wait_report(cold.want(), "running")["start_kind"] == "warm"
    assert {cold.control.wait_report(i, "running")["start_kind"] for i in ids} == {"cold"}


# ---- blanks

@pytest.fixture
def stocked(cold):
    cold.start(blank_vmms=2)
    cold.running()
    cold.broker.wait(lambda: len([v for v in of_state(cold, "blank") if v.request["memory_mib"] == 128]) == 2)
    time.sleep(0.5)  # the node has heard it too
    return cold


def test_a_blank_serves_a_start(stocked):
    sandbox_id = stocked.want()
    assert stocked.control.wait_report(sandbox_id, "running")["start_kind"] == "blank"
    vm = stocked.broker.vms[sandbox_id]
    assert vm.request["id"].startswith("spr_") and vm.identity["hostname"] == "box" and vm.generation == 1
    stocked.broker.wait(lambda: len(of_state(stocked, "blank")) == 2)


@pytest.mark.parametrize("how", ["refused", "dies", "fails"])
def test_a_blank_that_fails_the_sandbox(stocked, how):
    if how == "refused":
        stocked.broker.fail["vm_load"] = refuse("io")
    elif how == "dies":
        stocked.broker.scripts["load"] = lambda vm: vm.die()
    else:
        stocked.broker.scripts["load"] = lambda vm: vm.set("failed", error=("vmm_failed", "did not restore"))
    sandbox_id = stocked.want()
    assert stocked.control.wait_report(sandbox_id, "running")["start_kind"] == "cold"
    taken = next(f["id"] for r, f in stocked.broker.requests if r == "vm_load")
    stocked.broker.wait(lambda: taken not in stocked.broker.vms)


def test_the_broker_dies_in_a_load(stocked):
    stocked.broker.late["vm_load"] = 1
    sandbox_id = stocked.want()
    stocked.broker.wait(lambda: sandbox_id in stocked.broker.vms)
    stocked.broker.stop()
    stocked.broker.quiet()
    stocked.broker.late.clear()
    stocked.broker.start()
    assert stocked.control.wait_report(sandbox_id, "running")["start_kind"] == "blank"


def test_blanks_that_do_not_come_up_are_not_tried_for_ever(cold):
    cold.broker.fail["vm_start"] = refuse("vmm", mode="blank")
    cold.start(blank_vmms=2)
    cold.control.wait_for(lambda: cold.control.polls)
    time.sleep(3)
    assert cold.broker.count("vm_start", mode="blank") <= 2


def test_spares_wait_until_the_node_is_idle(cold):
    """While a start is in flight nothing is begun for the stock."""
    cold.start(blank_vmms=2)
    hold = threading.Event()
    cold.broker.scripts["clone"] = lambda vm: (hold.wait(20), vm.set("running"))
    cold.broker.fail["vm_start"] = lambda fields: fields["mode"] == "blank" and starts.append(1)
    starts = []
    sandbox_id = cold.want()
    cold.broker.wait(lambda: sandbox_id in cold.broker.vms)
    time.sleep(1)  # what was begun before is counted
    seen = len(starts)
    time.sleep(1)
    assert len(starts) == seen
    hold.set()
    cold.control.wait_report(sandbox_id, "running")
    cold.broker.wait(lambda: len(starts) > seen)


def test_spares_give_way(cold):
    """Memory promised to spares counts, until a sandbox wants it."""
    total = int(next(line for line in open("/proc/meminfo", encoding="ascii") if line.startswith("MemTotal")).split()[1]) // 1024
    available = int(next(line for line in open("/proc/meminfo", encoding="ascii")
                         if line.startswith("MemAvailable")).split()[1]) // 1024
    if available < total - 700 + 600:
        pytest.skip("the host is too full to tell")
    cold.start(memory_reserve_mib=max(1, total - 700), blank_vmms=0)
    set_pools(cold, pool(9))
    cold.broker.wait(lambda: len(of_state(cold, "warm")) == 3)  # 3 × (128 + 64) MiB of 700
    sandbox_id = cold.want(resources={"vcpus": 1, "memory_mib": 500})
    cold.control.wait_report(sandbox_id, "running")
    cold.broker.wait(lambda: len(of_state(cold, "warm")) == 0)


# ---- forks

def fork(node, n, parent=None):
    parent = parent or node.running()
    key = snapshot("fork")
    with node.control.lock:
        children = [node.row(start={"snapshot_id": key["id"]}) for _ in range(n)]
        for row in children:
            node.control.sandboxes[row["id"]] = row
    node.control.move(parent, "running", "fork", snapshot=key)
    return parent, key["id"], [row["id"] for row in children]


def test_twenty_children_wait_for_one_snapshot(node):
    node.broker.slow["vm_snapshot"] = 0.4
    parent, key, children = fork(node, 20)
    for child in children:
        assert node.control.wait_report(child, "running")["start_kind"] == "cold"
    assert node.broker.count("vm_snapshot", id=parent) == 1 and node.broker.count("snapshot_stat") <= 1
    assert {node.broker.vms[c].request["snapshot"] for c in children} == {key}
    assert node.broker.vms[parent].state == "running"


@pytest.mark.parametrize("how", ["fails", "deleted", "dies"])
def test_children_of_a_parent_that_fails(node, how):
    node.broker.slow["vm_snapshot"] = 1
    if how == "fails":
        node.broker.fail["vm_snapshot"] = refuse("no_space")
    parent, _, children = fork(node, 3)
    node.broker.wait(lambda: node.broker.count("vm_snapshot"))
    time.sleep(0.1)
    if how == "deleted":
        node.control.delete(parent)
    elif how == "dies":
        node.broker.vms[parent].die()
    codes = {node.control.wait_report(c, "failed")["error"]["code"] for c in children}
    assert codes <= {{"fails": "host_disk_full", "deleted": "parent_gone", "dies": "vmm_killed"}[how], "snapshot_missing"}


def test_a_child_of_nothing(node):
    child = node.want(start={"snapshot_id": new_id("snp")})
    assert node.control.wait_report(child, "failed")["error"]["code"] == "snapshot_missing"


def test_a_fork_of_a_suspended_one(node):
    from test_pause import suspended
    parent, key = suspended(node)
    children = [node.want(start={"snapshot_id": key}) for _ in range(3)]
    for child in children:
        node.control.wait_report(child, "running")
    assert parent not in node.broker.vms


def test_children_through_a_broker_that_comes_back(node):
    node.broker.slow["vm_snapshot"] = 0.3
    _, key, children = fork(node, 4)
    node.broker.wait(lambda: node.broker.count("vm_snapshot"))
    node.broker.stop()
    node.broker.quiet()
    node.broker.slow.clear()
    node.broker.start()
    for child in children:
        node.control.wait_report(child, "running")
    assert key in node.broker.snapshots


# ---- snapshots that go

def test_snapshots_gone(node):
    key = new_id("snp")
    node.broker.snapshots.add(key)
    node.broker.fail["snapshot_remove"] = refuse("conflict", text="in use", times=1)
    with node.control.lock:
        node.control.snapshots[key] = "deleting"
        node.control.gone.add(key)
        node.control.changed()
    node.control.wait_for(lambda: key in node.control.removed)
    assert key not in node.broker.snapshots and node.broker.count("snapshot_remove") == 2


def test_garbage(cold):
    known, stray = new_id("snp"), new_id("snp")
    cold.broker.snapshots |= {known, stray}
    cold.control.snapshots[known] = "ready"
    unused, needed = "a" * 64, "b" * 64
    cold.broker.engines = {unused: 0, needed: 1}
    cold.broker.page = 1
    cold.start(garbage_grace_s=1)
    cold.control.wait_for(lambda: cold.control.polls)
    for _ in range(2):
        cold.broker.stop()  # every connection begins with a pass
        cold.broker.start()
        time.sleep(1.3)
    cold.broker.wait(lambda: stray not in cold.broker.snapshots)
    cold.broker.wait(lambda: unused not in cold.broker.engines)
    assert known in cold.broker.snapshots and set(cold.control.asked) == {known, stray}
    assert set(cold.broker.engines) == {needed}
    cold.control.wait_for(lambda: cold.control.garbage and cold.control.garbage[0] == {"snapshots": 1, "engines": 1, "bytes": 51000})
