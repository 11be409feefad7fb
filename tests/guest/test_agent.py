# SPDX-License-Identifier: Apache-2.0
"""The agent's promises in a real guest (QEMU without KVM), and those that need one: boot, identity, clock, cgroups.

SPACE_TEST_KERNEL picks the profile (default lean, else stock); a full run takes both."""

import os
import re
import subprocess
import time

import pytest

import channel
import vm
from cases import *  # noqa: F401,F403 - the tests
from cases_quiesce import *  # noqa: F401,F403
from sizes import FULL, say, size


def profiles():
    given = os.environ.get("SPACE_TEST_KERNEL")
    have = [given] if given else [p for p in ("lean", "stock") if (vm.KERNELS / p / "kernel.json").exists()]
    return have if FULL or given else have[:1]


@pytest.fixture(scope="session")
def disk(tmp_path_factory):
    path = tmp_path_factory.mktemp("disk") / "root.img"
    vm.make_disk(path)
    return path


def boot(folder, disk, profile, **more):
    guest = vm.Guest(folder, disk, profile, **more)
    try:
        channel.Channel(guest.sock).hello(timeout=120)
    except BaseException:
        print(guest.console())
        guest.stop()
        raise
    guest.ready = time.monotonic() - guest.began
    guest.flat_commands, guest.orphans = size(300, 3000), size(300, 5000)  # the larger run is test_hosted.py's
    return guest


@pytest.fixture(scope="module", params=profiles() or ["none"])
def guest(request, tmp_path_factory, disk):
    if request.param == "none" or not vm.guest_binary():
        pytest.skip("no guest kernel or no space-guest")
    guest = boot(tmp_path_factory.mktemp("vm"), disk, request.param)
    say(f"{request.param}: agent ready {guest.ready:.2f} s after the VMM's start")
    yield guest
    console = guest.console()
    guest.stop()
    assert "Kernel panic" not in console and "Oops" not in console, console[-4000:]


@pytest.fixture
def c(guest):
    return channel.Channel(guest.sock).hello(resync=True)


# --- what only a guest shows ---

def test_clock_and_idle_ticks(guest, c):
    c.identity()
    assert c.ping(flags=1).clocksource == "tsc"
    time.sleep(2)
    script = "grep -E '^ *LOC:' /proc/interrupts; sleep 10; grep -E '^ *LOC:' /proc/interrupts"
    cpu, wakeups = guest.cpu_seconds(), guest.wakeups()
    lines = c.sh(script).stdout.decode().strip().split("\n")
    ticks = (int(lines[1].split()[1]) - int(lines[0].split()[1])) / 10
    wakeups = (guest.wakeups() - wakeups) / 10
    say(f"{ticks:.1f} timer interrupts and {wakeups:.1f} wakeups of the VMM a second, {100 * (guest.cpu_seconds() - cpu) / 10:.1f} % of a host CPU")
    assert ticks < 30  # wakeups are said only: on a busy host most of them wait for a lock
    quiet = "cd /proc/sys/vm; cat compaction_proactiveness stat_interval 2>/dev/null"
    assert set(c.sh(quiet).stdout.decode().split()) <= {"0", "10"}


def test_mounts_and_devices(c):
    mounts = c.sh("cat /proc/self/mounts").stdout.decode()
    for want in ("/dev/vda / ext4 rw,noatime", "cgroup2 /sys/fs/cgroup", "devpts /dev/pts", "tmpfs /dev/shm", "tmpfs /run"):
        assert want in mounts, mounts
    assert "newroot" not in mounts
    out = c.sh("ls -ld /tmp; ls -l /dev/fd /dev/stdin; cat /sys/class/net/lo/operstate; ip -o link 2>/dev/null | grep -c eth0.*UP",
               user="nobody", cwd="/").stdout.decode()
    assert "drwxrwxrwt" in out and "/proc/self/fd" in out and "\n0" in out
    assert c.sh("cat /dev/vport*", user="nobody", cwd="/").exited.exit_code != 0


def test_the_agent_is_not_reachable_from_commands(c):
    assert c.sh("kill -9 1; kill -TERM 1; sleep 0.2; echo fine").stdout == b"fine\n"
    assert re.fullmatch(rb"0::/\d+\n", c.sh("cat /proc/self/cgroup").stdout)
    assert c.sh("cat /proc/1/cgroup").stdout == b"0::/../agent\n"
    assert b"agent" not in c.sh("ls /sys/fs/cgroup").stdout
    assert c.ping().kind == "PONG"


def test_what_a_command_puts_at_the_top_is_frozen_too(c):
    """Docker makes cgroups at the root of what it sees and moves processes there."""
    c.start("sh", "-c", "mkdir /sys/fs/cgroup/docker; echo $$ > /sys/fs/cgroup/docker/cgroup.procs; "
            "echo $$ > /run/moved; while :; do date +%N > /run/moved-stamp; done", process_id="moved").wait_started()
    assert c.sh("while [ ! -s /run/moved-stamp ]; do sleep 0.1; done; cat /proc/$(cat /run/moved)/cgroup").stdout == b"0::/docker\n"
    stream = c.open()
    stream.send(channel.record("QUIESCE"))
    assert stream.next().kind == "QUIESCED"
    c.hello()
    c.identity()
    assert c.ask("SIGNAL", process_id="moved", signal=9, scope=1).kind == "OK"  # it left its own cgroup
    assert c.attach("moved").wait().exited.signal == 9
    assert c.sh("rmdir /sys/fs/cgroup/docker").exited.exit_code == 0


def test_groups_of_a_user(c):
    c.sh("addgroup --system grpa >/dev/null 2>&1 || echo 'grpa:x:777:user' >> /etc/group; echo 'grpb:x:778:x,user' >> /etc/group")
    groups = c.sh("id -G", user="user").stdout.decode().split()
    assert groups[0] == "1000" and "778" in groups


def test_identity_in_the_guest(c):
    c.sh("""mkdir -p /etc/space/identity.d
        printf '#!/bin/sh\nsleep 0.2; echo "$SPACE_GENERATION $(cat /run/space/generation) $(hostname) $(cat /sys/fs/cgroup/cgroup.events)" > /run/hook\n' > /etc/space/identity.d/10-first
        printf '#!/bin/sh\nexit 3\n' > /etc/space/identity.d/20-fails
        printf '#!/bin/sh\necho bad > /run/bad\n' > /etc/space/identity.d/30-writable
        chmod 755 /etc/space/identity.d/10-first /etc/space/identity.d/20-fails; chmod 777 /etc/space/identity.d/30-writable""")
    before = c.sh("cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -An -tx1").stdout
    stream = c.open()
    stream.send(channel.record("QUIESCE"))
    assert stream.next().kind == "QUIESCED"
    c.hello(generation=41)
    want = 1234567890 * 10**9
    answer = c.identity(generation=41, realtime_ns=want, hostname="box-7", machine_id="ab" * 16, sandbox_id="sbx_7")
    assert (answer.hooks_run, answer.hooks_failed) == (2, 1)
    out = c.sh("date +%s; hostname; cat /etc/machine-id /run/machine-id /etc/hostname /run/space/generation /run/space/sandbox_id; "
               "cat /run/hook; ls /run/bad 2>&1").stdout.decode().split("\n")
    assert 0 <= int(out[0]) - 1234567890 < 30
    assert out[1:7] == ["box-7", "ab" * 16, "ab" * 16, "box-7", "41", "sbx_7"]
    assert out[7].startswith("41 41 box-7") and "frozen 1" in "".join(out[7:10])  # before the thaw
    after = c.sh("cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -An -tx1").stdout
    assert before.split()[0] != after.split()[0] and before != after
    again = c.identity(generation=42, machine_id="ab" * 16)
    assert again.kind == "IDENTIFIED"
    assert c.sh("cat /proc/sys/kernel/random/boot_id").stdout.split()[0] == after.split()[0]  # the same machine
    assert abs(int(c.sh("date +%s").stdout) - time.time()) < 5
    c.sh("rm -r /etc/space/identity.d")


def test_a_hung_hook_is_bounded(c):
    c.sh("mkdir -p /etc/space/identity.d; printf '#!/bin/sh\nsleep 600\n' > /etc/space/identity.d/1; chmod 755 /etc/space/identity.d/1")
    began = time.monotonic()
    answer = c.identity()
    assert (answer.hooks_run, answer.hooks_failed) == (1, 1) and 4 < time.monotonic() - began < 15
    c.sh("rm -r /etc/space/identity.d")


def test_frozen_commands_do_not_run(c):
    """A counter in a file: what it says after QUIESCED is what it says when a second has passed and IDENTITY is due."""
    c.sh("mkdir -p /etc/space/identity.d; printf '#!/bin/sh\ncp /run/count /run/count-at-identity\n' > /etc/space/identity.d/1; "
         "chmod 755 /etc/space/identity.d/1")
    c.start("sh", "-c", "i=0; while :; do i=$((i+1)); echo $i >> /run/count; done", process_id="count").wait_started()
    time.sleep(0.5)
    stream = c.open()
    stream.send(channel.record("QUIESCE", flags=1))
    assert stream.next().kind == "QUIESCED"
    c.hello()
    assert c.identity(generation=43).hooks_run == 1
    frozen = c.sh("cp /run/count-at-identity /run/first; rm -r /etc/space/identity.d; wc -l < /run/first; sleep 0.3; wc -l < /run/count")
    c.ask("SIGNAL", process_id="count", signal=9)
    first, later = map(int, frozen.stdout.split())
    assert 0 < first < later  # it stood still for the hook and went on after


def test_out_of_memory_is_told(c):
    script = "echo 30M > /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.max; exec dd if=/dev/zero of=/dev/null bs=60M count=1"
    cmd = c.sh(script, timeout=120)
    assert cmd.exited.signal == 9 and cmd.exited.oom_killed == 1 and cmd.exited.reason == "oom_killed"
    assert c.run("echo", "alive").stdout == b"alive\n"


def test_full_disk_leaves_the_agent_working(c):
    c.sh("dd if=/dev/zero of=/fill bs=1M 2>/dev/null", timeout=120)
    assert c.sh("echo x > /more; echo $?").stdout
    assert c.identity(generation=9, hostname="full").kind == "IDENTIFIED"
    assert c.sh("hostname; cat /run/space/generation").stdout == b"full\n9\n"
    assert c.sh("rm -f /fill /more").exited.exit_code == 0


def test_cgroups_are_removed(c):
    for _ in range(size(20, 500)):
        c.sh("mkdir /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/mine; true")
    left = c.sh("ls -d /sys/fs/cgroup/*/ | wc -l").stdout
    assert int(left) <= 6  # this one, the spare, and what earlier tests left running


def test_host_reconnects(guest, c):
    """The chardev's other end goes away and comes back: nothing is lost of the guest, no hang-up event is needed."""
    cmd = c.start("sleep", "600", process_id="stay").wait_started()
    assert cmd.started
    for _ in range(5):
        c = channel.Channel(guest.reconnect()).hello(resync=True)
    assert next(p for p in c.list() if p.process_id == "stay").state == 1
    cpu = guest.cpu_seconds()
    guest.sock.close()
    time.sleep(3)
    used = guest.cpu_seconds() - cpu
    guest.sock = guest.connect(guest.folder / "port.sock")
    c = channel.Channel(guest.sock).hello(resync=True)
    say(f"{used / 3 * 100:.1f} % of a CPU while nobody is connected")
    assert used < 1.5
    assert c.ask("SIGNAL", process_id="stay", signal=9).remaining == 0


def test_latency(guest, c):
    """Prints; budgets live in the benchmarks."""
    n = size(30, 300)
    rows = []
    for name, call in (("ping", lambda: c.ping()), ("true", lambda: c.run("/bin/true")),
                       ("sh -c 'echo hi'", lambda: c.run("sh", "-c", "echo hi"))):
        times, cpu = [], guest.cpu_seconds()
        for _ in range(n):
            began = time.monotonic()
            call()
            times.append((time.monotonic() - began) * 1e3)
        times.sort()
        rows.append(f"{name}: p50 {times[n // 2]:.2f} p90 {times[n * 9 // 10]:.2f} max {times[-1]:.2f} ms, "
                    f"{(guest.cpu_seconds() - cpu) / n * 1e3:.1f} ms of VMM CPU")
    began = time.monotonic()
    got = len(c.run("head", "-c", "60000000", "/dev/zero").stdout)
    rows.append(f"output {got / 1e6 / (time.monotonic() - began):.0f} MB/s")
    say("\n".join(rows))


def test_power_off(tmp_path, disk, guest):
    profile = next((p for p in ("lean", "stock") if (vm.KERNELS / p / "kernel.json").exists()), None)
    other = boot(tmp_path, disk, profile)
    try:
        c = channel.Channel(other.sock).hello(resync=True)
        c.start("sleep", "600").wait_started()
        assert c.ask("SHUTDOWN").kind == "SHUTDOWN_OK"
        assert other.process.wait(30) == 0
    except subprocess.TimeoutExpired:
        pytest.fail(other.console()[-3000:])
    finally:
        other.stop()


def test_without_a_root_disk_the_machine_ends(tmp_path):
    profile = profiles()[0] if profiles() else pytest.skip("no kernel")
    blank = tmp_path / "blank.img"
    blank.write_bytes(bytes(1 << 20))
    broken = vm.Guest(tmp_path, blank, profile)
    try:
        assert broken.process.wait(120) == 0
        assert re.search("space-guest: fatal: root disk", broken.console())
    finally:
        broken.stop()
