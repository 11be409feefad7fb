# SPDX-License-Identifier: Apache-2.0
"""An installation on which what the documentation shows is run."""

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
