# SPDX-License-Identifier: Apache-2.0
"""Promise: sessions survive the restart of every daemon, a dead VMM is said within two seconds and never as an exit, and nothing is
left on the host."""

import os
import pathlib
import signal
import threading
import time

import pytest

from lib import api as apilib
from lib.sizes import say


def follow_in_background(session):
    box = {"result": apilib.Result(), "last": None, "connections": 0}

    def run():
        end = time.monotonic() + 120
        while time.monotonic() < end and not box["result"].exited and not box["result"].error:
            try:
                with apilib.Stream(session, last_id=box["last"], timeout=40) as s:
                    box["connections"] += 1
                    if s.status == 200:
                        try:
                            s.collect(box["result"])
                        finally:
                            box["last"] = s.last_id
            except OSError:
                pass
            time.sleep(0.1)

    box["thread"] = threading.Thread(target=run)
    box["thread"].start()
    return box


def long_command(api, sandbox):
    session = api.session(sandbox, ["sh", "-c", "for i in $(seq 1 60); do echo $i; sleep 0.2; done; exit 4"])
    box = follow_in_background(session)
    end = time.monotonic() + 60
    while len(box["result"].stdout) < 10 and time.monotonic() < end:
        time.sleep(0.05)
    return box


def check_complete(box):
    box["thread"].join(120)
    r = box["result"]
    assert r.code == 4 and bytes(r.stdout) == b"".join(b"%d\n" % i for i in range(1, 61)) and not r.faults and not r.error, r


def test_control_restart(system, api, sandbox):
    box = long_command(api, sandbox)
    system.restart("control")
    check_complete(box)
    assert box["connections"] == 1  # the data plane does not notice


def test_gateway_restart(system, api, sandbox):
    box = long_command(api, sandbox)
    system.restart("gateway")
    check_complete(box)
    assert box["connections"] > 1


def test_node_restart_adopts_the_vm(system, api, sandbox):
    box = long_command(api, sandbox)
    before = system.vm_pids(sandbox)
    system.restart("node")
    check_complete(box)
    assert system.vm_pids(sandbox) == before
    assert api.sandbox(sandbox)["state"] == "running"
    assert api.run(sandbox, ["true"]).code == 0


def test_broker_restart_keeps_vms(system, api, sandbox):
    before = system.vm_pids(sandbox)
    system.restart("broker")
    assert system.vm_pids(sandbox) == before and api.run(sandbox, ["true"]).code == 0
    other = api.create()
    api.delete(other)


def test_supervisor_killed_then_up_again(system, api, sandbox):
    pids = {n: system.pid(n) for n in ("broker", "control", "node", "gateway")}
    os.kill(system.pid("supervisor"), signal.SIGKILL)
    time.sleep(0.2)
    system.cli("up")
    assert {n: system.pid(n) for n in pids} == pids  # adopted, not doubled
    system.restart("gateway")
    assert api.run(sandbox, ["true"]).code == 0


def killed_vmm(system, api, victim):
    sid = api.create()
    session = api.session(sid, ["sleep", "1000"])
    with apilib.Stream(session, timeout=30) as s:
        s.collect(until=lambda r: r.started)
        space_vm, vmm = system.vm_pids(sid)
        t = time.monotonic()
        os.kill(vmm if victim == "vmm" else space_vm, signal.SIGKILL)
        r = s.collect()
        took = time.monotonic() - t
    assert r.exited is None and r.error and r.error["code"] == "sandbox_gone", r
    end = time.monotonic() + 60
    while api.sandbox(sid)["state"] != "failed":
        assert time.monotonic() < end, api.sandbox(sid)
        time.sleep(0.05)
    say("killed %s: error on the stream after %.2f s, failed after %.2f s: %s" % (victim, took, time.monotonic() - t,
                                                                                  api.sandbox(sid)["error"]))
    assert took < 2
    a = api.call("POST", "/v1/sandboxes/%s/sessions" % sid, {"command": "true"})
    assert a.status == 409, a
    end = time.monotonic() + 60
    while (system.state / "store" / "sandboxes" / sid).exists() or (system.state / "run" / "vm" / sid).exists():
        assert time.monotonic() < end, "the failed sandbox still holds files"
        time.sleep(0.1)
    api.delete(sid)
    assert api.sandbox(sid)["state"] == "deleted"


@pytest.mark.alone
def test_killed_vmm(system, api):
    killed_vmm(system, api, "vmm")


@pytest.mark.alone
def test_killed_space_vm(system, api):
    killed_vmm(system, api, "space-vm")


def test_vmm_holds_nothing_writable_that_is_shared(system, api, sandbox):
    _, vmm = system.vm_pids(sandbox)
    writable = []
    for fd in os.listdir("/proc/%d/fd" % vmm):
        target = os.readlink("/proc/%d/fd/%s" % (vmm, fd))
        flags = int(next(x for x in open("/proc/%d/fdinfo/%s" % (vmm, fd)) if x.startswith("flags")).split()[1], 8)
        if flags & 3 and ("memory" in target or "template" in target or "snapshot" in target or "kernel" in target):
            writable.append((fd, target))
    assert not writable
    maps = [x for x in open("/proc/%d/maps" % vmm) if "/memory" in x]
    assert maps and all(x.split()[1].endswith("p") for x in maps), maps  # private mappings only
    status = pathlib.Path("/proc/%d/status" % vmm).read_text()
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(values["CapEff"], 16) == 0 and int(values["CapBnd"], 16) == 0 and values["NoNewPrivs"] == "1"
    assert values["Seccomp"] == "2" and "0" not in values["Uid"].split()
    net = pathlib.Path("/proc/%d/net/dev" % vmm).read_text().splitlines()[2:]
    assert [n.split(":")[0].strip() for n in net] in ([], ["lo"])
    for ns in ("mnt", "pid", "net", "ipc"):
        assert os.readlink("/proc/%d/ns/%s" % (vmm, ns)) != os.readlink("/proc/self/ns/%s" % ns)


def test_guest_network_reaches_nothing(api, sandbox):
    """Even with the card brought up by the guest's root: no frame gets an answer, no connection is made."""
    script = ("ip link set eth0 up; ip addr add 10.0.0.2/24 dev eth0; ip route add default via 10.0.0.1; "
              "for a in 10.0.0.1 169.254.169.254 192.0.2.1; do timeout 2 bash -c \"echo > /dev/tcp/$a/80\" 2>/dev/null && echo OPEN; done; "
              "cat /sys/class/net/eth0/statistics/rx_packets; ip -o link show eth0")
    r = api.run(sandbox, ["bash", "-c", script], user="root")
    lines = r.stdout.decode().splitlines()
    assert r.code == 0 and "OPEN" not in lines and lines[0] == "0" and "eth0" in lines[1], r
