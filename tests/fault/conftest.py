# SPDX-License-Identifier: Apache-2.0
"""Faults of the running system; each test brings an installation of its own."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from lib.suite import exchanges_fit_the_spec, pytest_collection_modifyitems, pytest_runtest_makereport  # noqa: E402,F401
