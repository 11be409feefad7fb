# SPDX-License-Identifier: Apache-2.0
"""What the agent promises when its machine is about to stand still, and when it wakes as another one (see cases.py)."""

import time

import channel
from channel import record
from sizes import size


def test_quiesce_hello_identity(c):
    cmd = c.start("sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done", process_id="tick1").wait_output(b"5\n")
    stream = c.open()
    stream.send(record("QUIESCE", flags=1))
    assert stream.next().kind == "QUIESCED"
    c.pump(0.3)
    assert cmd.stream.reset == 5
    c.frame(channel.OPEN, 999, 1)  # against the rule: nothing may be answered
    assert not c.pump(0.3) or not c.rx
    c.hello(generation=7)
    assert c.ping().kind == "PONG"
    assert c.run("true").error.code == "frozen"
    assert c.ask("SIGNAL", process_id="tick1", signal=15).code == "frozen"
    assert next(p for p in c.list() if p.process_id == "tick1").state == 1
    before = c.identity(generation=8)
    assert before.kind == "IDENTIFIED" and before.generation == 8
    back = c.attach("tick1")
    seen = int(back.step().step().out[1].split()[-1])
    back.wait_output(b"\n%d\n" % (seen + 5))
    c.ask("SIGNAL", process_id="tick1", signal=9)
    assert back.wait().exited.signal == 9


def test_quiesce_keeping_streams(c):
    """With KEEP an IDENTITY ends the silence and every stream goes on where it stood, also one that nobody reads."""
    unread = c.start("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; exit 3", process_id="full1")
    cmd = c.start("sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done", process_id="tick3").wait_output(b"5\n")
    stream = c.open()
    for generation in (20, 21):
        stream.send(record("QUIESCE", flags=2))
        assert stream.next().kind == "QUIESCED"
        c.flush()
        assert not c.pump(0.5), "something was said after QUIESCED"
        assert cmd.stream.reset is None
        assert c.identity(generation=generation).kind == "IDENTIFIED"
        seen = int(cmd.out[1].split()[-1])
        cmd.wait_output(b"\n%d\n" % (seen + 5))
    lines = cmd.out[1].split()
    assert [int(line) for line in lines] == list(range(1, len(lines) + 1))
    c.ask("SIGNAL", process_id="tick3", signal=9)
    assert unread.wait().exited.exit_code == 3
    assert unread.out[1] == b"x" * 3000000


def test_quiesce_keeping_streams_and_a_new_host(c):
    """The image went elsewhere: a HELLO ends the streams that were kept, and the rest is as ever."""
    cmd = c.start("sleep", "600", process_id="keep2").wait_started()
    stream = c.open()
    stream.send(record("QUIESCE", flags=2))
    assert stream.next().kind == "QUIESCED"
    c.hello(generation=7)
    assert cmd.stream.channel is c and c.run("true").error.code == "frozen"
    assert c.identity(generation=8).kind == "IDENTIFIED"
    assert c.ask("SIGNAL", process_id="keep2", signal=9).remaining == 0


def test_sync(c):
    """The root file system is written out beside everything else, and again while commands stand still."""
    cmd = c.start("sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done", process_id="tick5").wait_output(b"3\n")
    assert c.ask("SYNC", timeout_ms=60000).kind == "OK" and c.ask("SYNC").kind == "OK"
    refused = c.ask("SYNC", timeout_ms=0)
    assert refused.kind == "OK" or (refused.code == "busy" and "in time" in refused.message), refused
    seen = int(cmd.out[1].split()[-1])
    cmd.wait_output(b"\n%d\n" % (seen + 5))
    stream = c.open()
    stream.send(record("QUIESCE", flags=3, timeout_ms=60000))
    assert stream.next().kind == "QUIESCED"
    assert c.identity(generation=31).kind == "IDENTIFIED"
    seen = int(cmd.out[1].split()[-1])
    cmd.wait_output(b"\n%d\n" % (seen + 5))
    stream = c.open()
    stream.send(record("QUIESCE"))
    assert stream.next().kind == "QUIESCED"
    c.hello(generation=32)
    assert c.ask("SYNC").code == "frozen"
    assert c.identity(generation=32).kind == "IDENTIFIED"
    assert c.ask("PING", flags=1).zombies == 0
    c.ask("SIGNAL", process_id="tick5", signal=9)


def test_timers_do_not_count_silence(c):
    """A command's time limit is its own running time; two seconds of silence are no part of it."""
    cmd = c.start("sleep", "60", process_id="limit1", timeout_ms=3000).wait_started()
    began = time.monotonic()
    stream = c.open()
    stream.send(record("QUIESCE", flags=2))
    assert stream.next().kind == "QUIESCED"
    time.sleep(2)
    assert c.identity(generation=9).kind == "IDENTIFIED"
    assert cmd.wait().exited.reason == "timeout"
    assert time.monotonic() - began > 4.5


def test_quiesce_again_and_again(c):
    sleeper = c.start("sleep", "600", process_id="tick2").wait_started()
    for i in range(size(5, 200)):
        stream = c.open()
        stream.send(record("QUIESCE"))
        assert stream.next().kind == "QUIESCED"
        c.hello(generation=i)
        if i % 2:
            continue  # twice without IDENTITY in between
        assert c.identity(generation=i).kind == "IDENTIFIED"
    assert c.identity().kind == "IDENTIFIED"
    assert sleeper.stream.channel is c
    assert c.ask("SIGNAL", process_id="tick2", signal=9).remaining == 0


def test_identity_sets_the_environment(c):
    c.identity(env=["SANDBOX=yes", "SHARED=identity"])
    assert c.sh("echo $SANDBOX $SHARED", env=["SHARED=request"]).stdout == b"yes request\n"
    c.identity()
    assert c.sh("echo .$SANDBOX.").stdout == b"..\n"
    for bad in (dict(hostname="UPPER_case"), dict(machine_id="zz"), dict(entropy=b"short")):
        assert c.identity(**bad).code == "invalid"
