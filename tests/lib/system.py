# SPDX-License-Identifier: Apache-2.0
"""A whole installation of its own for tests: state directory, ports, uids; started with the real `space up`, and with the tools to
kill, stop and look into it. Several checkouts can be tested on one machine one after the other."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from lib.api import Api
from lib.ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(os.environ.get("SPACE_TEST_OUT", ROOT / "out"))
CACHE = pathlib.Path(os.environ.get("SPACE_CACHE_DIR", "/var/cache/space"))
DAEMONS = ("broker", "control", "node", "gateway")


class Faults:
    """An installation whose broker obeys a file (src/broker/fault.h): the shipped programs, started by a script in the broker's place."""

    SIZE, LOG_AT = 65536, 512

    def __init__(self, root):
        self.root, self.file = root, root / "fault"
        self.file.write_bytes(bytes(self.SIZE))

    def install(self):
        out = self.root / "out"
        shutil.copytree(OUT, out, symlinks=True)
        libexec = out / "libexec" / "space"
        (libexec / "real").mkdir()
        (libexec / "space-broker").rename(libexec / "real" / "space-broker")
        (libexec / "space-broker").write_text("#!/bin/sh\nSPACE_FAULT=@%s exec %s --enable-faults --space-vm %s --preload %s \"$@\"\n" % (
            self.file, libexec / "real" / "space-broker", libexec / "space-vm", next(libexec.glob("*preload*.so"))))
        (libexec / "space-broker").chmod(0o755)
        return out

    def _write(self, text):
        with open(self.file, "r+b") as f:
            f.write(text.encode().ljust(self.LOG_AT, b"\0"))

    def arm(self, point, action):
        self._write("%s:%s" % (point, action))

    def disarm(self):
        self._write("")

    def hit(self):
        """The fault was met (it happens once)."""
        with open(self.file, "rb") as f:
            return f.read(1) == b"\0"

    def passed(self):
        """The points passed since the last call."""
        data = self.file.read_bytes()[self.LOG_AT:]
        used, names = int.from_bytes(data[:8], sys.byteorder), data[8:]
        new = names[:min(used, len(names))].decode().split()
        with open(self.file, "r+b") as f:  # from the start again
            f.seek(self.LOG_AT)
            f.write(bytes(8))
        return new


class System:
    _made = 0

    def __init__(self, kernel="auto", faults=False, **settings):
        System._made += 1
        uid_base = 1000000 + (os.getpid() % 2000) * 1000000 + System._made * 10000  # two runs at once share no uid
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="sp", dir="/tmp"))
        self.root.chmod(0o711)
        self.state = self.root / "s"
        control, internal, gateway = (free_port() for _ in range(3))
        self.settings = {
            "state_dir": str(self.state), "control_listen": "127.0.0.1:%d" % control,
            "internal_listen": "127.0.0.1:%d" % internal, "gateway_listen": "127.0.0.1:%d" % gateway,
            "uid_base": str(uid_base), "kernel": kernel, "store_size_mib": "32768", "disk_reserve_mib": "256",
            **{k: str(v) for k, v in settings.items()},
        }
        self.env = {**os.environ, **{"SPACE_" + k.upper(): v for k, v in self.settings.items()}}
        for name in ("SPACE_API_URL", "SPACE_TOKEN", "SPACE_CONFIG"):
            self.env.pop(name, None)
        self._kernels()
        self.out = OUT
        if faults:
            self.faults = Faults(self.root)
            self.out = self.faults.install()

    def _kernels(self):
        for profile in ("stock", "lean"):
            src = CACHE / "kernels" / profile
            if src.is_dir() and (src / "kernel.json").exists():
                shutil.copytree(src, self.state / "kernels" / profile,
                                ignore=shutil.ignore_patterns("initrd.cpio", "build*", "*.log"))

    def cli(self, *args, input=None, timeout=180, check=True, env=None):
        p = subprocess.run([str(self.out / "bin" / "space"), *args], input=input, capture_output=True, timeout=timeout,
                           env={**self.env, **(env or {})}, stdin=None if input is not None else subprocess.DEVNULL)
        if check:
            assert p.returncode == 0, "space %s: exit %d\n%s\n%s" % (" ".join(args), p.returncode, p.stdout.decode(errors="replace"),
                                                                     p.stderr.decode(errors="replace"))
        return p

    def up(self):
        self.cli("up")
        client = json.loads((self.state / "etc" / "client.json").read_text())
        self.api = Api(client["api_url"], client["token"])
        self.data_url = client["data_url"]
        return self

    def seed(self):
        """Builds and registers seed:latest from the cached root file system."""
        self.cli("template", "build", "seed:latest", "--from-dir", str(CACHE / "seed" / "rootfs"), "--manifest",
                 str(ROOT / "templates" / "seed" / "manifest.json"), timeout=600)

    def pid(self, name):
        return int((self.state / "run" / (name + ".pid")).read_text().split()[0])

    def kill(self, name, sig=signal.SIGKILL):
        """Ends a daemon; the supervisor starts it again. Returns the old pid."""
        pid = self.pid(name)
        os.kill(pid, sig)
        return pid

    def wait_restarted(self, name, old, timeout=60):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                if self.pid(name) != old:
                    return
            except (FileNotFoundError, IndexError, ValueError):
                pass
            time.sleep(0.02)
        raise AssertionError("%s was not started again" % name)

    def wait_ready(self, timeout=120):
        """Until control, node and gateway answer again."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                if (self.api.raw("GET", "/readyz", timeout=5).status == 200 and
                        Api(self.data_url, "", "data").raw("GET", "/readyz", timeout=5).status == 200 and
                        any(n["state"] == "ready" for n in self.api.ok("GET", "/v1/nodes")["items"])):
                    return
            except (OSError, AssertionError):
                pass
            time.sleep(0.05)
        raise AssertionError("the system did not come back\n" + self.logs())

    def restart(self, name):
        old = self.kill(name)
        self.wait_restarted(name, old)
        self.wait_ready()

    def sql(self, text):
        """One statement in the private database; the rows, as text."""
        env = {**self.env, "PGPASSWORD": (self.state / "etc" / "database_password").read_text().strip()}
        p = subprocess.run(["psql", "-h", str(self.state / "run" / "db"), "-U", "space", "-d", "space", "-XAtc", text], env=env,
                           capture_output=True, timeout=30)
        assert p.returncode == 0, p.stderr
        return [line.split("|") for line in p.stdout.decode().splitlines()]

    def advance_policies(self, seconds):
        """Moves the clock of the idle policies on; everything else goes by the real one."""
        self.sql("WITH c AS (UPDATE policy_clock SET offset_s = offset_s + %d RETURNING offset_s) "
                 "SELECT offset_s, pg_notify('space', 'rclock') FROM c" % seconds)

    def logs(self, lines=30):
        out = []
        for f in sorted((self.state / "log").glob("*.log")):
            out.append("== %s\n%s" % (f.name, "\n".join(f.read_text(errors="replace").splitlines()[-lines:])))
        return "\n".join(out)

    def vm_pids(self, sandbox_id):
        """(space-vm, VMM) of a sandbox, by the uid it has for itself."""
        uid = json.loads((self.state / "store" / "sandboxes" / sandbox_id / "vm.json").read_text())["uid"]
        found = {}
        for p in pathlib.Path("/proc").iterdir():
            try:
                if p.name.isdigit() and p.stat().st_uid == uid:
                    found[(p / "comm").read_text().strip()] = int(p.name)
            except OSError:
                continue
        vmm = next((v for k, v in found.items() if k.startswith("qemu")), None)
        return found.get("space-vm"), vmm

    def rss_kib(self, pid):
        for line in open("/proc/%d/status" % pid):
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        return 0

    def fds(self, pid):
        return len(os.listdir("/proc/%d/fd" % pid))

    def down(self, *args):
        self.cli("down", *args, check=False)

    def remove(self):
        self.down()
        subprocess.run(["umount", str(self.state / "store")], capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)


@contextlib.contextmanager
def running_system(**settings):
    """One that is up and has the seed template; removed afterwards."""
    s = System(**settings)
    try:
        s.up()
        s.seed()
        yield s
    finally:
        s.remove()
