# SPDX-License-Identifier: Apache-2.0
"""Promise: a VM whose memory control group is full dies alone. Whatever it was doing, the sandbox ends in a state the table allows with the
reason, its snapshots are whole, it wakes from the last one, and nobody else notices."""

import os
import pathlib
import time

import pytest

from lib import guest, hostdiff
from lib.sizes import say
from lib.system import running_system

ROOM = 2 << 20  # what the group may still grow by


@pytest.fixture(scope="module")
def system():
    with running_system() as s:
        s.api.delete(s.api.create())
        s.before = hostdiff.snapshot(str(s.root), int(s.settings["uid_base"]), standing_by=True)
        s.neighbour = s.api.create()
        guest.write(s.api, s.neighbour, "/home/user/fresh", "well")
        yield s


def limit_of(pid):
    """(file with the limit, bytes in use) of a process' memory control group, either version."""
    for line in pathlib.Path("/proc/%d/cgroup" % pid).read_text().splitlines():
        number, names, path = line.split(":", 2)
        if "memory" in names.split(","):
            group = pathlib.Path("/sys/fs/cgroup/memory" + path)
            return group / "memory.limit_in_bytes", int((group / "memory.usage_in_bytes").read_text())
        if number == "0" and os.path.exists("/sys/fs/cgroup" + path + "/memory.max"):
            group = pathlib.Path("/sys/fs/cgroup" + path)
            return group / "memory.max", int((group / "memory.current").read_text())
    return None, 0


def squeeze(system, sid):
    """The group is all but full from here on: files in its charge are written out first, so that they make no room."""
    os.sync()
    file, used = limit_of(system.vm_pids(sid)[1])
    if file is None:
        pytest.skip("no memory control group on this host")
    file.write_text(str(used + ROOM))


WHILE = {
    "nothing": None,
    "snapshot": lambda api, sid: api.call("POST", "/v1/sandboxes/%s/snapshot" % sid, {}),
    "suspend": lambda api, sid: api.call("POST", "/v1/sandboxes/%s/suspend" % sid),
    "fork": lambda api, sid: api.call("POST", "/v1/sandboxes/%s/fork" % sid, {"count": 2}),
    "pause": lambda api, sid: api.call("POST", "/v1/sandboxes/%s/pause" % sid),
}


@pytest.mark.parametrize("name", WHILE)
def test_a_full_control_group(system, name):
    api = system.api
    sid = api.create()
    guest.write(api, sid, "/home/user/base", sid)
    base = api.take_snapshot(sid, "base")
    squeeze(system, sid)
    eater = api.session(sid, ["python3", "-c", "b = []\nwhile True:\n b.append(bytearray(b'x' * 65536))"])
    with_eater = guest.Follower(eater)
    with_eater.start()
    a = WHILE[name](api, sid) if WHILE[name] else None
    op = None
    if a is not None and a.status == 202:
        op = api.wait(a.json["operation_id"])
        assert op["state"] == "succeeded" or op["error"]["code"], op
    else:
        assert a is None or a.status == 409, a
    state = api.wait_state(sid, "failed", "paused", "suspended", timeout=60)
    with_eater.over.set()
    if state["state"] == "failed":
        assert state["error"]["code"] == "vmm_killed", state
    say("full while %s: operation %s, then %s %s" % (name, op and (op["state"], op["error"]), state["state"], state["error"]))
    assert guest.read(api, system.neighbour, "/home/user/fresh") == "well"
    for s in api.snapshots(sid):
        assert s["state"] in ("ready", "failed"), s
    api.rollback(sid, base)
    assert guest.read(api, sid, "/home/user/base") == sid
    for child in (op or {}).get("children") or []:
        api.delete(child["sandbox_id"])
    api.delete(sid)
    api.delete_snapshots(sid)


def test_nothing_is_left(system):
    system.api.delete(system.neighbour)
    end = time.monotonic() + 60
    while any((left := hostdiff.diff(system.before, hostdiff.snapshot(str(system.root), int(system.settings["uid_base"]), standing_by=True))).values()):
        gone = {k: v for k, v in left.items() if v}
        assert time.monotonic() < end, gone
        time.sleep(0.5)
