# SPDX-License-Identifier: Apache-2.0
"""Virtual machines below the control plane: space-vm on the real VMM and agent, without broker and jail.

The work is done by programs of tests/vm, which print TAP; every line of it is one promise.
Needs root, a kernel profile and the seed tree; test_engine runs for every profile that is there."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(os.environ.get("SPACE_TEST_OUT", ROOT / "out"))
KERNELS = pathlib.Path(os.environ.get("SPACE_TEST_KERNELS", "/var/cache/space/kernels"))
SEED = pathlib.Path(os.environ.get("SPACE_TEST_SEED", "/var/cache/space/seed"))
PROGRAMS = pathlib.Path(os.environ.get("SPACE_TEST_ENGINE", ROOT / "build/tests/vm"))


def run(program, kernel, *flags):
    """Every line of its TAP must be good and the plan must be there."""
    profile = KERNELS / kernel
    if not (profile / "kernel.json").exists():
        pytest.skip("no %s kernel in %s" % (kernel, KERNELS))
    p = subprocess.run([str(PROGRAMS / program), "--libexec", str(OUT / "libexec/space"), "--kernel-dir", str(profile),
                        "--rootfs", str(SEED / "rootfs"), *flags],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=600)
    print(p.stdout)
    failed = [line for line in p.stdout.splitlines() if line.startswith("not ok")]
    assert p.returncode == 0 and not failed, "\n".join(failed) or p.stderr[-2000:]
    assert p.stdout.splitlines()[-1].startswith("1.."), "it ended before its plan"


@pytest.mark.parametrize("kernel", ["stock", "lean"])
def test_engine(kernel):
    run("vm-engine-test", kernel)


@pytest.mark.parametrize("kernel", ["stock", "lean"])
def test_lifecycle(kernel):
    """Pause and resume with streams open, blanks and warm spares."""
    run("vm-lifecycle-test", kernel)


@pytest.mark.parametrize("kernel", ["stock", "lean"])
def test_snapshots(kernel):
    """Snapshots of running VMs: their cost, their contents, and given up at every step."""
    run("vm-snapshot-test", kernel)


@pytest.mark.parametrize("kernel", ["stock", "lean"])
def test_disk_snapshots(kernel):
    """Snapshots of the disk alone, and booting on one."""
    run("vm-disk-test", kernel)


def test_disk_full():
    """A full host disk stops the VM, which goes on by itself when there is room again; nothing the guest wrote is lost."""
    run("vm-disk-full-test", "lean" if (KERNELS / "lean/kernel.json").exists() else "stock", "--store-mib", "1600")
