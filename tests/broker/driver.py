# SPDX-License-Identifier: Apache-2.0
"""A broker of its own for tests: state directory, uids, kernels that are only files, jail_probe in the place of space-vm. Talks to it over
its socket as the node's uid; restarts, kills and removes it, and leaves nothing."""

import contextlib
import itertools
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import zlib

import pytest

from lib import hostdiff

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SPACE_BUILD_DIR", ROOT / "build"))
PROGRAM = BUILD / "src" / "broker" / "space-broker"
PROBE = BUILD / "tests" / "broker" / "jail_probe"
# Workers beside each other (pytest-xdist) and runs beside each other share no uid, and so no control group. Systems of other tests
# stay below this (lib/system.py).
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
RUN = zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())).encode()) % 90
UID_BASE = int(os.environ.get("SPACE_TEST_UID_BASE", str(2002000000 + RUN * 1500000))) + WORKER * 100000
NODE_UID = UID_BASE + 2
GATEWAY_GID = UID_BASE + 3
MIB = 1024 * 1024
_counter = itertools.count()


def vm_id(prefix="sbx"):
    """A fresh, valid id: 26 characters of Crockford's base32."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    n = int.from_bytes(os.urandom(12), "big") * 4096 + next(_counter)
    return prefix + "_" + "".join(alphabet[(n >> (5 * i)) & 31] for i in range(25, -1, -1))


class Refused(Exception):
    """{"ok": false}: the code is args[0], the whole error args[1]."""


class Client:
    """One connection. Replies are matched by seq, so several requests can be on their way."""

    def __init__(self, path, uid=NODE_UID, hello=True):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.seq = itertools.count(1)
        self.replies = {}
        os.seteuid(uid)
        try:
            self.sock.connect(str(path))
        finally:
            os.seteuid(0)
        self.sock.settimeout(60)
        if hello:
            self.hello = self.call("hello", version=1)

    def close(self):
        self.sock.close()

    def send(self, request, **fields):
        seq = next(self.seq)
        self.sock.send(json.dumps({"request": request, "seq": seq, **fields}).encode())
        return seq

    def reply(self, seq, timeout=60):
        end = time.monotonic() + timeout
        while seq not in self.replies:
            self.sock.settimeout(max(0.01, end - time.monotonic()))
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("the broker closed the connection")
            reply = json.loads(data)
            self.replies[reply.pop("seq")] = reply
        reply = self.replies.pop(seq)
        if not reply.pop("ok"):
            raise Refused(reply["error"]["code"], reply["error"])
        return reply

    def call(self, request, timeout=60, **fields):
        return self.reply(self.send(request, **fields), timeout)

    def closed(self, timeout=10):
        """Whether the broker closes the connection, reading what it still says."""
        self.sock.settimeout(timeout)
        try:
            while self.sock.recv(65536):
                pass
            return True
        except socket.timeout:
            return False
        except OSError:
            return True


class Broker:
    def __init__(self, store_mib=2048, uid_base=UID_BASE, program=PROBE, preload=PROBE):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="spb", dir="/tmp"))
        self.root.chmod(0o711)
        self.state = self.root / "s"
        self.uid_base = uid_base
        self.vm_program = program
        self.preload = preload
        self.settings = {"state_dir": self.state, "uid_base": uid_base, "store_size_mib": store_mib, "log_level": "debug"}
        self.process = None
        self.log = open(self.root / "broker.log", "ab")
        kernel = self.state / "kernels" / "stock"
        kernel.mkdir(parents=True)
        (kernel / "vmlinuz").write_bytes(b"kernel")
        (kernel / "initrd.cpio").write_bytes(b"initrd")

    # --- the process

    def argv(self, *extra):
        flags = [x for k, v in self.settings.items() for x in ("--" + k.replace("_", "-"), str(v))]
        return [str(PROGRAM), "--space-vm", str(self.vm_program), "--preload", str(self.preload), *extra, *flags]

    def start(self, fault=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
        if fault:
            env["SPACE_FAULT"] = fault
        with contextlib.suppress(FileNotFoundError):  # what a killed broker left: not to be taken for the new one's
            (self.state / "run" / "broker.sock").unlink()
        self.process = subprocess.Popen(self.argv("--enable-faults"), stderr=self.log, stdin=subprocess.DEVNULL, env=env)
        end = time.monotonic() + 60
        while True:
            assert self.process.poll() is None, "the broker ended at its start:\n" + self.log_text()[-3000:]
            try:
                self.client = self.connect()
                return self
            except (FileNotFoundError, ConnectionRefusedError, PermissionError):
                assert time.monotonic() < end, "no socket:\n" + self.log_text()[-3000:]
                time.sleep(0.01)

    def connect(self, **kw):
        return Client(self.state / "run" / "broker.sock", uid=kw.pop("uid", self.uid_base + 2), **kw)

    def stop(self, sig=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(sig)
        if self.process:
            self.process.wait(60)
        self.client.close()
        return self.process.returncode

    def kill(self):
        return self.stop(signal.SIGKILL)

    def wait_dead(self, timeout=60):
        return self.process.wait(timeout)

    def unmount(self):
        return subprocess.run(self.argv("--unmount"), stderr=subprocess.PIPE, timeout=60)

    def remove(self):
        """Ends everything and takes the directory away; what cannot be removed is an error of the test."""
        if self.process and self.process.poll() is not None:
            self.start()
        if self.process:
            self.stop_all()
            self.stop()
            done = self.unmount()
            assert done.returncode == 0, done.stderr.decode()
        text = self.log_text()
        assert "runtime error:" not in text and "Sanitizer" not in text, text[-5000:]
        self.log.close()
        shutil.rmtree(self.root)

    def stop_all(self):
        for vm in self.client.call("vm_list")["vms"]:
            self.client.call("vm_stop", id=vm["id"])
        self.client.call("sweep", known=[])
        for row in self.client.call("snapshot_list")["snapshots"]:
            self.client.call("snapshot_remove", snapshot=row["snapshot"])

    def log_text(self):
        return (self.root / "broker.log").read_text(errors="replace")

    # --- what it needs

    def template(self, digest=None, size_mib=16):
        digest = digest or os.urandom(32).hex()
        path = self.state / "store" / "templates" / digest
        path.mkdir()
        with open(path / "disk.img", "wb") as f:
            f.write(os.urandom(MIB))
            f.truncate(size_mib * MIB)
        (path / "manifest.json").write_text("{}")
        os.chmod(path / "disk.img", 0o444)
        return digest

    def start_vm(self, template, mode="clone", id=None, client=None, wait=True, **fields):
        prefix = {"clone": "sbx", "template_boot": "tpb", "blank": "spr", "boot": "sbx"}[mode]
        request = {"id": id or vm_id(prefix), "mode": mode, **({"template": template} if template else {}),
                   "kernel": "stock", "accelerator": "tcg", "vcpus": 1, "memory_mib": 64, "config": {"acpi": True}, **fields}
        client = client or self.client
        if not wait:
            return request["id"], client.send("vm_start", **request)
        return {"id": request["id"], **client.call("vm_start", **request)}

    def control(self, id):
        """A connection to the probe of a VM."""
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(str(self.state / "run" / "vm" / id / "control.sock"))
        s.settimeout(60)
        return s

    def tell(self, id, command):
        with self.control(id) as s:
            s.send(command.encode())
            return json.loads(s.recv(1 << 20))

    def state_of(self, id):
        return self.tell(id, "state")

    def blank(self, **fields):
        return self.start_vm(None, mode="blank", **fields)

    def load(self, vm, template, snapshot, **fields):
        return self.client.call("vm_load", id=vm["id"], template=template, snapshot=snapshot, config={"generation": 1}, **fields)

    def take(self, vm, key=None, then="resume", **fields):
        """A snapshot of a live VM: (key, reply)."""
        key = key or vm_id("snp")
        return key, self.client.call("vm_snapshot", id=vm["id"], snapshot=key, then=then, manifest={"n": 1}, **fields)

    def report(self, id):
        with self.control(id) as s:
            s.send(b"report")
            return json.loads(s.recv(1 << 20))

    def exit_vm(self, vm):
        """Lets space-vm end by itself and waits until it is gone."""
        fd = os.pidfd_open(vm["pid"])
        try:
            with self.control(vm["id"]) as s:
                s.send(b"exit")
            assert select.select([fd], [], [], 60)[0], "space-vm did not end"
        finally:
            os.close(fd)

    def snapshot(self, template):
        """A sealed snapshot of a template boot that has ended; its key."""
        boot = self.start_vm(template, mode="template_boot")
        self.report(boot["id"])  # the pattern is written by then
        self.exit_vm(boot)
        key = os.urandom(16).hex()
        self.client.call("snapshot_seal", id=boot["id"], snapshot=key, manifest={"tsc_khz": 1})
        self.client.call("vm_stop", id=boot["id"])
        return key

    def image(self):
        """A template and its snapshot."""
        template = self.template()
        return template, self.snapshot(template)


def alive(pid):
    try:
        return open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def refused(code, fn, *args, **kw):
    """The error of a request that has to be refused with that code."""
    with pytest.raises(Refused) as e:
        fn(*args, **kw)
    assert e.value.args[0] == code, e.value.args[1]
    assert e.value.args[1]["text"]
    return e.value.args[1]


def look(broker):
    """What of this broker's is on the host."""
    return hostdiff.snapshot(broker.root, broker.uid_base)
