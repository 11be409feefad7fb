# SPDX-License-Identifier: Apache-2.0
"""Brokers for the tests: one shared by those that only use it, one of their own for those that break it."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from driver import PROBE, PROGRAM, UID_BASE, Broker  # noqa: E402


def pytest_collection_modifyitems(items):
    why = None
    if os.geteuid() != 0:
        why = "needs root: the broker makes namespaces, mounts and control groups"
    elif not (PROGRAM.exists() and PROBE.exists()):
        why = "build space-broker and jail_probe first (SPACE_BUILD_DIR)"
    for item in items if why else ():
        item.add_marker(pytest.mark.skip(reason=why))


def run(broker):
    try:
        broker.start()
        yield broker
    finally:
        broker.remove()


@pytest.fixture(scope="module")
def shared():
    """Started once for a test file; its store holds one image."""
    b = Broker()
    try:
        b.start()
        b.image_template, b.image_key = b.image()
        yield b
    finally:
        b.remove()


@pytest.fixture
def broker(shared):
    """The shared broker, running without faults and without VMs."""
    if shared.process.poll() is not None:
        shared.start()
    shared.stop_all()
    return shared


@pytest.fixture
def own():
    """A broker that may be broken."""
    yield from run(Broker(uid_base=UID_BASE + 20000))
