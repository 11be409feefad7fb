# SPDX-License-Identifier: Apache-2.0
"""A node of its own for every test: state directory, fake QEMU and kernels, fake broker, fake control."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from fakes import BUILD, new_id  # noqa: E402
from fakes.broker import FakeBroker  # noqa: E402
from fakes.control import TOKEN, FakeControl  # noqa: E402

FAKE_QEMU = """#!/bin/sh
case "$1" in
--version) echo 'QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)' ;;
*) printf 'Accelerators supported in QEMU binary:\\ntcg\\n' ;;
esac
"""


class Node:
    def __init__(self):
        self.state_dir = pathlib.Path(tempfile.mkdtemp(prefix="spnd", dir="/tmp"))
        for sub in ("run/vm", "store", "kernels/stock"):
            (self.state_dir / sub).mkdir(parents=True)
        self.qemu = self.state_dir / "qemu"
        self.qemu.write_text(FAKE_QEMU)
        self.qemu.chmod(0o755)
        self.add_kernel("stock", acpi=True)
        (self.state_dir / "internal_token").write_text(TOKEN + "\n")
        self.control = FakeControl()
        self.broker = FakeBroker(self.state_dir)
        self.log = self.state_dir / "node.log"
        self.process = None

    def add_kernel(self, profile, acpi):
        directory = self.state_dir / "kernels" / profile
        directory.mkdir(exist_ok=True)
        (directory / "kernel.json").write_text(json.dumps({"profile": profile, "version": "6.1.0", "sha256": "a" * 64,
                                                           "acpi": acpi}))
        (directory / "initrd.cpio").write_bytes(profile.encode())

    def start(self, **settings):
        flags = {"state-dir": self.state_dir, "internal-urls": self.control.url, "qemu": self.qemu,
                 "internal-token-file": self.state_dir / "internal_token", "log-level": "debug",
                 "disk-reserve-mib": 1, "memory-reserve-mib": 1, "blank-vmms": 0, "pool-demand-max": 0, **{k.replace("_", "-"): v for k, v in settings.items()}}
        argv = [str(BUILD / "src" / "node" / "space-node")]
        for key, value in flags.items():
            argv += [f"--{key}", str(value)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(argv, stderr=log)
        return self

    def stop(self):
        """Ends it politely; what the sanitizers found is a failure."""
        process, self.process = self.process, None
        if not process:
            return
        self.control.pool_reports.clear()  # what it said of its pools is no news of the next one
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert process.returncode == 0, self.log.read_text()[-6000:]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process = None
        self.control.pool_reports.clear()

    def close(self):
        try:
            self.stop()
            assert not self.broker.problems, self.broker.problems
        finally:
            if self.process:
                self.kill()
            if os.environ.get("SPACE_TEST_KEEP"):
                print(self.log.read_text())
            self.broker.close()
            self.control.stop()
            shutil.rmtree(self.state_dir, ignore_errors=True)

    def row(self, **fields):
        """A desired sandbox."""
        return {"id": new_id("sbx"), "generation": 1, "desired": "running", "observed": "creating",
                "operation_id": new_id("op"), "operation_kind": "create", "deadline_at": None,
                "template": {"digest": "d" * 64, "manifest": {"env": {"PATH": "/bin", "LANG": "C"}, "workdir": "/w", "user": "u",
                                                              "start_command": None, "readiness_probe": None}},
                "resources": {"vcpus": 1, "memory_mib": 128}, "env": {"LANG": "de", "MINE": "1"}, "hostname": "box",
                "machine_id": "0123456789abcdef" * 2, **fields}

    def want(self, **fields):
        row = self.row(**fields)
        self.control.want(row)
        return row["id"]

    def running(self, **fields):
        sandbox_id = self.want(**fields)
        self.control.wait_report(sandbox_id, "running")
        return sandbox_id


@pytest.fixture
def cold():
    node = Node()
    yield node
    node.close()


@pytest.fixture
def node(cold):
    cold.start()
    cold.control.wait_for(lambda: cold.control.polls)
    return cold
