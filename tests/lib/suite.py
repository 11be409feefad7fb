# SPDX-License-Identifier: Apache-2.0
"""What suites over the real system share: every exchange is held against the spec; they are skipped where the system cannot run."""

import os

import pytest

from lib.api import Api
from lib.openapi_check import Mismatch, Spec
from lib.system import CACHE, OUT

SPEC, MISMATCHES = Spec(), []


def record(kind, method, path, body, answer):
    """Every exchange of the suite is held against the document; what does not fit fails the test that caused it."""
    try:
        SPEC.check(method, path, answer.status, answer.headers, answer.body)
    except Mismatch as e:
        MISMATCHES.append(str(e))


Api.recorder = staticmethod(record)


@pytest.fixture(autouse=True)
def exchanges_fit_the_spec():
    MISMATCHES.clear()
    yield
    assert not MISMATCHES, MISMATCHES[:5]


def pytest_collection_modifyitems(items):
    why = None
    if os.geteuid() != 0:
        why = "needs root"
    elif not (OUT / "bin" / "space").exists():
        why = "run ./do build first"
    elif not (CACHE / "seed" / "rootfs").is_dir():
        why = "no seed root file system in %s (./do test makes it)" % CACHE
    elif not any((CACHE / "kernels" / p / "kernel.json").exists() for p in ("stock", "lean")):
        why = "no guest kernel in %s (./do test fetches it)" % CACHE
    if why:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    setattr(item, "rep_" + outcome.get_result().when, outcome.get_result())
