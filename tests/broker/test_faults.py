# SPDX-License-Identifier: Apache-2.0
"""Promise: wherever a start, a removal or a seal is cut off (a step fails, the disk is full, the job dies, the broker dies), the answer
says so, and after the failure, or after the next broker's sweep, nothing is left on the host."""

import os
import signal
import time

import pytest

from driver import MIB, Broker, Refused, UID_BASE, alive, look
from lib import hostdiff
from lib.sizes import size

JOB_STEPS = ["start.source", "start.engine", "start.directory", "start.disk", "start.state", "start.boot_files", "start.sockets", "start.cgroup",
             "start.config", "start.mounts", "start.fork", "start.ready", "start.record", "start.release", "start.confirm"]
CHILD_STEPS = ["vm.cgroup", "vm.network", "vm.root", "vm.drop", "vm.exec", "stub.root", "stub.drop"]


@pytest.fixture(scope="module")
def faulty():
    b = Broker(uid_base=UID_BASE + 30000)
    try:
        b.start()
        b.image_template, b.image_key = b.image()
        b.before = look(b)
        yield b
    finally:
        if b.process.poll() is None:
            b.stop()
        b.start()
        b.remove()


def restart(broker, fault=None):
    if broker.process.poll() is None:
        broker.stop()
    return broker.start(fault)


def left(broker):
    """What a broker without faults finds and sweeps must be all there was."""
    end = time.monotonic() + 30
    while (d := hostdiff.diff(broker.before, look(broker))) and time.monotonic() < end:
        time.sleep(0.05)
    return d


START_FAULTS = [(point, action, mode) for point in JOB_STEPS + CHILD_STEPS for action, mode in
                (("error", "clone"), ("error", "template_boot"), ("enospc", "template_boot"), ("kill", "clone"))]
SEAL_FAULTS = [(point, action) for point in ("seal.move", "seal.manifest", "seal.publish") for action in ("error", "kill", "kill_broker")]


# At the small size each point has one fault, and each fault comes in turn.
@pytest.mark.parametrize("point,action,mode", size([f for i, f in enumerate(START_FAULTS) if i % 4 == i // 4 % 4], START_FAULTS))
def test_start_fails(faulty, point, action, mode):
    """The broker itself removes what there was before it answers."""
    restart(faulty, "%s:%s" % (point, action))
    with pytest.raises(Refused) as e:
        faulty.start_vm(faulty.image_template, mode=mode, **({"snapshot": faulty.image_key} if mode == "clone" else {}))
    code = e.value.args[0]
    assert code == {"error": "io", "enospc": "no_space"}.get(action, "internal" if point in JOB_STEPS else "vmm")
    assert faulty.client.call("vm_list")["vms"] == []
    assert not left(faulty)
    assert faulty.client.call("sweep", known=[])["removed"] == []


@pytest.mark.parametrize("point", JOB_STEPS + CHILD_STEPS)
def test_broker_dies_during_a_start(faulty, point):
    in_jail = point in CHILD_STEPS  # from where nobody can kill the broker: it is done from outside while the step stalls
    restart(faulty, point + (":sleep=4000" if in_jail else ":kill_broker"))
    id, seq = faulty.start_vm(faulty.image_template, snapshot=faulty.image_key, wait=False)
    if in_jail:
        time.sleep(0.7)
        faulty.process.kill()
    assert faulty.wait_dead() == -signal.SIGKILL
    faulty.start()
    listed = faulty.client.call("vm_list")["vms"]
    if point in ("start.release", "start.confirm", "vm.exec"):  # space-vm may or may not have been let go
        assert [v["id"] for v in listed] in ([], [id])
    else:
        assert listed == []
    for v in listed:
        faulty.client.call("vm_stop", id=v["id"])
    faulty.client.call("sweep", known=[])
    assert not left(faulty)


def test_started_vm_survives_the_death_of_the_broker_at_the_last_step(faulty):
    restart(faulty, "start.confirm:kill_broker")
    id, seq = faulty.start_vm(faulty.image_template, snapshot=faulty.image_key, wait=False)
    faulty.wait_dead()
    faulty.start()
    vm, = faulty.client.call("vm_list")["vms"]
    assert vm["id"] == id and vm["alive"]
    assert faulty.report(id)["vmm"]["pid"] == 1
    faulty.client.call("vm_stop", id=id)
    assert not left(faulty)


@pytest.mark.parametrize("action", ["error", "kill"])
@pytest.mark.parametrize("point", ["remove.dead", "remove.files"])
def test_removal_fails_and_is_repeated(faulty, point, action):
    restart(faulty)
    vm = faulty.start_vm(faulty.image_template, snapshot=faulty.image_key)
    restart(faulty, "%s:%s" % (point, action))
    with pytest.raises(Refused):
        faulty.client.call("vm_stop", id=vm["id"])
    listed, = faulty.client.call("vm_list")["vms"]  # kept, so that it is not forgotten
    assert listed["id"] == vm["id"] and not listed["alive"]
    restart(faulty)
    assert faulty.client.call("vm_stop", id=vm["id"]) == {"existed": True}
    assert not left(faulty)


@pytest.mark.parametrize("point", ["remove.dead", "remove.files"])
def test_broker_dies_during_a_removal(faulty, point):
    restart(faulty)
    vm = faulty.start_vm(faulty.image_template, snapshot=faulty.image_key)
    restart(faulty, point + ":kill_broker")
    faulty.client.send("vm_stop", id=vm["id"])
    faulty.wait_dead()
    faulty.start()
    for v in faulty.client.call("vm_list")["vms"]:
        faulty.client.call("vm_stop", id=v["id"])
    faulty.client.call("sweep", known=[])
    assert not left(faulty)


@pytest.mark.parametrize("point,action", size(SEAL_FAULTS[::4], SEAL_FAULTS))
def test_seal_is_cut_off_and_taken_up_again(faulty, point, action):
    restart(faulty, "%s:%s" % (point, action))
    template = faulty.template()
    boot = faulty.start_vm(template, mode="template_boot")
    faulty.report(boot["id"])
    faulty.exit_vm(boot)
    key = os.urandom(16).hex()
    seq = faulty.client.send("snapshot_seal", id=boot["id"], snapshot=key, manifest={})
    if action == "kill_broker":
        faulty.wait_dead()
    else:
        with pytest.raises(Refused):
            faulty.client.reply(seq)
    restart(faulty)
    assert key not in faulty.client.call("template_list")["snapshots"]
    faulty.client.call("sweep", known=[])  # the boot is in vm_list: its half-made snapshot stays
    faulty.client.call("snapshot_seal", id=boot["id"], snapshot=key, manifest={})
    faulty.client.call("vm_stop", id=boot["id"])
    vm = faulty.start_vm(template, snapshot=key)
    assert faulty.report(vm["id"])["vmm"]["pid"] == 1
    faulty.client.call("vm_stop", id=vm["id"])
    faulty.client.call("template_remove", template=template)
    assert not left(faulty)


def test_interrupted_seal_goes_with_its_boot(faulty):
    restart(faulty, "seal.manifest:error")
    boot = faulty.start_vm(faulty.image_template, mode="template_boot")
    faulty.report(boot["id"])
    faulty.exit_vm(boot)
    with pytest.raises(Refused):
        faulty.client.call("snapshot_seal", id=boot["id"], snapshot="a" * 32, manifest={})
    faulty.client.call("vm_stop", id=boot["id"])
    assert not left(faulty)


def test_a_start_that_hangs_is_ended(faulty):
    """A child that never reports: the job gives up, and everything goes."""
    restart(faulty, "stub.root:sleep=60000")
    began = time.monotonic()
    with pytest.raises(Refused) as e:
        faulty.start_vm(faulty.image_template, snapshot=faulty.image_key)
    assert e.value.args[0] == "timeout" and time.monotonic() - began < 60
    assert not left(faulty)


def fill(path, reserve=0):
    """Until the file system has no room, data and metadata."""
    names = []
    for size in (16 * MIB, MIB, 64 * 1024, 4096, 1):
        while True:
            name = path / ("fill%d" % len(names))
            try:
                fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                names.append(name)
                try:
                    if os.write(fd, os.urandom(min(size, MIB)) * max(1, size // MIB)) < size:
                        raise OSError(28, "short")
                    os.fsync(fd)
                finally:
                    os.close(fd)
            except OSError:
                break
    return names


def test_full_store():
    """Real: a store of the smallest size, filled to the last byte. A start says no_space or works, and a failed one leaves nothing; with
    room again everything works."""
    b = Broker(store_mib=1024, uid_base=UID_BASE + 40000)
    try:
        b.start()
        template = b.template()
        boot = b.start_vm(template, mode="template_boot")
        b.report(boot["id"])
        b.exit_vm(boot)
        names = fill(b.state / "store")
        before = look(b)
        codes = []
        for _ in range(3):
            try:
                vm = b.start_vm(template, mode="template_boot")
                codes.append("ok")
                b.client.call("vm_stop", id=vm["id"])
            except Refused as e:
                codes.append(e.args[0])
        sealed = None
        try:
            b.client.call("snapshot_seal", id=boot["id"], snapshot="a" * 32, manifest={"x": "y" * 10000})
            sealed = "ok"
        except Refused as e:
            sealed = e.args[0]
        print("full store: starts %s, seal %s" % (codes, sealed))
        assert set(codes) <= {"ok", "no_space"} and sealed in ("ok", "no_space")
        assert not hostdiff.diff(before, look(b), ignore=("files",))
        assert len(b.client.call("vm_list")["vms"]) == 1
        for name in names:
            name.unlink()
        b.client.call("snapshot_seal", id=boot["id"], snapshot="a" * 32, manifest={})
        b.client.call("vm_stop", id=boot["id"])
        vm = b.start_vm(template, snapshot="a" * 32)
        assert alive(vm["pid"])
    finally:
        b.remove()
