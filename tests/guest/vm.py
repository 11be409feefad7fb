# SPDX-License-Identifier: Apache-2.0
"""Boots the guest for tests: its own initramfs, the seed tree as a root disk, QEMU's microvm without KVM."""

import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import time

DEFAULT_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("SPACE_CACHE_DIR", "/var/cache/space"))
KERNELS = pathlib.Path(os.environ.get("SPACE_TEST_KERNELS", CACHE / "kernels"))
SEED = pathlib.Path(os.environ.get("SPACE_TEST_SEED", CACHE / "seed"))


def find_built(name):
    """The newest build of a program below any build folder of this checkout."""
    found = sorted(ROOT.glob(f"build*/{name}"), key=lambda p: p.stat().st_mtime)
    return found[-1] if found else None


def guest_binary():
    given = os.environ.get("SPACE_TEST_GUEST")
    return pathlib.Path(given) if given else find_built("src/guest/space-guest")


def cpio_entry(name, mode, data=b"", rdev=(0, 0)):
    head = "070701" + "".join(f"{v:08X}" for v in (
        abs(hash(name)) % 1000000 + 1, mode, 0, 0, 1, 0, len(data), 0, 0, *rdev, len(name) + 1, 0))
    out = head.encode() + name.encode() + b"\0"
    out += bytes(-len(out) % 4) + data
    return out + bytes(-len(data) % 4)


def make_initrd(path, guest, profile):
    entries = [cpio_entry(d, 0o40755) for d in ("dev", "proc", "sys", "newroot", "modules")]
    entries += [cpio_entry("dev/console", 0o20600, rdev=(5, 1)), cpio_entry("init", 0o100755, guest.read_bytes())]
    order = KERNELS / profile / "modules.order.txt"
    if order.exists():
        entries.append(cpio_entry("modules/modules.order.txt", 0o100444, order.read_bytes()))
        for name in order.read_text().split():
            entries.append(cpio_entry(f"modules/{name}", 0o100444, (KERNELS / profile / "modules" / name).read_bytes()))
    path.write_bytes(b"".join(entries) + cpio_entry("TRAILER!!!", 0))


def make_disk(path, size="400M"):
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1,discard", "-O", "^has_journal", "-m", "0",
                    "-d", SEED / "rootfs", path, size], check=True, stdin=subprocess.DEVNULL)


def tsc_khz():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("cpu MHz"):
            return int(float(line.split(":")[1]) * 1000)
    return 2000000


class Guest:
    """A running VM; `sock` is the host's end of the channel's port."""

    def __init__(self, folder, disk, profile, memory=256, agent=None, serial_name="serial.log"):
        self.folder = pathlib.Path(folder)
        self.serial = self.folder / serial_name
        initrd = self.folder / "initrd.cpio"
        make_initrd(initrd, agent or guest_binary(), profile)
        kernel = KERNELS / profile / ("vmlinux" if profile == "lean" else "vmlinuz")
        port, qmp = self.folder / "port.sock", self.folder / "qmp.sock"
        for path in (port, qmp):
            path.unlink(missing_ok=True)
        acpi = "off" if profile == "lean" else "on"
        append = f"console=ttyS0 loglevel=5 tsc=reliable tsc_early_khz={tsc_khz()} panic=-1 reboot=t"
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-M", f"microvm,acpi={acpi}", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1",
             "-m", str(memory), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
             "-kernel", str(kernel), "-initrd", str(initrd), "-append", append, "-serial", f"file:{self.serial}",
             "-drive", f"file={disk},if=none,id=d0,format=raw,snapshot=on,discard=unmap",
             "-device", "virtio-blk-device,drive=d0", "-device", "virtio-serial-device",
             "-chardev", f"socket,id=c0,path={port},server=on,wait=off", "-device", "virtserialport,chardev=c0,name=space.0",
             "-device", "virtio-rng-device", "-qmp", f"unix:{qmp},server=on,wait=off"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(self.folder / "qemu.log", "w"))
        self.sock = self.connect(port)
        self.qmp_path = qmp

    def connect(self, path, timeout=20):
        deadline = time.monotonic() + timeout
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(str(path))
                return sock
            except OSError:
                sock.close()
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError((self.folder / "qemu.log").read_text()) from None
                time.sleep(0.005)

    def reconnect(self):
        self.sock.close()
        self.sock = self.connect(self.folder / "port.sock")
        return self.sock

    def console(self):
        return self.serial.read_text(errors="replace")

    def wakeups(self):
        """Of the VMM's main thread, where its timers are."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.M).group(1))

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.sock.close()
        self.process.kill()
        self.process.wait()


class Hosted:
    """The same agent as an ordinary process on this machine (sanitizers, no VM): see hosted.c."""

    def __init__(self, program, folder, address_space=None):
        self.sock, theirs = socket.socketpair()
        self.log = pathlib.Path(folder) / "hosted.log"
        options = "quarantine_size_mb=1:" + os.environ.get("ASAN_OPTIONS", "")
        # A test run without a terminal may ignore these, and an ignored signal is inherited; init of a guest ignores none.
        self.process = subprocess.Popen([program, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                                        preexec_fn=lambda: [signal.signal(s, signal.SIG_DFL) for s in DEFAULT_SIGNALS],
                                        env=dict(os.environ, ASAN_OPTIONS=options), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=open(self.log, "w"))
        if address_space:
            resource.prlimit(self.process.pid, resource.RLIMIT_AS, (address_space, resource.RLIM_INFINITY))
        theirs.close()

    def console(self):
        return self.log.read_text(errors="replace")

    def stop(self):
        """Ends it by closing the port; its exit status says whether the sanitizers were content."""
        self.sock.close()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
