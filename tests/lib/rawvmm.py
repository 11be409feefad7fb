# SPDX-License-Identifier: Apache-2.0
"""The VMM by itself, without anything of ours around it: what its own stop, cont, save and restore take here and now. The yardstick of
the lifecycle figures. The guest is a kernel that found no root and stands still; memory is a file beside the others."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

from lib.system import CACHE


class Vmm:
    def __init__(self, folder, kernel, memory, share, incoming=False, memory_mib=256):
        profile = json.loads((CACHE / "kernels" / kernel / "kernel.json").read_text())
        image = next(p for p in (CACHE / "kernels" / kernel / "vmlinux", CACHE / "kernels" / kernel / "vmlinuz") if p.exists())
        self.socket = tempfile.mktemp(prefix="qmp", dir=folder)
        argv = ["qemu-system-x86_64", "-M", "microvm,acpi=%s,memory-backend=ram0" % ("on" if profile["acpi"] else "off"),
                "-accel", "kvm" if os.access("/dev/kvm", os.W_OK) else "tcg,thread=multi,tb-size=64",
                "-cpu", "host" if os.access("/dev/kvm", os.W_OK) else "max", "-smp", "1", "-m", str(memory_mib),
                "-object", "memory-backend-file,id=ram0,size=%dM,mem-path=%s,share=%s" % (memory_mib, memory, "on" if share else "off"),
                "-global", "migration.send-configuration=off", "-nodefaults", "-no-user-config", "-nographic",
                "-device", "virtio-serial-device", "-device", "virtio-rng-device", "-qmp", "unix:%s,server=on,wait=off" % self.socket]
        argv += ["-incoming", "defer"] if incoming else ["-kernel", str(image), "-append", "quiet panic=0 tsc=reliable"]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.connection = self._connect()
        self.lines = self.connection.makefile("r")
        self.lines.readline()
        self.call("qmp_capabilities")

    def _connect(self):
        end = time.monotonic() + 30
        while True:
            s = socket.socket(socket.AF_UNIX)
            try:
                s.connect(self.socket)
                return s
            except OSError:
                s.close()
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.0005)

    def call(self, command, **arguments):
        message = {"execute": command, **({"arguments": arguments} if arguments else {})}
        self.connection.sendall((json.dumps(message) + "\n").encode())
        while True:
            answer = json.loads(self.lines.readline())
            if "error" in answer:
                raise OSError("%s: %s" % (command, answer["error"]))
            if "return" in answer:
                return answer["return"]

    def until(self, status):
        end = time.monotonic() + 30
        while self.call("query-status")["status"] != status:
            if time.monotonic() > end:
                raise OSError("the VMM does not come to %s" % status)
            time.sleep(0.0005)

    def end(self):
        self.connection.close()
        self.process.kill()
        self.process.wait()


def timed(fn):
    begun = time.monotonic()
    fn()
    return (time.monotonic() - begun) * 1000


def measure(kernel, runs):
    """{action: [ms]} of stop, cont, save and restore."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="spraw", dir="/tmp"))
    out = {"raw_stop": [], "raw_cont": [], "raw_save": [], "raw_restore": []}
    memory, devices = folder / "memory", folder / "devices"
    with open(memory, "wb") as f:
        f.truncate(256 << 20)
    vmm = None
    try:
        vmm = Vmm(folder, kernel, memory, share=True)
        time.sleep(4)
        for _ in range(runs):
            out["raw_stop"].append(timed(lambda: vmm.call("stop")))
            out["raw_save"].append(timed(lambda: vmm.call("xen-save-devices-state", filename=str(devices), live=False)))
            out["raw_cont"].append(timed(lambda: vmm.call("cont")))
        vmm.call("stop")
        vmm.call("xen-save-devices-state", filename=str(devices), live=False)
        vmm.end()
        for _ in range(max(3, runs // 3)):
            def restore():
                nonlocal vmm
                vmm = Vmm(folder, kernel, memory, share=False, incoming=True)
                vmm.call("migrate-incoming", uri="exec:cat %s" % devices)
                vmm.until("running")
            out["raw_restore"].append(timed(restore))
            vmm.end()
    finally:
        if vmm and vmm.process.poll() is None:
            vmm.end()
        shutil.rmtree(folder, ignore_errors=True)
    return out
