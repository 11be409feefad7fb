# SPDX-License-Identifier: Apache-2.0
"""Promise: a snapshot of the disk alone holds what the guest had written, on a file system that is clean; whoever starts from one boots:
files come back, programs don't, and the sandbox is still itself. It is small, and what is snapshotted after it is whole."""

import os
import signal
import time

import pytest

from lib import guest
from lib.sizes import say

HOUR = 3600
# Files that are synced one after the other, each with its sum; and one that is rewritten all the time.
WRITER = r"""
import hashlib, os, sys
os.makedirs("/home/user/written", exist_ok=True)
n = 0
while True:
    data = os.urandom(65536)
    with open("/home/user/written/%d" % n, "wb") as f:
        f.write(data + hashlib.sha256(data).digest())
        f.flush()
        os.fsync(f.fileno())
    with open("/home/user/busy", "wb") as f:
        f.write(os.urandom(1 << 20))
    n += 1
    with open("/home/user/done.new", "w") as f:
        f.write(str(n))
        f.flush()
        os.fsync(f.fileno())
    os.rename("/home/user/done.new", "/home/user/done")
    for old in range(n - 40, n - 20):
        if old >= 0 and os.path.exists("/home/user/written/%d" % old):
            os.unlink("/home/user/written/%d" % old)
"""
CHECK = r"""
import hashlib, json, os
names = sorted(int(x) for x in os.listdir("/home/user/written"))
done = int(open("/home/user/done").read())
bad = [n for n in names if n < done and (lambda d: hashlib.sha256(d[:-32]).digest() != d[-32:])(open("/home/user/written/%d" % n, "rb").read())]
missing = [n for n in range(max(0, done - 20), done) if n not in names]
alive = [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid() and b"import hashlib, os, sys" in open("/proc/%s/cmdline" % p, "rb").read()]
print(json.dumps({"done": done, "files": len(names), "bad": bad, "missing": missing, "alive": alive,
                  "machine_id": open("/etc/machine-id").read().strip(), "hostname": os.uname().nodename,
                  "memory": os.path.exists("/dev/shm/here"), "boot_id": open("/proc/sys/kernel/random/boot_id").read().strip(),
                  "generation": open("/run/space/generation").read().split()}))
"""


@pytest.fixture
def box(api):
    sid = api.create(lifecycle={"idle_suspend_after_s": 0})
    yield sid
    api.delete(sid)
    api.delete_snapshots(sid)


def disk(api, sid):
    op = api.operate(sid, "snapshot", {"content": "disk"})
    return api.ok("GET", "/v1/snapshots/" + op["snapshot_id"]), op


def start_writer(api, sid):
    guest.detached(api, sid, ["python3", "-c", WRITER])
    end = time.monotonic() + 60
    while api.run(sid, ["sh", "-c", "test $(cat /home/user/done) -ge 3"]).code != 0:
        assert time.monotonic() < end, "the writer does not come on"
        time.sleep(0.2)


def is_clean(api, sid):
    r = api.run(sid, ["sh", "-c", "dmesg | grep -iE 'ext4.*(error|corrupt)|i/o error|remount.*read-only'"], user="root")
    assert r.code == 1, r.stdout.decode()
    assert api.run(sid, ["sh", "-c", "touch /home/user/still-writable && sync /home/user/still-writable"]).code == 0


def test_rollback_to_a_disk_that_was_written_to(api, box):
    before = None
    api.run(box, ["sh", "-c", "echo memory > /dev/shm/here"])
    start_writer(api, box)
    before = guest.values(api, box, CHECK)
    assert before["alive"] and before["memory"]
    x, op = disk(api, box)
    assert (x["content"], x["state"], x["memory_bytes"]) == ("disk", "ready", 0) and x["disk_bytes"] > 0
    say("a snapshot of the disk beside a writer: %.1f ms stall, %.0f ms, %d KiB of its own"
        % (x["stall_us"] / 1000, op["timings"]["control_total_ms"], x["exclusive_bytes"] >> 10))
    assert api.sandbox(box)["state"] == "running"
    api.run(box, ["sh", "-c", "rm -rf /home/user/written; echo later > /home/user/later"])
    op = api.rollback(box, x["id"])
    assert op["start_kind"] == "boot"
    say("set back to it: %.0f ms" % op["timings"]["control_total_ms"])
    assert api.sandbox(box)["ready"] and api.sandbox(box)["generation"] == 2
    after = guest.values(api, box, CHECK)
    assert after["done"] >= before["done"] and after["files"] and not after["bad"] and not after["missing"], after
    assert not after["alive"] and not after["memory"], after
    assert after["machine_id"] == before["machine_id"] and after["hostname"] == before["hostname"], (before, after)
    assert after["boot_id"] != before["boot_id"]
    assert api.run(box, ["test", "-e", "/home/user/later"]).code == 1
    is_clean(api, box)
    # From here it is like any other: snapshots with memory, suspend, wake, back to the disk again.
    api.run(box, ["sh", "-c", "echo again > /dev/shm/again"])
    full = api.take_snapshot(box)
    between, _ = disk(api, box)
    api.run(box, ["sh", "-c", "echo more > /dev/shm/more"])
    api.suspend(box)
    api.wake(box)
    assert guest.read(api, box, "/dev/shm/again") + guest.read(api, box, "/dev/shm/more") == "again\nmore\n"
    assert api.rollback(box, full)["start_kind"] != "boot"
    assert guest.read(api, box, "/dev/shm/again") == "again\n" and api.run(box, ["test", "-e", "/dev/shm/more"]).code == 1
    for snapshot in (x["id"], between["id"]):
        assert api.rollback(box, snapshot)["start_kind"] == "boot"
        assert not guest.values(api, box, CHECK)["bad"]
    is_clean(api, box)


def test_checkpoints_of_the_disk_and_a_lost_vm(system, api, box):
    """Taken by the policy; the last one is what a failed sandbox is woken from."""
    api.ok("PATCH", "/v1/sandboxes/" + box, {"lifecycle": {"checkpoint": {"every_s": HOUR, "content": "disk", "keep_last": 2}}})
    f = guest.follow(api.session(box, ["sleep", "1000"]))
    f.wait(lambda r: r.started)
    seen = set()
    for i in range(3):
        guest.write(api, box, "/home/user/step", str(i))
        system.advance_policies(HOUR + 60)
        end = time.monotonic() + 60
        while not (now := {s["id"] for s in api.snapshots(box, kind="checkpoint") if s["state"] == "ready"} - seen):
            assert time.monotonic() < end
            time.sleep(0.1)
        seen |= now
    end = time.monotonic() + 60
    while len(left := [s for s in api.snapshots(box, kind="checkpoint") if s["state"] == "ready"]) != 2:
        assert time.monotonic() < end, left
        time.sleep(0.2)
    assert all(s["content"] == "disk" and s["memory_bytes"] == 0 for s in left)
    guest.write(api, box, "/home/user/step", "lost")
    os.kill(system.vm_pids(box)[1], signal.SIGKILL)
    failed = api.wait_state(box, "failed")
    assert failed["snapshot_id"] == left[0]["id"]
    f.stop()
    assert api.wake(box)["start_kind"] == "boot"
    assert guest.read(api, box, "/home/user/step") == "2"
    is_clean(api, box)


def test_a_new_sandbox_and_the_command_line(system, api, box):
    guest.write(api, box, "/home/user/kept", "yes")
    snapshot = system.cli("snapshot", box, "--disk", "--name", "files").stdout.decode().strip()
    line = next(x for x in system.cli("snapshots", "--sandbox", box).stdout.decode().splitlines() if snapshot in x)
    assert " disk " in line
    made = system.cli("create", "--snapshot", snapshot).stdout.decode().strip()
    assert guest.read(api, made, "/home/user/kept") == "yes" and api.sandbox(made)["start_kind"] == "boot"
    ids = [api.run(s, ["cat", "/etc/machine-id"]).stdout for s in (box, made)]
    assert ids[0] != ids[1]
    api.pause(box)
    refused = api.ask(box, "snapshot", {"content": "disk"})
    assert refused.status == 409 and refused.json["code"] == "wrong_state" and refused.json["field"] == "content", refused
    api.delete(made)
