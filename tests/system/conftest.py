# SPDX-License-Identifier: Apache-2.0
"""One installation for the whole run; tests that break things make their own."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from lib.api import Api  # noqa: E402
from lib.openapi_check import Mismatch, Spec  # noqa: E402
from lib.system import CACHE, OUT, System  # noqa: E402

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


@pytest.fixture(scope="session")
def system():
    s = System()
    try:
        s.up()
        s.seed()
        yield s
    finally:
        s.remove()


@pytest.fixture(scope="session")
def api(system):
    return system.api


@pytest.fixture
def sandbox(api):
    """A running sandbox of the test's own."""
    sid = api.create()
    yield sid
    api.delete(sid, wait=False)


@pytest.fixture(autouse=True)
def show_logs_on_failure(request):
    yield
    report = getattr(request.node, "rep_call", None)
    if report and report.failed and "system" in request.fixturenames:
        print(request.getfixturevalue("system").logs())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    setattr(item, "rep_" + outcome.get_result().when, outcome.get_result())
