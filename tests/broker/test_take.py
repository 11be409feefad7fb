# SPDX-License-Identifier: Apache-2.0
"""Promise: a snapshot of a live VM is complete and durable or is not there; what it shares with its base is not read again; whatever is cut
off leaves the VM as it was and nothing on the host."""

import json
import os
import stat
import time

import pytest

from driver import MIB, Broker, Refused, UID_BASE, alive, look, refused, vm_id
from lib import hostdiff
from lib.sizes import size
from test_faults import left, restart
from test_seal import pieces, tamper

STEPS = ["begin", "clone", "flush", "ask", "copy", "copied", "stop", "stopped", "disk", "own", "sync", "base", "hash", "fsync", "manifest", "publish",
         "record", "committed"]


def clone(broker):
    return broker.start_vm(broker.image_template, snapshot=broker.image_key)


def path_of(broker, key):
    return broker.state / "store" / "snapshots" / key


def names(broker):
    return sorted(os.listdir(broker.state / "store" / "snapshots"))


def test_take(broker):
    vm = clone(broker)
    broker.tell(vm["id"], "write 7")
    key, reply = broker.take(vm)
    assert reply["existed"] is False and reply["pages"] == 2 and reply["stall_us"] == 1234
    path = path_of(broker, key)
    assert sorted(os.listdir(path)) == ["devices", "disk.img", "disk.img.pieces", "manifest.json", "memory", "memory.pieces"]
    for name in os.listdir(path):
        st = (path / name).stat()
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (0, 0, 0o444), name
    memory, disk = (path / "memory").read_bytes(), (path / "disk.img").read_bytes()
    base = (path_of(broker, broker.image_key) / "memory").read_bytes()
    assert memory[MIB:MIB + 10] == b"snapshot 1" and memory[MIB + 8192:MIB + 8202] == b"snapshot 1"
    assert memory[:MIB] == base[:MIB] and memory[2 * MIB:] == base[2 * MIB:]
    assert disk[7 * 256 * 1024:][:6] == b"disk 7" and disk[8192:8212] == b"written by the guest"
    for name, data in (("memory", memory), ("disk.img", disk)):
        assert (path / (name + ".pieces")).read_bytes() == pieces(data), name
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["base"] == broker.image_key and manifest["node"] == {"n": 1} and manifest["template"] == broker.image_template
    assert manifest["memory_mib"] == 64 and manifest["format"] == 2
    assert reply["pieces_hashed"] <= 2 + 2  # what was written, and no more
    assert reply["exclusive_bytes"] < MIB < reply["disk_bytes"]
    assert broker.state_of(vm["id"]) == {"paused": False, "snapshots": 1, "snapshot": key, "committed": key}
    print(reply["timings_us"])


def disk(broker, vm, key=None):
    return broker.take(vm, key, content="disk")


def manifest_of(broker, key):
    return json.loads((path_of(broker, key) / "manifest.json").read_text())


def test_take_the_disk_alone(broker):
    """No memory, no word of it to space-vm; the next one with memory begins where the last such left off."""
    vm = clone(broker)
    broker.tell(vm["id"], "write 7")
    key, reply = disk(broker, vm)
    assert (reply["existed"], reply["pages"], reply["memory_bytes"], reply["stall_us"], reply["extents"]) == (False, 0, 0, 321, 0)
    path = path_of(broker, key)
    assert sorted(os.listdir(path)) == ["disk.img", "disk.img.pieces", "manifest.json"]
    for name in os.listdir(path):
        st = (path / name).stat()
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (0, 0, 0o444), name
    data = (path / "disk.img").read_bytes()
    assert data[7 * 256 * 1024:][:6] == b"disk 7" and (path / "disk.img.pieces").read_bytes() == pieces(data)
    manifest = manifest_of(broker, key)
    assert manifest["content"] == "disk" and manifest["base"] == broker.image_key and list(manifest["files"]) == ["disk.img"]
    assert reply["pieces_hashed"] == 1 and broker.state_of(vm["id"])["committed"] == ""
    stats = broker.client.call("snapshot_stat", snapshot=key)
    assert stats["memory_bytes"] == 0 and stats["disk_bytes"] > 0 and reply["exclusive_bytes"] < MIB
    broker.tell(vm["id"], "write 9")
    second, reply = disk(broker, vm)
    assert reply["pieces_hashed"] == 1 and manifest_of(broker, second)["base"] == key  # only what came since
    full, reply = broker.take(vm)
    assert manifest_of(broker, full)["base"] == broker.image_key and manifest_of(broker, full)["content"] == "full"
    assert reply["pieces_hashed"] <= 2, "memory's pieces; the disk is as it was"
    for name in ("memory", "disk.img"):
        assert (path_of(broker, full) / (name + ".pieces")).read_bytes() == pieces((path_of(broker, full) / name).read_bytes())
    assert broker.state_of(vm["id"])["committed"] == full
    _, again = disk(broker, vm, key)
    assert again["existed"]


def test_disks_come_and_go_beside_the_base(broker):
    """Nothing depends on one: it goes while its VM lives, also between two others and over a restart."""
    vm = clone(broker)
    keys = []
    for i in range(3):
        broker.tell(vm["id"], "write %d" % i)
        keys.append(disk(broker, vm)[0])
    broker.client.call("snapshot_remove", snapshot=keys[1])
    broker.client.call("snapshot_remove", snapshot=keys[2])
    refused("conflict", broker.client.call, "snapshot_remove", snapshot=broker.image_key)
    broker.stop()
    broker.start()
    key, reply = broker.take(vm)
    assert (path_of(broker, key) / "disk.img.pieces").read_bytes() == pieces((path_of(broker, key) / "disk.img").read_bytes())
    copied = vm_id("snp")
    assert broker.client.call("snapshot_copy", snapshot=keys[0], to=copied)["memory_bytes"] == 0
    assert sorted(os.listdir(path_of(broker, copied))) == ["disk.img", "disk.img.pieces", "manifest.json"]
    broker.client.call("snapshot_remove", snapshot=keys[0])
    booted = broker.start_vm(broker.image_template, mode="boot", snapshot=copied)
    assert alive(booted["pid"])


def test_boot_on_a_disk(broker):
    """RAM is an empty file that nobody can write to; its first snapshot with memory begins with none."""
    vm = clone(broker)
    broker.tell(vm["id"], "write 5")
    key, _ = disk(broker, vm)
    full, _ = broker.take(vm)
    refused("invalid", broker.start_vm, broker.image_template, snapshot=key)
    refused("invalid", broker.start_vm, broker.image_template, mode="boot", snapshot=full)
    refused("not_found", broker.start_vm, broker.image_template, mode="boot", snapshot=vm_id("snp"))
    blank = broker.blank()
    refused("invalid", broker.load, blank, broker.image_template, key)
    booted = broker.start_vm(broker.image_template, mode="boot", snapshot=key)
    report = broker.report(booted["id"])
    fds = report["config"]["broker"]["fds"]
    assert sorted(fds) == ["control", "disk", "guest", "memory", "stub", "tap"] and report["config"]["broker"]["mode"] == "boot"
    memory = report["vm"]["fds"][str(fds["memory"])]
    assert memory == {"kind": "file", "access": os.O_RDONLY, "size": 64 * MIB}
    assert {"/vm/kernel", "/vm/initrd"} <= {f["path"] for f in report["vmm"]["files"]}
    own = broker.state / "store" / "sandboxes" / booted["id"]
    st = (own / "memory").stat()
    assert (st.st_uid, stat.S_IMODE(st.st_mode), st.st_blocks) == (0, 0o444, 0)
    assert (own / "disk.img").read_bytes()[5 * 256 * 1024:][:6] == b"disk 5"
    assert next(v for v in broker.client.call("vm_list")["vms"] if v["id"] == booted["id"])["mode"] == "boot"
    refused("conflict", broker.client.call, "snapshot_remove", snapshot=key)  # its base
    broker.stop()
    broker.start()
    refused("conflict", broker.client.call, "snapshot_remove", snapshot=key)
    mine, reply = broker.take(booted)
    assert manifest_of(broker, mine)["base"] == key and reply["pieces_hashed"] <= 2 + 1
    data = (path_of(broker, mine) / "memory").read_bytes()
    assert len(data) == 64 * MIB and data[MIB:MIB + 10] == b"snapshot 1" and not any(data[:MIB])
    assert (path_of(broker, mine) / "memory.pieces").read_bytes() == pieces(data)
    broker.client.call("snapshot_remove", snapshot=key)
    woken = broker.start_vm(broker.image_template, snapshot=mine)
    assert alive(woken["pid"]) and broker.take(woken)[1]["existed"] is False


def test_disk_that_was_changed_is_not_booted(broker):
    vm = clone(broker)
    key, _ = disk(broker, vm)
    broker.client.call("vm_stop", id=vm["id"])
    broker.stop()
    tamper(path_of(broker, key) / "disk.img", 100000, b"x")
    broker.start()
    refused("corrupt", broker.start_vm, broker.image_template, mode="boot", snapshot=key)


def test_again_by_name(broker):
    vm = clone(broker)
    key, first = broker.take(vm)
    _, again = broker.take(vm, key)
    assert again["existed"] and again["memory_bytes"] == first["memory_bytes"] and broker.state_of(vm["id"])["snapshots"] == 1
    broker.client.call("vm_stop", id=vm["id"])
    assert broker.take(vm, key)[1]["existed"]  # the VM is gone and it is still there
    refused("not_found", broker.take, vm)


def test_suspend_and_wake(broker):
    vm = clone(broker)
    key, _ = broker.take(vm, then="stop")
    assert broker.state_of(vm["id"])["paused"]
    broker.client.call("vm_stop", id=vm["id"])
    woken = broker.start_vm(broker.image_template, snapshot=key)
    key2, _ = broker.take(woken)
    assert json.loads((path_of(broker, key2) / "manifest.json").read_text())["base"] == key
    assert (path_of(broker, key2) / "memory").read_bytes()[MIB:MIB + 10] == b"snapshot 1"


def test_a_chain_is_checked_and_any_of_it_removable(broker):
    """Every one depends on nothing but its own files; the base of a live VM alone is in use."""
    vm = clone(broker)
    keys = [broker.take(vm)[0] for _ in range(4)]
    for key in keys[:3]:
        broker.client.call("snapshot_remove", snapshot=key)
    refused("conflict", broker.client.call, "snapshot_remove", snapshot=keys[3])
    broker.stop()
    broker.start()
    refused("conflict", broker.client.call, "snapshot_remove", snapshot=keys[3])
    assert [s["snapshot"] for s in broker.client.call("snapshot_list")["snapshots"]] == [keys[3]]
    key, reply = broker.take(vm)
    assert (path_of(broker, key) / "memory.pieces").read_bytes() == pieces((path_of(broker, key) / "memory").read_bytes())
    assert reply["pieces_hashed"] <= 2
    broker.client.call("vm_stop", id=vm["id"])
    other = broker.start_vm(broker.image_template, snapshot=key)  # hashed whole: of another broker's life
    assert alive(other["pid"])
    broker.client.call("snapshot_remove", snapshot=keys[3])


def test_snapshot_that_was_changed_is_not_loaded(broker):
    vm = clone(broker)
    key, _ = broker.take(vm)
    broker.client.call("vm_stop", id=vm["id"])
    broker.stop()
    tamper(path_of(broker, key) / "memory", 5 * MIB, b"x")
    broker.start()
    refused("corrupt", broker.start_vm, broker.image_template, snapshot=key)
    refused("corrupt", broker.client.call, "snapshot_copy", snapshot=key, to=vm_id("snp"))


def test_refused(broker):
    vm = clone(broker)
    broker.tell(vm["id"], "behave refuse")
    error = refused("guest", broker.take, vm)
    assert error["field"] == "guest_busy" and "not now" in error["text"]
    for how, code in (("garbage", "invalid"), ("die", "vmm"), ("no_devices", "vmm"), ("keep", "conflict")):
        broker.tell(vm["id"], "behave " + how)
        error = refused(code, broker.take, vm)
        assert error["text"], how
    assert names(broker) == [broker.image_key]
    assert not broker.state_of(vm["id"])["committed"]
    broker.take(vm)
    blank, boot = broker.blank(), broker.start_vm(broker.image_template, mode="template_boot")
    refused("conflict", broker.take, blank)
    refused("conflict", broker.take, boot)


@pytest.fixture
def stalling(broker):
    """Snapshots stand still in the middle: broker.stall(ms)."""
    def stall(ms):
        broker.stop()
        broker.start("snapshot.copied:sleep=%d" % ms)
    broker.stall = stall
    yield broker
    broker.stop()
    broker.start()


@pytest.mark.alone
def test_one_at_a_time(stalling):
    broker = stalling
    broker.stall(6000)
    a, b = clone(broker), clone(broker)
    key = vm_id("snp")
    ask = dict(id=a["id"], snapshot=key, then="resume", manifest={})
    seq = broker.client.send("vm_snapshot", **ask)
    refused("conflict", broker.take, a)
    refused("conflict", broker.take, b, key)
    refused("conflict", broker.client.call, "snapshot_copy", snapshot=broker.image_key, to=key)
    other = broker.client.send("vm_snapshot", **{**ask, "id": b["id"], "snapshot": vm_id("snp")})  # beside it
    broker.client.call("stat")
    assert seq not in broker.client.replies  # all of this while it stands still
    broker.client.reply(seq)
    first = time.monotonic()
    broker.client.reply(other)
    assert time.monotonic() - first < 5


@pytest.mark.alone
def test_a_stop_does_not_wait_for_a_long_snapshot(stalling):
    broker = stalling
    broker.stall(60000)
    vm = clone(broker)
    seq = broker.client.send("vm_snapshot", id=vm["id"], snapshot=vm_id("snp"), then="resume", manifest={})
    time.sleep(1)
    began = time.monotonic()
    assert broker.client.call("vm_stop", id=vm["id"]) == {"existed": True}
    assert time.monotonic() - began < 8
    refused("timeout", broker.client.reply, seq)
    assert names(broker) == [broker.image_key]


def test_copy_stat_list(broker):
    vm = clone(broker)
    key, _ = broker.take(vm)
    to = vm_id("snp")
    reply = broker.client.call("snapshot_copy", snapshot=key, to=to)
    assert reply["existed"] is False and reply["exclusive_bytes"] < 64 * 1024  # all of it shared; what is inline counts as its own
    assert broker.client.call("snapshot_copy", snapshot=key, to=to)["existed"] is True
    stats = broker.client.call("snapshot_stat", snapshot=key)
    assert stats["shared_bytes"] > stats["exclusive_bytes"] and stats["memory_bytes"] > 0
    rows = broker.client.call("snapshot_list")
    assert [r["snapshot"] for r in rows["snapshots"]] == sorted([key, to]) and rows["more"] is False
    assert [r["snapshot"] for r in broker.client.call("snapshot_list", after=sorted([key, to])[0])["snapshots"]] == [sorted([key, to])[1]]
    broker.client.call("vm_stop", id=vm["id"])
    broker.client.call("snapshot_remove", snapshot=key)
    woken = broker.start_vm(broker.image_template, snapshot=to)
    assert broker.take(woken)[1]["pieces_hashed"] <= 2
    refused("not_found", broker.client.call, "snapshot_copy", snapshot=key, to=vm_id("snp"))
    refused("not_found", broker.client.call, "snapshot_stat", snapshot=key)
    copied = vm_id("snp")
    broker.client.call("snapshot_copy", snapshot=broker.image_key, to=copied, manifest={"other": 1})
    assert json.loads((path_of(broker, copied) / "manifest.json").read_text())["node"] == {"other": 1}


def test_template_goes_and_its_sandboxes_snapshots_stay(broker):
    template, key = broker.image()
    vm = broker.start_vm(template, snapshot=key)
    mine, _ = broker.take(vm)
    broker.client.call("vm_stop", id=vm["id"])
    broker.client.call("template_remove", template=template)
    assert mine in names(broker) and key not in names(broker)
    woken = broker.start_vm(template, snapshot=mine)
    assert broker.report(woken["id"])["stub_pid"] == 2


def test_memory_in_very_many_extents_is_written_anew(broker):
    """Once no VM uses it; the bytes are the same, and so are their digests."""
    template = broker.template()
    boot = broker.start_vm(template, mode="template_boot")
    broker.report(boot["id"])
    broker.exit_vm(boot)
    with open(broker.state / "store" / "sandboxes" / boot["id"] / "memory", "r+b", buffering=0) as f:
        for page in range(0, 64 * MIB, 2 * 4096):
            f.seek(page)
            f.write(b"%08d" % page * 512)
    seed = os.urandom(16).hex()
    broker.client.call("snapshot_seal", id=boot["id"], snapshot=seed, manifest={})
    broker.client.call("vm_stop", id=boot["id"])
    vm = broker.start_vm(template, snapshot=seed)
    key, reply = broker.take(vm)
    assert reply["extents"] > 8000
    path = path_of(broker, key) / "memory"
    inode, data = path.stat().st_ino, path.read_bytes()
    broker.client.call("vm_stop", id=vm["id"])
    end = time.monotonic() + 60
    while path.stat().st_ino == inode:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert path.read_bytes() == data and stat.S_IMODE(path.stat().st_mode) == 0o444 and path.stat().st_uid == 0
    woken = broker.start_vm(template, snapshot=key)
    again = broker.take(woken)[1]
    assert again["extents"] < 1000 and again["pieces_hashed"] <= 3


@pytest.fixture(scope="module")
def faulty():
    b = Broker(uid_base=UID_BASE + 50000)
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


FAULTS = [(s, a) for s in STEPS for a in ("error", "enospc", "kill")]
CODES = {"error": "io", "enospc": "no_space", "kill": "internal"}


@pytest.mark.parametrize("step,action", size([f for i, f in enumerate(FAULTS) if i % 3 == i // 3 % 3], FAULTS))
def test_taking_fails(faulty, step, action):
    restart(faulty, "snapshot.%s:%s" % (step, action))
    vm = clone(faulty)
    faulty.report(vm["id"])  # its VMM is there by then
    running = look(faulty)
    key = vm_id("snp")
    try:
        faulty.take(vm, key)
        code = None
    except Refused as e:
        code = e.args[0]
    done = step == "committed" or (step == "record" and action == "kill")  # it was durable by then
    assert code == (None if done else CODES[action])
    assert names(faulty) == sorted([faulty.image_key] + [key] * done)
    if not done:
        assert not hostdiff.diff(running, look(faulty))
    faulty.tell(vm["id"], "write 3")
    assert not faulty.state_of(vm["id"])["paused"]
    restart(faulty)
    key2, reply = faulty.take(vm)  # as if nothing had been
    assert (path_of(faulty, key2) / "memory.pieces").read_bytes() == pieces((path_of(faulty, key2) / "memory").read_bytes())
    assert json.loads((path_of(faulty, key2) / "manifest.json").read_text())["base"] == \
        (key if done and step == "committed" else faulty.image_key)
    faulty.stop_all()
    assert not left(faulty)


@pytest.mark.parametrize("step,action", [(s, a) for i, s in enumerate(STEPS) for a in [("error", "enospc", "kill", "kill_broker")[i % 4]]])
def test_taking_a_disk_fails(faulty, step, action):
    """The same steps; whatever is cut off, the next one with memory is whole and begins where it would have."""
    restart(faulty, "snapshot.%s:%s" % (step, action))
    vm = clone(faulty)
    faulty.report(vm["id"])
    key = vm_id("snp")
    seq = faulty.client.send("vm_snapshot", id=vm["id"], snapshot=key, then="resume", content="disk", manifest={})
    if action == "kill_broker":
        faulty.wait_dead()
    else:
        try:
            faulty.client.reply(seq)
        except Refused as e:
            assert e.args[0] == CODES[action]
    restart(faulty)
    done = step == "committed" or (step == "record" and action in ("kill", "kill_broker"))
    assert names(faulty) == sorted([faulty.image_key] + [key] * done)
    assert faulty.state_of(vm["id"])["paused"] is False
    full, _ = faulty.take(vm)
    for name in ("memory", "disk.img"):
        assert (path_of(faulty, full) / (name + ".pieces")).read_bytes() == pieces((path_of(faulty, full) / name).read_bytes())
    assert manifest_of(faulty, full)["base"] == faulty.image_key
    faulty.stop_all()
    assert not left(faulty)


@pytest.mark.parametrize("step", STEPS)
def test_broker_dies_while_taking(faulty, step):
    restart(faulty, "snapshot.%s:kill_broker" % step)
    vm = clone(faulty)
    key = vm_id("snp")
    faulty.client.send("vm_snapshot", id=vm["id"], snapshot=key, then="resume", manifest={})
    faulty.wait_dead()
    faulty.start()
    done = step in ("record", "committed")
    assert names(faulty) == sorted([faulty.image_key] + [key] * done)
    assert alive(vm["pid"]) and faulty.state_of(vm["id"])["paused"] is False
    assert faulty.take(vm, key)[1]["existed"] == done
    faulty.stop_all()
    assert not left(faulty)


@pytest.mark.parametrize("action", ["error", "enospc", "kill", "kill_broker"])
@pytest.mark.parametrize("step", ["begin", "file", "manifest", "publish"])
def test_copying_fails(faulty, step, action):
    restart(faulty, "copy.%s:%s" % (step, action))
    to = vm_id("snp")
    seq = faulty.client.send("snapshot_copy", snapshot=faulty.image_key, to=to)
    if action == "kill_broker":
        faulty.wait_dead()
    else:
        refused(CODES[action], faulty.client.reply, seq)
    restart(faulty)
    assert names(faulty) == [faulty.image_key]
    assert faulty.client.call("snapshot_copy", snapshot=faulty.image_key, to=to)["existed"] is False
    faulty.stop_all()
    assert not left(faulty)


def test_sweep_takes_what_has_no_manifest(broker):
    before = names(broker)
    vm = clone(broker)
    key, _ = broker.take(vm)
    broker.client.call("vm_stop", id=vm["id"])
    (path_of(broker, key) / "manifest.json").unlink()
    stray = path_of(broker, "%s.%s.tmp" % (vm_id("snp"), vm_id()))
    stray.mkdir()
    broker.client.call("sweep", known=[])
    assert names(broker) == before and not stray.exists()


def scattered(broker):
    """A snapshot whose memory lies in thousands of extents, its VM gone: (key, its bytes, the file's inode before)."""
    vm = clone(broker)
    broker.tell(vm["id"], "behave scatter")
    key, reply = broker.take(vm)
    assert reply["extents"] > 8000, reply
    memory = path_of(broker, key) / "memory"
    before = memory.read_bytes(), memory.stat().st_ino
    broker.client.call("vm_stop", id=vm["id"])
    return key, *before


def test_scattered_memory_is_written_anew(broker):
    key, data, inode = scattered(broker)
    memory = path_of(broker, key) / "memory"
    end = time.monotonic() + 60
    while memory.stat().st_ino == inode and time.monotonic() < end:
        time.sleep(0.05)
    st = memory.stat()
    assert st.st_ino != inode and (st.st_uid, stat.S_IMODE(st.st_mode)) == (0, 0o444)
    assert memory.read_bytes() == data and "memory.new" not in os.listdir(path_of(broker, key))
    woken = broker.start_vm(broker.image_template, snapshot=key)
    assert broker.take(woken)[1]["extents"] < 8000


@pytest.mark.parametrize("action", ["error", "enospc", "kill", "kill_broker"])
def test_writing_anew_fails(faulty, action):
    restart(faulty, "pack.copied:%s" % action)
    key, data, inode = scattered(faulty)
    if action == "kill_broker":
        faulty.wait_dead()
        faulty.start()
    else:
        end = time.monotonic() + 60
        while not any("snapshot_not_packed" in line and key in line for line in faulty.log_text().splitlines()):
            assert time.monotonic() < end, faulty.log_text()[-3000:]
            time.sleep(0.05)
    memory = path_of(faulty, key) / "memory"
    assert memory.stat().st_ino == inode and memory.read_bytes() == data
    assert "memory.new" not in os.listdir(path_of(faulty, key))
    faulty.start_vm(faulty.image_template, snapshot=key)
    faulty.stop_all()
    assert not left(faulty)
