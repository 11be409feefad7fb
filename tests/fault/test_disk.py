# SPDX-License-Identifier: Apache-2.0
"""Promise: a full host disk stops nobody for good: an operation that needs room says host_disk_full and changes nothing, a VM whose disk
cannot grow stands still and goes on when there is room, new sandboxes are refused before that, and what the guest trims comes back."""

import os
import time

import pytest

from lib import guest
from lib.sizes import say
from lib.system import running_system


@pytest.fixture(scope="module")
def small():
    with running_system(store_size_mib=3072, disk_reserve_mib=128) as s:
        yield s


def fill(system, leave_mib=0):
    """A file that takes what room there is; returns its path."""
    path = system.state / "store" / "ballast"
    with open(path, "wb", buffering=0) as f:
        for step in (64 << 20, 1 << 20, 64 << 10, 4096):
            data = os.urandom(step)
            while True:
                st = os.statvfs(path)
                if leave_mib and st.f_bavail * st.f_frsize < (leave_mib << 20) + step:
                    break
                try:
                    if f.write(data) < len(data):
                        break
                    os.fsync(f.fileno())
                except OSError:
                    break
    return path


def room(api, timeout=90):
    """Until the node has told control that there is room again: before it refuses what needs some."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if any(n["capacity"]["disk_mib"] > 0 for n in api.ok("GET", "/v1/nodes")["items"]):
            return
        time.sleep(1)
    raise AssertionError("the node does not tell of its room")


def test_full_disk(small):
    api = small.api
    sid = api.create()
    guest.write(api, sid, "/home/user/kept", "yes")
    api.take_snapshot(sid)
    api.run(sid, ["sh", "-c", "head -c 40M /dev/urandom > /dev/shm/x"])
    ballast = fill(small)
    try:
        op = api.operate(sid, "suspend", good=False)
        state = api.wait_state(sid, "running", "suspended")["state"]
        say("suspend on a full disk: %s %s, then %s" % (op["state"], op["error"], state))
        if op["state"] == "failed":
            assert op["error"]["code"] == "host_disk_full" and state == "running", (op, state)
            assert guest.read(api, sid, "/home/user/kept") == "yes"
        refused = api.call("POST", "/v1/sandboxes", {"template": "seed:latest", "resources": {"memory_mib": 256}}, headers={"Prefer": "wait=20"})
        if refused.status == 202:
            assert refused.json["operation"]["state"] == "failed", refused
            assert refused.json["operation"]["error"]["code"] in ("no_capacity", "host_disk_full"), refused
        else:
            assert refused.status in (429, 503), refused
    finally:
        ballast.unlink()
    room(api)
    if api.sandbox(sid)["state"] == "running":
        api.suspend(sid)
    api.wake(sid)
    assert guest.read(api, sid, "/home/user/kept") == "yes"
    api.delete(sid)
    api.delete_snapshots(sid)


def test_a_vm_whose_disk_cannot_grow_goes_on_later(small):
    api = small.api
    sid = api.create()
    ballast = fill(small)
    f = None
    try:
        f = guest.follow(api.session(sid, ["sh", "-c", "head -c 100M /dev/urandom > /home/user/big && sync && sha256sum /home/user/big | cut -c1-8; echo done"]))
        time.sleep(6)
        stalled = api.sandbox(sid)
        say("with a full disk: %s ready %s" % (stalled["state"], stalled["ready"]))
        assert stalled["state"] == "running" and b"done" not in f.result.stdout
    finally:
        ballast.unlink()
    room(api)
    f.join(60)
    assert f.result.code == 0 and f.result.stdout.endswith(b"done\n"), f.result
    assert api.run(sid, ["true"]).code == 0
    api.delete(sid)


def test_trim_gives_room_back(small):
    api = small.api
    sid = api.create()
    disk = small.state / "store" / "sandboxes" / sid / "disk.img"
    api.run(sid, ["sh", "-c", "head -c 150M /dev/urandom > /home/user/big; sync"], timeout=120)
    full = os.stat(disk).st_blocks
    r = api.run(sid, ["sh", "-c", "rm /home/user/big; sync; fstrim -v /"], user="root", timeout=120)
    assert r.code == 0, r
    time.sleep(1)
    after = os.stat(disk).st_blocks
    say("disk of the sandbox: %d MiB, after rm and fstrim %d MiB" % (full >> 11, after >> 11))
    assert after < full - (100 << 11)
    api.delete(sid)
