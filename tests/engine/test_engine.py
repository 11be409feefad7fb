# SPDX-License-Identifier: Apache-2.0
"""Virtual machines below the control plane: space-vm on the real VMM and agent, without broker and jail.

The work is done by build/tests/vm/vm-engine-test (tests/vm/vm_engine.c), which prints TAP; every line of it is one promise.
Needs root, a kernel profile and the seed tree; runs for every profile that is there."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(os.environ.get("SPACE_TEST_OUT", ROOT / "out"))
KERNELS = pathlib.Path(os.environ.get("SPACE_TEST_KERNELS", "/var/cache/space/kernels"))
SEED = pathlib.Path(os.environ.get("SPACE_TEST_SEED", "/var/cache/space/seed"))
PROGRAM = pathlib.Path(os.environ.get("SPACE_TEST_ENGINE", ROOT / "build/tests/vm/vm-engine-test"))


@pytest.mark.parametrize("kernel", ["stock", "lean"])
def test_engine(kernel):
    profile = KERNELS / kernel
    if not (profile / "kernel.json").exists():
        pytest.skip("no %s kernel in %s" % (kernel, KERNELS))
    p = subprocess.run([str(PROGRAM), "--libexec", str(OUT / "libexec/space"), "--kernel-dir", str(profile), "--rootfs",
                        str(SEED / "rootfs")], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    print(p.stdout)
    failed = [line for line in p.stdout.splitlines() if line.startswith("not ok")]
    assert p.returncode == 0 and not failed, "\n".join(failed) or p.stderr[-2000:]
    assert p.stdout.splitlines()[-1].startswith("1.."), "it ended before its plan"
