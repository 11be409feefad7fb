# SPDX-License-Identifier: Apache-2.0
"""The whole system, in the emulated machine, its guests run by the KVM of that machine's kernel."""

import os
import pathlib
import shutil

import pytest

from lib.system import System

RESULTS = pathlib.Path("/run/results")
TRIES = 4  # `space up` waits as long as is right for a machine that is not emulated


def pytest_collection_modifyitems(items):
    if not RESULTS.is_dir() or not os.path.exists("/dev/kvm"):
        for item in items:
            item.add_marker(pytest.mark.skip(reason="runs in the machine that `./do test kvm` boots"))


@pytest.fixture(scope="session")
def system():
    s = System(accelerator="kvm", create_timeout_s=300, memory_reserve_mib=256, blank_vmms=1, pool_demand_max=0)
    try:
        for _ in range(TRIES - 1):
            if s.cli("up", timeout=600, check=False).returncode == 0:
                break
        s.up()
        s.seed()
        yield s
    finally:
        if (s.state / "log").is_dir():
            shutil.copytree(s.state / "log", RESULTS / "log")
        s.remove()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    if report.failed and "system" in item.funcargs:
        report.sections.append(("logs of the system", item.funcargs["system"].logs(60)))
