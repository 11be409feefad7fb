# SPDX-License-Identifier: Apache-2.0
"""Promise: a leak of any class of resource shows in the host difference. One of each is planted, seen, and taken away again."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from driver import UID_BASE, vm_id
from lib import hostdiff

BASE = UID_BASE + 50000
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000


@pytest.fixture
def state():
    path = pathlib.Path(tempfile.mkdtemp(prefix="sphd", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@contextlib.contextmanager
def child(code, uid=0):
    """A Python process that runs code, says it is ready, and sleeps."""
    p = subprocess.Popen([sys.executable, "-c", "import os, time, ctypes, fcntl, struct, socket\n%s\nif %d: os.setgroups([]); os.setuid(%d)\n"
                          "print(flush=True)\ntime.sleep(600)" % (code, uid, uid)], stdout=subprocess.PIPE)
    p.stdout.readline()
    try:
        yield p
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


@contextlib.contextmanager
def process(state):
    with child("", BASE + 70):
        yield


@contextlib.contextmanager
def process_by_path(state):
    p = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(state)])
    try:
        yield
    finally:
        p.kill()
        p.wait()


UNSHARE = "assert ctypes.CDLL(None).unshare(%d) == 0" % CLONE_NEWNET
TAP = "f = os.open('/dev/net/tun', os.O_RDWR); fcntl.ioctl(f, 0x400454ca, struct.pack('16sH22x', b'tap%d', 0x5002))"


@contextlib.contextmanager
def netns(state):
    with child(UNSHARE, BASE + 71):
        yield


@contextlib.contextmanager
def netns_kept_by_a_descriptor(state):
    code = ("a = os.open('/proc/self/ns/net', os.O_RDONLY); %s; b = os.open('/proc/self/ns/net', os.O_RDONLY)\n"
            "assert ctypes.CDLL(None).setns(a, 0) == 0" % UNSHARE)
    with child(code, BASE + 72):
        yield


@contextlib.contextmanager
def netns_mounted(state):
    at = state / "ns"
    at.touch()
    with child(UNSHARE) as p:
        assert LIBC.mount(b"/proc/%d/ns/net" % p.pid, str(at).encode(), None, 4096, None) == 0
    try:
        yield
    finally:
        assert LIBC.umount2(str(at).encode(), 2) == 0


@contextlib.contextmanager
def tap(state):
    with child(UNSHARE + "\n" + TAP, BASE + 73):
        yield


@contextlib.contextmanager
def mount(state):
    at = state / "mnt"
    at.mkdir()
    assert LIBC.mount(b"t", str(at).encode(), b"tmpfs", 0, b"size=64k") == 0
    try:
        yield
    finally:
        assert LIBC.umount2(str(at).encode(), 0) == 0


@contextlib.contextmanager
def loop(state):
    image = state / "image"
    with open(image, "wb") as f:
        f.truncate(1 << 20)
    device = subprocess.run(["losetup", "-f", "--show", str(image)], capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield
    finally:
        subprocess.run(["losetup", "-d", device], check=True)


@contextlib.contextmanager
def cgroup(state):
    root = pathlib.Path("/sys/fs/cgroup/pids")
    root = root if root.is_dir() else pathlib.Path("/sys/fs/cgroup")
    path = root / ("space-%d" % BASE) / vm_id()
    path.mkdir(parents=True)
    try:
        yield
    finally:
        path.rmdir()
        path.parent.rmdir()


@contextlib.contextmanager
def unix_socket(state):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(state / "left.sock"))
        os.unlink(state / "left.sock")  # the name is gone, the socket is not
        s.listen()
        yield


@contextlib.contextmanager
def listener(state):
    with child("os.setuid(%d); s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()" % (BASE + 3)):
        yield


@contextlib.contextmanager
def file(state):
    (state / "run" / "vm" / vm_id()).mkdir(parents=True)
    yield


@contextlib.contextmanager
def shm(state):
    path = pathlib.Path("/dev/shm/space-test-%d" % os.getpid())
    path.touch()
    os.chown(path, BASE + 74, BASE + 74)
    try:
        yield
    finally:
        path.unlink()


PLANTS = {"process": (process, "processes"), "process_by_path": (process_by_path, "processes"), "netns": (netns, "netns"),
          "netns_descriptor": (netns_kept_by_a_descriptor, "netns"), "netns_mount": (netns_mounted, "netns"), "tap": (tap, "taps"),
          "mount": (mount, "mounts"), "loop": (loop, "loops"), "cgroup": (cgroup, "cgroups"), "unix_socket": (unix_socket, "unix_sockets"),
          "listener": (listener, "listeners"), "file": (file, "files"), "shm": (shm, "shm")}


@pytest.mark.parametrize("whole", [False, True], ids=["ours", "whole_host"])
@pytest.mark.parametrize("name", PLANTS)
def test_planted_leak_is_seen(state, name, whole):
    plant, kind = PLANTS[name]
    base = None if whole else BASE
    before = hostdiff.snapshot(state, base)
    with plant(state):
        seen = hostdiff.diff(before, hostdiff.snapshot(state, base))
        assert kind in seen, "a planted %s is not seen" % name
    if whole:
        return  # others may have begun something in the meantime
    end = time.monotonic() + 30
    while (left := hostdiff.diff(before, hostdiff.snapshot(state, base), ignore=("files",))) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left


def test_nft_table_is_seen(state):
    if not shutil.which("nft"):
        pytest.skip("nft is not installed")
    name = "space_test_%d" % os.getpid()
    before = hostdiff.snapshot(state)
    subprocess.run(["nft", "add", "table", "inet", name], check=True)
    try:
        assert any(name in t for t in hostdiff.diff(before, hostdiff.snapshot(state))["nft"])
    finally:
        subprocess.run(["nft", "delete", "table", "inet", name], check=True)


def test_every_class_has_its_plant():
    assert {kind for _, kind in PLANTS.values()} | {"nft"} == set(hostdiff.CLASSES)


def test_others_do_not_count(state):
    """With uid_base, what another installation does is no difference."""
    before = hostdiff.snapshot(state, BASE)
    with child("", BASE + 10000), child(UNSHARE, BASE + 10001):
        assert not hostdiff.diff(before, hostdiff.snapshot(state, BASE))


def test_a_restart_is_no_difference(state):
    with child("", BASE + 75):
        before = hostdiff.snapshot(state, BASE)
    with child("", BASE + 75):
        assert not hostdiff.diff(before, hostdiff.snapshot(state, BASE))


def test_as_a_program(state):
    script = pathlib.Path(hostdiff.__file__).resolve().parents[1] / "hostdiff.py"
    saved = state / "etc"
    saved.mkdir()
    args = [sys.executable, str(script), str(state), "--uid-base", str(BASE)]
    assert subprocess.run([*args, "--save", str(saved / "before")]).returncode == 0
    assert subprocess.run([*args, "--against", str(saved / "before")]).returncode == 0
    (state / "left").touch()
    done = subprocess.run([*args, "--against", str(saved / "before")], capture_output=True, text=True)
    assert done.returncode == 1 and "left" in done.stdout
