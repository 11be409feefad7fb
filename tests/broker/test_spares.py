# SPDX-License-Identifier: Apache-2.0
"""Promise: a blank takes a snapshot once, a spare gets one sandbox, and from then on it is that sandbox's VM under every name there is."""

import json
import os
import signal
import socket

import pytest

from driver import NODE_UID, Refused, alive, look, refused, vm_id
from test_faults import left


def listed(broker):
    return {v["id"]: v for v in broker.client.call("vm_list")["vms"]}


def loaded(broker):
    vm = broker.blank()
    broker.load(vm, broker.image_template, broker.image_key)
    return vm


def bind(broker, vm, sandbox, **kw):
    return broker.client.call("vm_bind", id=vm["id"], sandbox=sandbox, **kw)


def test_load(broker):
    vm = broker.blank()
    assert listed(broker)[vm["id"]]["mode"] == "blank" and listed(broker)[vm["id"]]["snapshot"] == ""
    reply = broker.load(vm, broker.image_template, broker.image_key)
    assert reply["uid"] == vm["uid"] and reply["timings_us"]["taken"] > 0
    row = listed(broker)[vm["id"]]
    assert row["mode"] == "clone" and row["snapshot"] == broker.image_key and row["alive"]
    disk = broker.state / "store" / "sandboxes" / vm["id"] / "disk.img"
    assert disk.stat().st_uid == vm["uid"] and disk.read_bytes()[8192:8212] == b"written by the guest"
    assert broker.state_of(vm["id"])["snapshot"] == broker.image_key
    refused("conflict", broker.load, vm, broker.image_template, broker.image_key)  # once
    refused("conflict", broker.client.call, "snapshot_remove", snapshot=broker.image_key)


def test_bind(broker):
    vm = loaded(broker)
    sandbox = vm_id()
    assert bind(broker, vm, sandbox) == {}
    assert bind(broker, vm, sandbox) == {}  # the same again
    rows = listed(broker)
    assert list(rows) == [sandbox] and rows[sandbox]["pid"] == vm["pid"] and rows[sandbox]["alive"]
    assert broker.report(sandbox)["stub_pid"] == 2  # the socket it listened on has the new name
    assert not (broker.state / "run" / "vm" / vm["id"]).exists()
    assert sorted(os.listdir(broker.state / "store" / "sandboxes")) == [sandbox]
    record = json.loads((broker.state / "store" / "sandboxes" / sandbox / "vm.json").read_text())
    assert record["id"] == sandbox and record["cgroup"] == vm["id"] and record["base"] == broker.image_key
    refused("conflict", bind, broker, loaded(broker), sandbox)
    refused("not_found", bind, broker, vm, vm_id())  # it is someone's


def test_bound_vm_is_not_the_spares_to_take_away(broker):
    """Its control group keeps the spare's name; neither a stop nor a sweep may end it under that one."""
    vm = loaded(broker)
    sandbox = vm_id()
    bind(broker, vm, sandbox)
    assert broker.client.call("vm_stop", id=vm["id"]) == {"existed": False}
    assert broker.client.call("sweep", known=[])["removed"] == []
    assert alive(vm["pid"])
    broker.stop()
    broker.start()
    assert broker.client.call("sweep", known=[])["removed"] == []
    assert alive(vm["pid"]) and list(listed(broker)) == [sandbox]
    assert broker.client.call("vm_stop", id=sandbox) == {"existed": True}
    assert not alive(vm["pid"])


def test_load_and_bind_at_once(broker):
    vm = broker.blank()
    sandbox = vm_id()
    broker.load(vm, broker.image_template, broker.image_key, bind=sandbox)
    assert list(listed(broker)) == [sandbox]
    assert bind(broker, vm, sandbox) == {}
    refused("conflict", broker.load, broker.blank(), broker.image_template, broker.image_key, bind=sandbox)


def test_refused_binds(broker):
    refused("not_found", bind, broker, {"id": vm_id("spr")}, vm_id())
    refused("conflict", bind, broker, broker.blank(), vm_id())
    vm = loaded(broker)
    clone = broker.start_vm(broker.image_template, snapshot=broker.image_key)
    refused("conflict", bind, broker, vm, clone["id"])
    (broker.state / "store" / "sandboxes" / vm_id()).mkdir()
    os.kill(vm["pid"], signal.SIGKILL)
    fd = os.pidfd_open(vm["pid"]) if alive(vm["pid"]) else None
    while alive(vm["pid"]):
        pass
    if fd:
        os.close(fd)
    refused("not_found", bind, broker, vm, vm_id())


def test_refused_loads(broker):
    refused("not_found", broker.load, {"id": vm_id("spr")}, broker.image_template, broker.image_key)
    vm = broker.blank()
    assert refused("not_found", broker.load, vm, broker.image_template, "0" * 32)["field"] == "snapshot"
    broker.load(vm, broker.image_template, broker.image_key)  # asking for what is not there cost it nothing
    spoiled = broker.blank()
    broker.tell(spoiled["id"], "behave refuse")
    assert refused("io", broker.load, spoiled, broker.image_template, broker.image_key)["field"] == "io"
    refused("conflict", broker.load, spoiled, broker.image_template, broker.image_key)
    refused("conflict", bind, broker, spoiled, vm_id())
    broker.client.call("vm_stop", id=spoiled["id"])
    refused("invalid", broker.load, broker.blank(), "0" * 64, broker.image_key)


def test_a_spare_whose_snapshot_is_broken(own):
    own.image_template, own.image_key = own.image()
    vm = own.blank()
    own.stop()
    path = own.state / "store" / "snapshots" / own.image_key / "memory"
    os.chmod(path, 0o644)
    with open(path, "r+b") as f:
        f.write(b"x")
    os.chmod(path, 0o444)
    own.start()
    refused("corrupt", own.load, vm, own.image_template, own.image_key)
    own.client.call("vm_stop", id=vm["id"])


def test_node_may_talk_to_a_bound_vm(broker):
    """The node's uid connects by the sandbox's name."""
    vm = loaded(broker)
    sandbox = vm_id()
    bind(broker, vm, sandbox)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.seteuid(NODE_UID)
    os_gid = os.getegid()
    os.seteuid(0)
    os.setegid(NODE_UID)
    os.seteuid(NODE_UID)
    try:
        s.connect(str(broker.state / "run" / "vm" / sandbox / "control.sock"))
    finally:
        os.seteuid(0)
        os.setegid(os_gid)
        s.close()


BIND_FAULTS = ["bind.record", "bind.directory", "bind.sockets"]


@pytest.mark.parametrize("point", BIND_FAULTS)
def test_binding_fails(own, point):
    """It is the spare that it was."""
    own.image_template, own.image_key = own.image()
    vm = loaded(own)
    own.stop()
    own.start(point + ":error")
    refused("io", bind, own, vm, vm_id())
    assert list(listed(own)) == [vm["id"]]
    own.stop()
    own.start()
    sandbox = vm_id()
    bind(own, vm, sandbox)
    assert own.report(sandbox)["stub_pid"] == 2
    own.client.call("vm_stop", id=sandbox)
    own.client.call("template_remove", template=own.image_template)


@pytest.mark.parametrize("point", BIND_FAULTS)
def test_broker_dies_while_binding(own, point):
    """The next one finds the spare or the bound sandbox, whole."""
    own.image_template, own.image_key = own.image()
    own.before = look(own)
    vm = loaded(own)
    sandbox = vm_id()
    own.stop()
    own.start(point + ":kill_broker")
    own.client.send("vm_bind", id=vm["id"], sandbox=sandbox)
    own.wait_dead()
    own.start()
    want = vm["id"] if point == "bind.record" else sandbox
    assert list(listed(own)) == [want] and alive(vm["pid"])
    assert own.client.call("sweep", known=[])["removed"] == []
    assert own.report(want)["stub_pid"] == 2
    bind(own, vm, sandbox)
    own.client.call("vm_stop", id=sandbox)
    assert not alive(vm["pid"])
    assert not left(own)


LOAD_STEPS = ["source", "record", "disk", "state", "send", "taken", "confirm"]


@pytest.mark.parametrize("action", ["error", "enospc", "kill"])
def test_loading_fails(own, action):
    own.image_template, own.image_key = own.image()
    own.before = look(own)
    for step in LOAD_STEPS:
        own.stop()
        own.start("load.%s:%s" % (step, action))
        vm = own.blank()
        with pytest.raises(Refused) as e:
            own.load(vm, own.image_template, own.image_key)
        assert e.value.args[0] == {"error": "io", "enospc": "no_space", "kill": "internal"}[action]
        refused("conflict", own.load, vm, own.image_template, own.image_key)  # for vm_stop only
        own.stop()
        own.start()
        if step not in ("source", "record"):
            refused("conflict", own.load, vm, own.image_template, own.image_key)
        assert own.client.call("vm_stop", id=vm["id"]) == {"existed": True}
        assert not left(own), step


def test_broker_dies_while_loading(own):
    own.image_template, own.image_key = own.image()
    own.before = look(own)
    for step in LOAD_STEPS:
        own.stop()
        own.start("load.%s:kill_broker" % step)
        vm = own.blank()
        own.client.send("vm_load", id=vm["id"], bind=vm_id(), template=own.image_template, snapshot=own.image_key, config={})
        own.wait_dead()
        own.start()
        assert list(listed(own)) == [vm["id"]] and alive(vm["pid"])
        refused("conflict", bind, own, vm, vm_id())
        own.client.call("vm_stop", id=vm["id"])
        assert not left(own), step


def test_release_ends_a_bound_vm(own):
    """`space down` has no table: the record says which control group is whose."""
    import subprocess
    own.image_template, own.image_key = own.image()
    vm = loaded(own)
    bind(own, vm, vm_id())
    own.stop()
    done = subprocess.run(own.argv("--release"), stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert not alive(vm["pid"])
    own.start()
    assert listed(own) == {}
