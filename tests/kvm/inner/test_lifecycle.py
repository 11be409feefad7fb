# SPDX-License-Identifier: Apache-2.0
"""Promise: what a sandbox can do, it can do on KVM. One sandbox goes through all of it, in the order of this file: a process in it
counts all the time, in memory, and a file says what was written when."""

import json
import pathlib
import time

import pytest

from lib import guest

WAIT_S = 240  # emulated hardware that emulates hardware


class Line:
    """What a test leaves for the next."""

    sandbox = snapshot = child = None
    reached = 0


@pytest.fixture(scope="module")
def line():
    return Line()


def wait(system, answer):
    op = system.api.wait(answer["operation_id"], timeout=WAIT_S)
    assert op["state"] == "succeeded", op
    return answer


def shell(system, sandbox, script):
    result = system.api.run(sandbox, ["sh", "-c", script], timeout=WAIT_S)
    assert result.code == 0 and not result.faults, result
    return result.stdout.decode()


def state(system, sandbox):
    return system.api.sandbox(sandbox)["state"]


def generation(system, sandbox):
    return json.loads(system.cli("get", sandbox, "-o", "json").stdout)["generation"]


def count(system, sandbox):
    return guest.count(system.api, sandbox)


def counts_on(system, sandbox, reached):
    """The counter is past `reached`, and not started again: it moves on from there."""
    first = count(system, sandbox)
    assert first >= reached
    end = time.monotonic() + WAIT_S
    while count(system, sandbox) <= first:
        assert time.monotonic() < end, "the process in the sandbox stands still at %d" % first


def test_up(system):
    assert system.api.ok("GET", "/v1/nodes")["items"][0]["accelerator"] == "kvm"


def test_create(system, line):
    """The first create boots the template."""
    answer = wait(system, system.api.ok("POST", "/v1/sandboxes", {"template": "seed:latest", "resources": {"memory_mib": 256}}))
    line.sandbox = answer["sandbox"]["id"]
    sandbox = system.api.sandbox(line.sandbox)
    assert sandbox["state"] == "running" and sandbox["accelerator"] == "kvm"


def test_boot_needed_no_second_attempt(system):
    assert "boot_retried" not in system.logs(1000)


def test_limits(system, line):
    """Both processes of the VM are in one control group of version 2, which counts and limits what they take."""
    record = json.loads((system.state / "store" / "sandboxes" / line.sandbox / "vm.json").read_text())
    group = pathlib.Path("/sys/fs/cgroup") / ("space-" + system.settings["uid_base"]) / record["cgroup"]

    def value(name):
        return (group / name).read_text().strip()

    assert {int(p) for p in value("cgroup.procs").split()} == {record["pid"], record["vmm_pid"]}
    assert value("memory.max") == str((256 + 384) << 20) and 0 < int(value("memory.current")) <= int(value("memory.max"))
    assert value("pids.max") == "256" and 2 <= int(value("pids.current"))
    assert value("cpu.max") == "150000 100000" and value("memory.oom.group") == "1"


def test_run(system, line):
    assert shell(system, line.sandbox, "echo $((6 * 7)) >note; sync; cat note") == "42\n"
    guest.detached(system.api, line.sandbox, ["python3", "-c", guest.COUNTER])
    shell(system, line.sandbox, "until [ -s /tmp/counter ]; do sleep 0.2; done")
    counts_on(system, line.sandbox, 1)


def test_clock(system, line):
    clocksource, timer, now = shell(system, line.sandbox, "cd /sys/devices/system; cat clocksource/clocksource0/current_clocksource "
                                    "clockevents/clockevent0/current_device; date +%s").split()
    assert clocksource in ("kvm-clock", "tsc") and timer.startswith("lapic") and abs(int(now) - time.time()) < 10


def test_pause_and_wake(system, line):
    reached = count(system, line.sandbox)
    system.cli("pause", line.sandbox, timeout=WAIT_S)
    assert state(system, line.sandbox) == "paused"
    system.cli("wake", line.sandbox, timeout=WAIT_S)
    assert state(system, line.sandbox) == "running"
    counts_on(system, line.sandbox, reached)


def test_suspend(system, line):
    line.reached = count(system, line.sandbox)
    system.cli("suspend", line.sandbox, timeout=WAIT_S)
    assert state(system, line.sandbox) == "suspended"
    assert not (system.state / "run" / "vm" / line.sandbox).exists()


def test_wake(system, line):
    system.cli("wake", line.sandbox, timeout=WAIT_S)
    assert state(system, line.sandbox) == "running"
    counts_on(system, line.sandbox, line.reached)
    assert shell(system, line.sandbox, "cat note") == "42\n"
    assert abs(int(shell(system, line.sandbox, "date +%s")) - time.time()) < 10


def test_snapshot(system, line):
    line.snapshot = system.cli("snapshot", line.sandbox, "--name", "kept", timeout=WAIT_S).stdout.decode().split()[0]
    snapshot = system.api.ok("GET", "/v1/snapshots/" + line.snapshot)
    assert snapshot["state"] == "ready" and snapshot["memory_bytes"] > 0
    counts_on(system, line.sandbox, line.reached)


def test_fork(system, line):
    """Of a running sandbox: the child goes on where the parent was, as another."""
    reached = count(system, line.sandbox)
    line.child = system.cli("fork", line.sandbox, timeout=WAIT_S).stdout.decode().split()[0]
    assert line.child != line.sandbox and state(system, line.child) == "running"
    counts_on(system, line.child, reached)
    counts_on(system, line.sandbox, reached)
    who = "cat /etc/machine-id; hostname; head -c 16 /dev/urandom | od -An -tx1"
    for mine, theirs in zip(*(shell(system, s, who).splitlines() for s in (line.sandbox, line.child))):
        assert mine != theirs
    shell(system, line.child, "echo child >note")
    assert shell(system, line.sandbox, "cat note") == "42\n"


def test_fork_of_a_fork(system, line):
    reached = count(system, line.child)
    grandchild = system.cli("fork", line.child, timeout=WAIT_S).stdout.decode().split()[0]
    assert shell(system, grandchild, "cat note") == "child\n"
    counts_on(system, grandchild, reached)
    system.cli("rm", grandchild, timeout=WAIT_S)


def test_rollback(system, line):
    shell(system, line.sandbox, "echo later >note; sync")
    before = generation(system, line.sandbox)
    system.cli("rollback", line.sandbox, line.snapshot, timeout=WAIT_S)
    assert state(system, line.sandbox) == "running"
    assert shell(system, line.sandbox, "cat note") == "42\n"
    counts_on(system, line.sandbox, line.reached)
    assert generation(system, line.sandbox) > before


def test_delete(system, line):
    for sandbox in filter(None, (line.child, line.sandbox)):
        system.cli("rm", sandbox, timeout=WAIT_S)
        assert state(system, sandbox) == "deleted"
    assert not list((system.state / "store" / "sandboxes").glob("sbx_*"))
