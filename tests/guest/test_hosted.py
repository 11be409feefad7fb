# SPDX-License-Identifier: Apache-2.0
"""The agent's promises on this machine, as an ordinary process; built with the sanitizers this finds memory faults."""

import os
import resource

import pytest

import channel
import vm
from cases import *  # noqa: F401,F403 - the tests
from cases_quiesce import *  # noqa: F401,F403
from sizes import say, size


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


def test_out_of_memory_in_the_agent(tmp_path):
    """With next to no memory left requests fail by an answer, the agent stays and works again when there is some."""
    program = os.environ.get("SPACE_TEST_HOSTED") or vm.find_built("tests/guest/hosted-guest")
    if not program or os.geteuid() != 0:
        pytest.skip("hosted-guest is not built, or not root")
    probe = vm.Hosted(program, tmp_path)
    try:
        channel.Channel(probe.sock).hello()  # only then is its memory what it will be
    except OSError:
        pytest.skip("the agent does not start here: " + probe.console()[-200:])
    maps = open(f"/proc/{probe.process.pid}/statm").read().split()
    used = int(maps[0]) * os.sysconf("SC_PAGESIZE")
    if probe.stop() != 0:
        pytest.skip("no cgroup v2 tree here")
    if used > 1 << 30:
        pytest.skip("built with sanitizers: the address space cannot be limited")
    hosted = vm.Hosted(program, tmp_path, address_space=used + (3 << 20))
    try:
        c = channel.Channel(hosted.sock).hello()
        codes = set()
        for i in range(60):
            cmd = c.start("sh", "-c", "head -c 300000 /dev/zero", process_id=f"mem{i}").wait(60)
            codes.add(cmd.error.code if cmd.error else cmd.exited.exit_code)
        say(f"answers with no memory left: {codes}")
        assert codes <= {0, "no_memory"}, codes
        stream = c.open()
        stream.send(channel.record("ATTACH", process_id="big", may_start=1, argv=["true", "x" * 60000]))
        assert stream.next().kind in ("STARTED", "ERROR")
        resource.prlimit(hosted.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert c.run("echo", "again").stdout == b"again\n"
    finally:
        status = hosted.stop()
    assert status == 0, hosted.console()
