# SPDX-License-Identifier: Apache-2.0
"""Promise: the broker does what its table says and nothing else; whoever breaks the protocol is dropped and harms nobody; VMs outlive it;
nothing is taken away from under a living process; a stopped VM leaves nothing on the host."""

import array
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import subprocess
import time

import pytest

from driver import MIB, UID_BASE, Broker, alive, look, refused, vm_id
from lib import hostdiff

DIGEST, KEY = "0" * 64, "0" * 32
START = {"request": "vm_start", "id": vm_id(), "mode": "clone", "template": DIGEST, "snapshot": KEY, "kernel": "stock",
         "accelerator": "tcg", "vcpus": 1, "memory_mib": 64, "config": {}}


def start(broker, **kw):
    return broker.start_vm(broker.image_template, snapshot=broker.image_key, **kw)


# --- the conversation


def test_hello(broker):
    hello = dict(broker.client.hello)
    assert re.fullmatch("[0-9a-f]{64}", hello.pop("engine"))
    assert hello == {"version": 1, "accelerators": ["tcg"] if not os.path.exists("/dev/kvm") else ["kvm", "tcg"],
                     "cgroup": "v1" if os.path.isdir("/sys/fs/cgroup/pids") else "v2"}


def test_stat(broker):
    stat = broker.client.call("stat")
    assert 1024 < stat["store_free_mib"] <= stat["store_total_mib"] == 2048
    assert stat["memory_available_mib"] > 0


@pytest.mark.parametrize("uid", [0, UID_BASE + 1, UID_BASE + 3, UID_BASE + 64, 65534],
                         ids=["root", "control", "gateway", "vm", "nobody"])
def test_wrong_uid_is_refused(broker, uid):
    """By the mode of the socket; and, for root, to whom modes mean nothing, by the peer's credentials."""
    try:
        client = broker.connect(uid=uid, hello=False)
    except PermissionError:
        assert uid != 0
        return
    assert client.closed()
    client.close()


HOSTILE = {
    "not_json": b"hello", "empty_object": b"{}", "not_an_object": b"[]", "nul": b"\0" * 100, "cut": b'{"request":"stat"',
    "unknown_request": b'{"request":"exec"}', "duplicate_key": b'{"request":"stat","request":"stat"}',
    "unknown_key": b'{"request":"stat","path":"/"}', "seq_negative": b'{"request":"stat","seq":-1}',
    "seq_text": b'{"request":"stat","seq":"1"}', "second_hello": b'{"request":"hello","version":1}',
    "deep": b'{"request":"stat","seq":' + b"[" * 200 + b"]" * 200 + b"}", "too_long": b" " * 60000,
}
for _name, _change in {
    "id_path": {"id": "../../etc/passwd"}, "id_empty": {"id": ""}, "id_short": {"id": "sbx_1"}, "id_upper": {"id": vm_id().upper()},
    "id_other": {"id": vm_id("tok")}, "id_of_boot": {"id": vm_id("tpb")}, "id_number": {"id": 5}, "id_null": {"id": None},
    "template_path": {"template": "../" * 21 + "x"}, "template_short": {"template": "0" * 63}, "template_upper": {"template": "A" * 64},
    "snapshot_path": {"snapshot": "../snapshots/../../../etc/passwd"[:32]}, "snapshot_missing": {"snapshot": None},
    "mode": {"mode": "shell"}, "kernel_path": {"kernel": "../stock"}, "accelerator": {"accelerator": "xen"},
    "vcpus_none": {"vcpus": 0}, "vcpus_many": {"vcpus": 33}, "vcpus_float": {"vcpus": 1.5}, "vcpus_huge": {"vcpus": 2 ** 63},
    "memory_small": {"memory_mib": 63}, "memory_huge": {"memory_mib": 262145}, "config_text": {"config": "x"},
    "config_big": {"config": {"x": "y" * 33000}}, "extra_key": {"uid": 0}, "boot_with_snapshot": {"mode": "template_boot", "id": vm_id("tpb")},
}.items():
    HOSTILE[_name] = json.dumps({**START, **_change}).encode()
for _name, _text in {
    "sweep_no_list": {"request": "sweep"}, "sweep_path": {"request": "sweep", "known": ["../x"]},
    "sweep_many": {"request": "sweep", "known": [vm_id()] * 901}, "stop_path": {"request": "vm_stop", "id": "/"},
    "remove_path": {"request": "snapshot_remove", "snapshot": "."}, "template_dot": {"request": "template_remove", "template": ".."},
    "seal_manifest_list": {"request": "snapshot_seal", "id": vm_id("tpb"), "snapshot": KEY, "manifest": []},
    "list_after": {"request": "vm_list", "after": "x"}, "snapshots_after": {"request": "snapshot_list", "after": KEY},
    "bind_path": {"request": "vm_bind", "id": vm_id("spr"), "sandbox": "../" + vm_id()},
    "bind_of_sandbox": {"request": "vm_bind", "id": vm_id(), "sandbox": vm_id()},
    "load_of_sandbox": {"request": "vm_load", "id": vm_id(), "template": DIGEST, "snapshot": KEY, "config": {}},
    "take_over_template": {"request": "vm_snapshot", "id": vm_id(), "snapshot": KEY, "then": "stop", "manifest": {}},
    "take_path": {"request": "vm_snapshot", "id": vm_id(), "snapshot": "snp_../x", "then": "stop", "manifest": {}},
    "copy_over_template": {"request": "snapshot_copy", "snapshot": KEY, "to": KEY},
    "blank_with_template": {**START, "mode": "blank", "id": vm_id("spr")},
}.items():
    HOSTILE[_name] = json.dumps(_text).encode()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_request_closes_the_connection(idle, name):
    broker = idle
    with broker.connect().sock as sock:
        sock.send(HOSTILE[name])
        sock.settimeout(10)
        try:
            assert sock.recv(65536) == b""
        except ConnectionResetError:
            pass
    assert "peer_dropped" in broker.log_text()
    assert broker.client.call("vm_list")["vms"] == []


@pytest.fixture(scope="module")
def idle(shared):
    """For what must not do anything at all: looked at once, when all of it is over."""
    if shared.process.poll() is not None:
        shared.start()
    shared.stop_all()
    before = look(shared)
    yield shared
    shared.stop_all()
    assert not hostdiff.diff(before, look(shared))


@pytest.mark.parametrize("request_", ["stat", "vm_list", "sweep", "template_list"])
def test_nothing_before_hello(broker, request_):
    client = broker.connect(hello=False)
    client.send(request_, **({"known": []} if request_ == "sweep" else {}))
    assert client.closed()


def test_other_version(broker):
    client = broker.connect(hello=False)
    refused("unsupported", client.call, "hello", version=2)
    client.close()


def test_descriptors_are_not_taken(broker):
    before = len(os.listdir("/proc/%d/fd" % broker.process.pid))
    for _ in range(5):
        client = broker.connect()
        with open("/dev/null") as f:
            client.sock.sendmsg([b'{"request":"stat"}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [f.fileno()] * 8))])
        assert client.closed()
        client.close()
    end = time.monotonic() + 30
    while len(os.listdir("/proc/%d/fd" % broker.process.pid)) != before:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_random_bytes(broker):
    rng = random.Random(1)
    for _ in range(200):
        client = broker.connect(hello=rng.random() < 0.5)
        client.sock.send(rng.randbytes(rng.randrange(1, 2000)))
        assert client.closed()
        client.close()
    assert broker.client.call("stat")


def test_too_many_connections(broker):
    clients = []
    try:
        for _ in range(20):
            client = broker.connect(hello=False)
            clients.append(client)
        end = time.monotonic() + 30
        while len(select.select([c.sock for c in clients], [], [], 0)[0]) < 13 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        assert len(select.select([c.sock for c in clients], [], [], 0)[0]) == 13  # closed: the others and the one of the fixture are 8
    finally:
        for c in clients:
            c.close()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            broker.connect().close()
            return
        except (ConnectionError, OSError):
            time.sleep(0.05)
    pytest.fail("the broker does not accept any more")


def test_a_peer_that_does_not_read_is_dropped(broker):
    client = broker.connect()
    client.sock.setblocking(False)
    sent = 0
    end = time.monotonic() + 30
    try:
        while time.monotonic() < end:
            try:
                client.sock.send(b'{"request":"template_list"}')
                sent += 1
            except BlockingIOError:  # its requests are not read any more: that is a bound too
                assert broker.client.call("stat", timeout=30)
                if sent > 200:
                    break
                time.sleep(0.05)
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert broker.client.call("stat", timeout=30)
    rss = int(pathlib.Path("/proc/%d/statm" % broker.process.pid).read_text().split()[1]) * 4096
    assert rss < 64 * MIB
    client.close()


@pytest.mark.alone
def test_replies_carry_seq_and_do_not_wait_for_each_other(own):
    own.stop()
    own.start("start.disk:sleep=4000")
    template = own.template()
    id, seq = own.start_vm(template, mode="template_boot", wait=False)
    began = time.monotonic()
    own.client.call("stat")
    listed = own.client.call("vm_list")["vms"]
    assert time.monotonic() - began < 3
    assert [(v["id"], v["phase"], v["alive"]) for v in listed] == [(id, "starting", True)]
    assert own.client.reply(seq)["pid"] > 0


def test_without_seq(broker):
    with broker.connect().sock as sock:
        sock.send(b'{"request":"stat"}')
        reply = json.loads(sock.recv(65536))
        assert reply["ok"] and "seq" not in reply


# --- the life of a VM


def test_start_list_stop(broker):
    before = look(broker)
    vm = start(broker)
    listed, = broker.client.call("vm_list")["vms"]
    assert abs(listed.pop("created_realtime_ns") / 1e9 - time.time()) < 60
    assert listed == {"id": vm["id"], "mode": "clone", "snapshot": broker.image_key, "phase": "kept", "pid": vm["pid"], "start_time": vm["start_time"],
                      "vmm_pid": vm["vmm_pid"], "alive": True, "uid": vm["uid"]}
    assert broker.client.call("vm_stop", id=vm["id"]) == {"existed": True}
    assert not alive(vm["pid"]) and not alive(vm["vmm_pid"])
    assert broker.client.call("vm_list")["vms"] == []
    assert not hostdiff.diff(before, look(broker))
    assert broker.client.call("vm_stop", id=vm["id"]) == {"existed": False}
    assert broker.client.call("vm_stop", id=vm_id()) == {"existed": False}


def test_same_id_twice(broker):
    vm = start(broker)
    refused("conflict", start, broker, id=vm["id"])
    assert alive(vm["pid"])


@pytest.mark.parametrize("what", ["template", "snapshot", "kernel", "snapshot_of_other_template", "kvm"])
def test_what_is_not_there(broker, what):
    before = look(broker)
    if what == "template":
        refused("not_found", broker.start_vm, DIGEST, mode="template_boot")
    elif what == "snapshot":
        refused("not_found", broker.start_vm, broker.image_template, snapshot=KEY)
    elif what == "kernel":
        refused("not_found", broker.start_vm, broker.image_template, mode="template_boot", kernel="lean")
    elif what == "snapshot_of_other_template":
        refused("invalid", broker.start_vm, DIGEST, snapshot=broker.image_key)
    elif os.path.exists("/dev/kvm"):
        pytest.skip("this host has KVM")
    else:
        refused("unsupported", start, broker, accelerator="kvm")
    assert broker.client.call("vm_list")["vms"] == []
    assert not hostdiff.diff(before, look(broker))


def test_its_death_is_seen_and_takes_nothing_away(broker):
    vm = start(broker)
    os.kill(vm["pid"], signal.SIGKILL)
    end = time.monotonic() + 30
    while broker.client.call("vm_list")["vms"][0]["alive"]:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not alive(vm["vmm_pid"])
    assert (broker.state / "store" / "sandboxes" / vm["id"] / "disk.img").exists()
    assert (broker.state / "run" / "vm" / vm["id"]).exists()
    assert broker.client.call("sweep", known=[])["removed"] == []  # in vm_list, so not a leftover
    assert broker.client.call("vm_stop", id=vm["id"]) == {"existed": True}
    zombies = [p for p in hostdiff.processes() if p.state == "Z" and pathlib.Path("/proc/%d/stat" % p.pid).exists()
               and int(pathlib.Path("/proc/%d/stat" % p.pid).read_text().rpartition(")")[2].split()[1]) == broker.process.pid]
    assert not zombies


def test_vmm_may_die_alone(broker):
    """space-vm stays, so that its reason can be read."""
    vm = start(broker)
    with broker.control(vm["id"]) as s:
        s.send(b"exit_vmm")
        assert s.recv(100) == b'{"dead": true}'
    assert alive(vm["pid"]) and not alive(vm["vmm_pid"])
    assert broker.client.call("vm_list")["vms"][0]["alive"]


def test_end_of_its_log_is_kept(broker):
    """Whatever a VM wrote there: its own file, then a bounded, printable rest of it."""
    vm = start(broker)
    path = broker.state / "store" / "sandboxes" / vm["id"] / "vm.log"
    assert path.stat().st_uid == 0 and path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"early\n" + b"x" * 20000 + b'\n{"event":"last"}\n\x1b[31mred\0\xff\n')
    broker.client.call("vm_stop", id=vm["id"])
    kept = (broker.state / "log" / "space-vm.log").read_text().partition("--- end of the log of %s\n" % vm["id"])[2]
    assert kept == '{"event":"last"}\n\\x1b[31mred\\x00\\xff\n'


@pytest.mark.alone
def test_stopped_vm_is_killed(broker):
    """A process that ignores what can be ignored is dead all the same, and soon."""
    vm = start(broker)
    os.kill(vm["pid"], signal.SIGSTOP)
    began = time.monotonic()
    assert broker.client.call("vm_stop", id=vm["id"]) == {"existed": True}
    assert time.monotonic() - began < 10
    assert not alive(vm["pid"])


def test_stop_during_start(own):
    own.stop()
    own.start("start.sockets:sleep=700")
    template = own.template()
    before = look(own)
    id, seq = own.start_vm(template, mode="template_boot", wait=False)
    assert own.client.call("vm_stop", id=id) == {"existed": True}
    assert own.client.reply(seq)["pid"] > 0
    assert not hostdiff.diff(before, look(own))


def test_many_at_once(broker):
    before = look(broker)
    seqs = [broker.start_vm(broker.image_template, snapshot=broker.image_key, wait=False) for _ in range(20)]
    vms = [(id, broker.client.reply(seq)) for id, seq in seqs]
    assert len({v["uid"] for _, v in vms}) == 20
    assert len(broker.client.call("vm_list")["vms"]) == 20
    for seq in [broker.client.send("vm_stop", id=id) for id, _ in vms]:
        assert broker.client.reply(seq) == {"existed": True}
    assert not hostdiff.diff(before, look(broker))


def test_descriptors_and_memory_of_the_broker_stay_flat(broker):
    def measure():
        return (len(os.listdir("/proc/%d/fd" % broker.process.pid)),
                int(pathlib.Path("/proc/%d/statm" % broker.process.pid).read_text().split()[1]) * 4)
    for i in range(30):
        if i == 10:
            fds, rss = measure()
        broker.client.call("vm_stop", id=start(broker)["id"])
    fds2, rss2 = measure()
    assert fds2 == fds and rss2 - rss < 1024


def test_vm_list_in_pages(own):
    """More VMs than a page holds, without starting that many: records are enough."""
    own.stop()
    ids = sorted(vm_id() for _ in range(230))
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for i, id in enumerate(ids):
        path = own.state / "store" / "sandboxes" / id
        path.mkdir()
        (path / "vm.json").write_text(json.dumps(record(id, boot_id=boot, uid=UID_BASE + 100 + i)))
    own.start()
    got, after, pages = [], {}, 0
    while True:
        page = own.client.call("vm_list", **after)
        got += [v["id"] for v in page["vms"]]
        pages += 1
        if not page["more"]:
            break
        after = {"after": got[-1]}
    assert got == ids and pages == 3
    assert not any(v["alive"] for v in page["vms"])


# --- restarts


def record(id, **fields):
    return {"format": 1, "id": id, "mode": "clone", "kernel": "stock", "accelerator": "tcg", "template": DIGEST, "snapshot": KEY,
            "vcpus": 1, "memory_mib": 64, "uid": UID_BASE + 99, "started": True, "pid": 1, "start_time": 1, "vmm_pid": 2,
            "created_realtime_ns": 1, "boot_id": "x", **fields}


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_restart_keeps_vms(broker, sig):
    a, b = start(broker), start(broker)
    broker.stop(sig)
    assert alive(a["pid"]) and alive(b["vmm_pid"])
    fd = os.pidfd_open(b["pid"])
    os.kill(b["pid"], signal.SIGKILL)
    assert select.select([fd], [], [], 10)[0]
    os.close(fd)
    broker.start()
    listed = {v["id"]: v for v in broker.client.call("vm_list")["vms"]}
    assert listed[a["id"]]["alive"] and listed[a["id"]]["pid"] == a["pid"] and listed[a["id"]]["start_time"] == a["start_time"]
    assert not listed[b["id"]]["alive"]
    assert broker.client.call("sweep", known=[])["removed"] == []
    c = start(broker)
    assert c["uid"] not in (a["uid"], b["uid"])
    assert broker.report(a["id"])["vm"]["uids"][0] == a["uid"]
    os.kill(a["pid"], signal.SIGKILL)  # its death is noticed too, though it is no child of this broker
    end = time.monotonic() + 30
    while {v["id"]: v["alive"] for v in broker.client.call("vm_list")["vms"]}[a["id"]]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_another_process_with_its_pid_is_spared(broker):
    """After a reuse of the pid, and after a reboot, the number in the record is someone else."""
    broker.stop()
    decoy = subprocess.Popen(["sleep", "600"])
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    started = int(pathlib.Path("/proc/%d/stat" % decoy.pid).read_text().rpartition(")")[2].split()[19])
    ids = [vm_id(), vm_id()]
    for id, fields in zip(ids, ({"boot_id": boot, "start_time": started + 1}, {"boot_id": "an-earlier-one", "start_time": started})):
        path = broker.state / "store" / "sandboxes" / id
        path.mkdir()
        (path / "vm.json").write_text(json.dumps(record(id, pid=decoy.pid, **fields)))
    try:
        broker.start()
        assert [v["alive"] for v in broker.client.call("vm_list")["vms"]] == [False, False]
        for id in ids:
            assert broker.client.call("vm_stop", id=id) == {"existed": True}
        assert decoy.poll() is None
    finally:
        decoy.kill()
        decoy.wait()


def test_broken_records_are_swept(broker):
    broker.stop()
    good = record("x")
    texts = ["", "{", json.dumps({**good, "id": vm_id()}), json.dumps({**good, "uid": -1}), json.dumps({**good, "pid": "1"})]
    ids = [vm_id() for _ in texts] + [vm_id()]
    for id, text in zip(ids, texts + [None]):
        path = broker.state / "store" / "sandboxes" / id
        path.mkdir()
        if text is not None:
            (path / "vm.json").write_text(text)
    broker.start()
    assert broker.client.call("vm_list")["vms"] == []
    assert sorted(broker.client.call("sweep", known=[])["removed"]) == sorted(ids)


def test_one_broker_a_state_directory(broker):
    other = subprocess.run(broker.argv(), stderr=subprocess.PIPE, timeout=30)
    assert other.returncode != 0 and b"another broker" in other.stderr
    assert broker.client.call("stat")


def test_two_installations_do_not_touch_each_other(broker):
    vm = start(broker)
    second = Broker(uid_base=UID_BASE + 10000)
    try:
        second.start()
        assert second.client.call("sweep", known=[])["removed"] == []
        assert alive(vm["pid"])
    finally:
        second.remove()
    assert alive(vm["pid"])


# --- sweep


def test_sweep_removes_what_nobody_knows(broker):
    kept = start(broker)
    broker.report(kept["id"])  # its VMM runs: from here on it does not change
    unknown, known = vm_id(), vm_id()
    before = look(broker)
    cgroup = pathlib.Path("/sys/fs/cgroup/pids/space-%d" % UID_BASE)
    v1 = cgroup.exists()
    ids = [unknown, known]
    for id in ids:
        for parent in ("store/sandboxes", "run/vm"):
            path = broker.state / parent / id
            (path / "deep" / "er").mkdir(parents=True)
            (path / "deep" / "file").write_text("x")
    boot = vm_id("tpb")
    (broker.state / "store" / "snapshots" / ("%s.%s.tmp" % (KEY, boot))).mkdir()
    (broker.state / "store" / "snapshots" / KEY).mkdir()  # a removal that lost its manifest and no more
    (broker.state / "run" / "vm" / unknown / "link").symlink_to("/etc")
    member = subprocess.Popen(["sleep", "600"])
    if v1:
        for id in ids:
            (cgroup / id).mkdir()
        (cgroup / unknown / "cgroup.procs").write_text(str(member.pid))
    try:
        assert sorted(broker.client.call("sweep", known=[known])["removed"]) == sorted([unknown, boot])
        if v1:
            assert member.wait(5) == -signal.SIGKILL
        assert (broker.state / "run" / "vm" / known).exists() and (broker.state / "store" / "sandboxes" / known).exists()
        assert os.path.isdir("/etc") and alive(kept["pid"])
        assert broker.client.call("sweep", known=[])["removed"] == [known]
        assert not hostdiff.diff(before, look(broker))
    finally:
        member.kill()
        member.wait()


def test_sweep_spares_what_is_not_ours_to_name(broker):
    """A name that is no id is left alone: the broker never made it."""
    path = broker.state / "store" / "sandboxes" / "lost+found"
    path.mkdir()
    try:
        assert broker.client.call("sweep", known=[])["removed"] == []
        assert path.exists()
    finally:
        path.rmdir()
