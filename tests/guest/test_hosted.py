# SPDX-License-Identifier: Apache-2.0
"""The agent's promises on this machine, as an ordinary process; built with the sanitizers this finds memory faults."""

import os

import pytest

import channel
import vm
from cases import *  # noqa: F401,F403 - the tests
from sizes import size


@pytest.fixture(scope="module")
def guest(tmp_path_factory):
    program = os.environ.get("SPACE_TEST_HOSTED") or vm.find_built("tests/guest/hosted-guest")
    if not program:
        pytest.skip("hosted-guest is not built")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    hosted = vm.Hosted(program, tmp_path_factory.mktemp("hosted"))
    hosted.flat_commands, hosted.orphans = size(1200, 20000), size(300, 5000)
    yield hosted
    status = hosted.stop()
    if status == 77:
        pytest.skip("no cgroup v2 tree here")
    assert status == 0, hosted.console()


@pytest.fixture
def c(guest):
    return channel.Channel(guest.sock).hello(resync=True)
