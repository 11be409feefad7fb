# SPDX-License-Identifier: Apache-2.0
"""One installation for the whole run; tests that break things make their own."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from lib.suite import exchanges_fit_the_spec, pytest_collection_modifyitems, pytest_runtest_makereport  # noqa: E402,F401
from lib.system import running_system  # noqa: E402


@pytest.fixture(scope="session")
def system():
    with running_system() as s:
        yield s


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
