# SPDX-License-Identifier: Apache-2.0
"""What the agent promises, whatever it runs on. test_agent.py runs these in a VM, test_hosted.py under sanitizers;
each brings a fixture `guest` (with .sock and .console()) and `c`, a channel that has just said HELLO."""

import hashlib
import os
import re
import signal
import struct
import time

import pytest

import channel
from channel import ProtocolError, record
from sizes import say, size


def flat(values, slack):
    """Slope over the last 80 % of a run, as a difference."""
    tail = values[len(values) // 5:]
    return max(tail[-2:]) - min(tail[:2]) <= slack


# --- the end of a command ---

def test_output_is_whole_and_exit_comes_last(c):
    n = size(20, 2000)
    for i in range(n):
        cmd = c.sh(f"printf x{i}; printf e{i} >&2; exit {i % 100}")
        assert (cmd.stdout, cmd.stderr, cmd.exited.exit_code) == (f"x{i}".encode(), f"e{i}".encode(), i % 100)
        assert cmd.exited.output_may_continue == 0 and cmd.exited.reason == "exited"
    say(f"{n} short commands, every byte before the exit")


def test_binary_output_byte_exact(c):
    script = "head -c 3000001 /dev/urandom | tee /tmp/space-test-blob; sha256sum /tmp/space-test-blob >&2; rm /tmp/space-test-blob"
    cmd = c.sh(script)
    assert len(cmd.stdout) == 3000001
    assert hashlib.sha256(cmd.stdout).hexdigest() == cmd.stderr.decode().split()[0]


def test_many_at_once(c):
    n = size(32, 100)
    commands = [c.start("sh", "-c", f"for i in 1 2 3; do echo {k}-$i; done; exit {k % 7}") for k in range(n)]
    for k, cmd in enumerate(commands):
        cmd.wait(120)
        assert cmd.stdout == f"{k}-1\n{k}-2\n{k}-3\n".encode() and cmd.exited.exit_code == k % 7


@pytest.mark.parametrize("argv,code,reason", [
    (["no-such-command"], 127, "command_not_found"),
    (["/no/such/path"], 127, "command_not_found"),
    (["/etc/passwd"], 126, "permission_denied"),
    (["/etc"], 126, "permission_denied"),
    (["sh", "-c", "exit 127"], 127, "exited"),
])
def test_exit_codes_of_exec(c, argv, code, reason):
    cmd = c.run(*argv)
    assert cmd.started.kind == "STARTED"
    assert (cmd.exited.exit_code, cmd.exited.signal, cmd.exited.reason) == (code, 0, reason)


def test_script_without_interpreter_line(c):
    c.sh("printf 'echo plain $1' > /tmp/space-test-script; chmod 755 /tmp/space-test-script")
    assert c.run("/tmp/space-test-script", "arg").stdout == b"plain arg\n"


@pytest.mark.parametrize("fields,code", [
    (dict(argv=["true"], user="no-such-user"), "no_user"),
    (dict(argv=["true"], cwd="/no/such/dir"), "bad_cwd"),
    (dict(argv=["true"], cwd="relative"), "invalid"),
    (dict(), "invalid"),
    (dict(argv=["true"], pty_cols=0, pty_rows=5), "invalid"),
    (dict(argv=["true"], pty_cols=65535, pty_rows=65535), "invalid"),
])
def test_errors_of_a_start(c, fields, code):
    cmd = c.attach("bad-start", may_start=1, **fields).wait()
    assert cmd.error.code == code
    assert c.attach("bad-start").wait().error.code == "not_found"


@pytest.mark.parametrize("process_id", ["", "a" * 65, "a b", "../x"])
def test_bad_ids(c, process_id):
    stream = c.open()
    stream.send(record("ATTACH", process_id=process_id, may_start=1, argv=["true"]))
    assert stream.next().code == "invalid"


def test_signals_and_scopes(c):
    cmd = c.start("sh", "-c", "trap 'echo caught; exit 3' TERM; echo up; while :; do sleep 0.05; done", process_id="sig1")
    cmd.wait_output(b"up")
    assert c.ask("SIGNAL", process_id="sig1", signal=signal.SIGTERM, scope=1).kind == "OK"
    assert cmd.wait().exited.exit_code == 3 and b"caught" in cmd.stdout
    cmd = c.start("sleep", "600", process_id="sig2").wait_started()
    c.ask("SIGNAL", process_id="sig2", signal=signal.SIGTERM)
    cmd.wait()
    assert (cmd.exited.signal, cmd.exited.exit_code, cmd.exited.reason) == (15, 143, "signaled")
    assert c.ask("SIGNAL", process_id="nobody", signal=9).code == "not_found"
    assert c.ask("SIGNAL", process_id="sig2", signal=99).code == "invalid"


def test_kill_reaches_setsid_and_double_fork(c):
    script = "setsid sleep 600 & (setsid sh -c 'sleep 600 & sleep 600' &) ; echo up; sleep 600"
    cmd = c.start("sh", "-c", script, process_id="kill1")
    cmd.wait_output(b"up")
    time.sleep(0.3)
    answer = c.ask("SIGNAL", process_id="kill1", signal=9)
    assert answer.kind == "OK" and answer.remaining == 0
    assert cmd.wait().exited.signal == 9


def test_timeout_kills_everything(c):
    cmd = c.run("sh", "-c", "sleep 600 & sleep 600", timeout_ms=300, process_id="late")
    assert (cmd.exited.signal, cmd.exited.reason) == (9, "timeout")
    assert c.ask("SIGNAL", process_id="late", signal=9).remaining == 0


def test_background_child_does_not_hold_the_exit(c):
    began = time.monotonic()
    cmd = c.sh("sleep 30 & echo hi", process_id="bg")
    assert cmd.stdout == b"hi\n" and cmd.exited.exit_code == 0 and cmd.exited.output_may_continue == 1
    assert time.monotonic() - began < 15
    assert c.ask("SIGNAL", process_id="bg", signal=9).remaining == 0


def test_background_writer_is_not_blocked(c):
    cmd = c.sh("(sleep 0.2; head -c 300000 /dev/zero; echo done > /tmp/space-test-bg) & echo hi")
    assert cmd.stdout == b"hi\n"
    assert c.sh("for i in $(seq 100); do [ -e /tmp/space-test-bg ] && exit 0; sleep 0.1; done; exit 1").exited.exit_code == 0
    c.sh("rm /tmp/space-test-bg")


def test_orphans_are_reaped(guest, c):
    n = guest.orphans
    done = 0
    while done < n:
        assert c.sh("for i in $(seq 100); do (for k in 1 2 3 4 5 6 7 8 9; do :; done) & done", timeout=120).exited.exit_code == 0
        done += 100
    for _ in range(50):
        pong = c.ping(flags=1)
        if pong.zombies == 0:
            break
        time.sleep(0.1)
    assert pong.zombies == 0
    say(f"{n} orphans, zombies {pong.zombies}")


# --- who and where ---

def test_user_environment_and_directory(c):
    cmd = c.sh("id -u; id -g; pwd; echo $HOME $USER $LOGNAME $SHELL; echo $A $B; ulimit -n", user="nobody", cwd="/tmp",
               env=["A=1", "B=2", "A=3"])
    lines = cmd.stdout.decode().split("\n")
    assert lines[0] == "65534" and lines[1] == "65534" and lines[2] == "/tmp"
    assert lines[3].startswith("/nonexistent nobody nobody")
    assert lines[4] == "3 2" and lines[5] == "1024"


def test_numeric_user_without_a_name(c):
    assert c.sh("id -u; id -g", user="4242", cwd="/").stdout == b"4242\n4242\n"


def test_path_of_the_request_counts(c):
    c.sh("mkdir -p /tmp/space-test-bin; printf '#!/bin/sh\necho mine' > /tmp/space-test-bin/mine; chmod 755 /tmp/space-test-bin/mine")
    assert c.run("mine").exited.exit_code == 127
    assert c.run("mine", env=["PATH=/nowhere:/tmp/space-test-bin:/bin:/usr/bin"]).stdout == b"mine\n"


def test_signals_and_descriptors_are_clean(c):
    cmd = c.sh("grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd | wc -l; readlink /proc/self/fd/0")
    text = cmd.stdout.decode()
    assert re.findall(r"SigBlk:\s*0+\n", text) and re.findall(r"SigIgn:\s*0+\n", text)
    assert text.split("\n")[-3] == "4" and "/dev/null" in text  # 0 1 2 and the one ls has open


# --- stdin ---

def test_stdin_round_trip(c):
    data = os.urandom(700000)
    cmd = c.start("cat", process_id="cat1", stdin=1)
    cmd.wait_started()
    cmd.stream.auto_credit = False  # nobody reads: the pipe fills and the channel pushes back
    stream = c.open()
    stream.send(record("STDIN", process_id="cat1", close_after=1))
    for i in range(0, len(data), 60000):
        payload = record("DATA", data=data[i:i + 60000])
        while payload:
            n = min(len(payload), max(stream.send_credit, 0))
            if n:
                stream.send(payload[:n])
                payload = payload[n:]
            else:
                cmd.stream.auto_credit = True
                cmd.stream.give_credit()
                c.pump(0.05)
    stream.shutdown()
    cmd.stream.auto_credit = True  # the credit may have come back in time each time
    cmd.stream.give_credit()
    answer = stream.next(60)
    assert answer.kind == "OK" and answer.accepted == len(data)
    assert cmd.wait().stdout == data
    assert c.stdin("cat1", b"more").code == "closed"


def test_stdin_in_turns(c):
    cmd = c.start("cat", process_id="cat2", stdin=1).wait_started()
    first, second = c.open(), c.open()
    first.send(record("STDIN", process_id="cat2") + record("DATA", data=b"one "))
    second.send(record("STDIN", process_id="cat2", close_after=1) + record("DATA", data=b"three"))
    second.shutdown()
    first.send(record("DATA", data=b"two "))
    first.shutdown()
    assert first.next().accepted == 8 and second.next().accepted == 5
    assert cmd.wait().stdout == b"one two three"


def test_stdin_closed_by_the_reader(c):
    cmd = c.start("sh", "-c", "exec 0</dev/null; echo closed; sleep 600", process_id="cat3", stdin=1).wait_output(b"closed")
    assert c.stdin("cat3", bytes(200000)).code == "closed"
    c.ask("SIGNAL", process_id="cat3", signal=9)
    cmd.wait()
    assert c.stdin("cat3", b"x").code == "closed"
    assert c.stdin("nobody", b"x").code == "not_found"


def test_stdin_answer_after_a_full_pipe(c):
    """Nothing else happens on the channel when the last byte goes into the pipe: the answer must come by itself."""
    data = bytes(150000)
    cmd = c.start("sh", "-c", "sleep 1; cat > /dev/null; sleep 600", process_id="cat5", stdin=1).wait_started()
    answer = c.stdin("cat5", data)
    assert answer.kind == "OK" and answer.accepted == len(data)
    c.ask("SIGNAL", process_id="cat5", signal=9)
    cmd.wait()


def test_a_command_can_reopen_its_own_streams(c):
    script = "echo out > /dev/stdout; echo err > /dev/stderr; cat < /dev/stdin"
    for user in ("root", "nobody"):
        cmd = c.start("sh", "-c", script, user=user, cwd="/", stdin=1)
        cmd.wait_started()
        assert c.stdin(cmd.started.process_id, b"in", close_after=1).accepted == 2
        cmd.wait()
        assert (cmd.stdout, cmd.stderr, cmd.exited.exit_code) == (b"out\nin", b"err\n", 0)


def test_stdin_not_asked_for(c):
    cmd = c.start("sleep", "600", process_id="cat4").wait_started()
    assert c.stdin("cat4", b"x").code == "closed"
    c.ask("SIGNAL", process_id="cat4", signal=9)
    cmd.wait()


# --- pty ---

def test_pty_size_and_resize(c):
    script = "stty size; trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
    cmd = c.start("sh", "-c", script, process_id="pty1", pty_cols=120, pty_rows=40)
    cmd.wait_output(b"ready", stream=3)
    assert b"40 120" in cmd.pty
    for i in range(size(50, 500)):
        assert c.ask("RESIZE", process_id="pty1", cols=50 + i % 7, rows=20).kind == "OK"
    assert c.ask("RESIZE", process_id="pty1", cols=99, rows=33).kind == "OK"
    cmd.wait_output(b"33 99", stream=3)
    for cols, rows in ((0, 0), (65535, 65535), (80, 0)):
        assert c.ask("RESIZE", process_id="pty1", cols=cols, rows=rows).code == "invalid"
    c.ask("SIGNAL", process_id="pty1", signal=9)
    cmd.wait()
    assert c.ask("RESIZE", process_id="pty1", cols=80, rows=24).code == "closed"


def test_pty_input_and_job_control(c):
    cmd = c.start("sh", "-i", process_id="pty2", pty_cols=80, pty_rows=24, stdin=1, env=["PS1=$ "]).wait_started()
    assert c.stdin("pty2", b"tty; echo $TERM; stty -echo\n").accepted == 28
    cmd.wait_output(b"xterm-256color", stream=3)
    assert b"/dev/pts/" in cmd.pty
    c.stdin("pty2", b"sleep 600\n")
    time.sleep(0.5)
    c.stdin("pty2", b"\x03")  # to the foreground job only
    c.stdin("pty2", b"echo al''ive\n")
    cmd.wait_output(b"alive", stream=3)
    c.stdin("pty2", b"exit 5\n")
    assert cmd.wait().exited.exit_code == 5


def test_pty_last_bytes_and_background_holder(c):
    for i in range(size(10, 200)):
        cmd = c.sh(f"printf last-{i}", pty_cols=80, pty_rows=24)
        assert cmd.pty == f"last-{i}".encode()
    began = time.monotonic()
    cmd = c.sh("trap '' HUP; setsid sleep 30 & echo hi", pty_cols=80, pty_rows=24, process_id="ptybg")
    assert b"hi" in cmd.pty and time.monotonic() - began < 15
    c.ask("SIGNAL", process_id="ptybg", signal=9)


# --- readers ---

def test_slow_live_reader_loses_nothing(c):
    cmd = c.start("sh", "-c", "head -c 2000000 /dev/zero; echo end", process_id="slow1")
    cmd.stream.auto_credit = False
    began = time.monotonic()
    while cmd.exited is None and time.monotonic() - began < 120:
        c.pump(0.01)
        if cmd.stream.uncredited >= 60000:
            time.sleep(0.02)
            cmd.stream.give_credit()
        rec = cmd.stream.take_record()
        while rec:
            cmd.take(rec)
            rec = cmd.stream.take_record()
    assert len(cmd.stdout) == 2000004 and not cmd.gaps


def test_stuck_reader_gets_a_gap_and_holds_nobody(c):
    cmd = c.start("sh", "-c", "head -c 3000000 /dev/zero; echo end >&2", process_id="stuck1").wait_started()
    cmd.stream.auto_credit = False
    other = c.attach("stuck1").wait(60)  # ends only when the stuck one is no longer waited for
    assert other.exited.exit_code == 0 and len(other.stdout) + other_gaps(other) >= 3000000 - 1
    cmd.stream.auto_credit = True
    cmd.stream.give_credit()
    cmd.wait()
    assert cmd.gaps and len(cmd.stdout) + other_gaps(cmd) == 3000000
    assert cmd.stderr == b"end\n"


def other_gaps(cmd):
    return sum(g.to - g.from_ for g in cmd.gaps)


def test_reattach_with_offsets(c):
    first = c.start("sh", "-c", "printf 0123456789; sleep 0.3; printf abcde", process_id="re1").wait_output(b"0123456789")
    first.stream.cancel()
    again = c.attach("re1", stdout_from=4).wait()
    assert again.started.resumed == 1 and again.stdout == b"456789abcde" and not again.resyncs
    late = c.attach("re1", stdout_from=15, stderr_from=0).wait()  # ended: the record answers
    assert late.stdout == b"" and late.exited.exit_code == 0
    assert late.started.pid == again.started.pid
    assert c.attach("re1", may_start=1, argv=["false"]).wait().stdout == b"0123456789abcde"  # never started twice


def test_resync_says_where_it_goes_on(c):
    c.sh("printf hello", process_id="re2")
    cmd = c.attach("re2", stdout_from=99).wait()
    assert [r.stdout_offset for r in cmd.resyncs] == [0] and cmd.stdout == b"hello"
    cmd = c.sh("head -c 1000000 /dev/zero", process_id="re3")
    cmd = c.attach("re3", stdout_from=0).wait()
    assert cmd.resyncs and cmd.resyncs[0].stdout_offset > 0
    assert cmd.resyncs[0].stdout_offset + len(cmd.stdout) == 1000000


def test_detached_command_keeps_its_last_window(c):
    cmd = c.start("sh", "-c", "head -c 900000 /dev/zero; printf end", process_id="det1").wait_started()
    cmd.stream.cancel()
    for _ in range(200):
        if next(p for p in c.list() if p.process_id == "det1").state == 2:
            break
        time.sleep(0.05)
    late = c.attach("det1").wait()
    assert late.stdout.endswith(b"end") and 100000 < len(late.stdout) <= 300000
    assert late.exited.exit_code == 0


def test_kill_on_disconnect_has_a_grace(c):
    cmd = c.start("sleep", "600", process_id="dis1", on_disconnect=1).wait_started()
    cmd.stream.cancel()
    time.sleep(2)
    back = c.attach("dis1").wait_started()
    assert back.exited is None
    back.stream.cancel()
    time.sleep(12)
    ended = c.attach("dis1").wait(5)
    assert (ended.exited.signal, ended.exited.reason) == (9, "disconnected")


# --- requests ---

def test_probe(c):
    assert c.ask("PROBE", argv=["sh", "-c", "echo noise; exit 3"]).exit_code == 3
    answer = c.ask("PROBE", argv=["sleep", "600"], timeout_ms=200)
    assert (answer.signal, answer.reason) == (9, "timeout")
    assert c.ask("PROBE", argv=["no-such"]).exit_code == 127
    assert all(p.command != "sleep 600" or p.state == 2 for p in c.list())


def test_list_and_requests_in_a_row(c):
    cmd = c.start("sleep", "600", process_id="list1").wait_started()
    found = {p.process_id: p for p in c.list()}
    assert found["list1"].state == 1 and found["list1"].pid == cmd.started.pid and found["list1"].command == "sleep 600"
    stream = c.open()
    stream.send(record("PING") + record("SIGNAL", process_id="list1", signal=9) + record("PING"))
    assert [stream.next().kind for _ in range(3)] == ["PONG", "OK", "PONG"]
    stream.shutdown()
    cmd.wait()


def test_refusals(c):
    stream = c.open(port=9)
    with pytest.raises(ProtocolError):
        stream.next(5)
    assert stream.reset == 1
    assert c.ask("STARTED", process_id="x", pid=1).code == "invalid"
    assert c.ask("SIGNAL", signal=9).code == "invalid"
    stream = c.open()
    stream.send(struct.pack("<IHH", 70000, 1, 0))
    assert stream.next().code == "invalid"
    stream = c.open()
    stream.send(record("PING"))
    assert stream.next().kind == "PONG"
    stream.send(record("ATTACH", process_id="x"))
    assert stream.next().code == "invalid"


def test_stream_limit(c):
    streams = [c.open() for _ in range(128)]
    extra = c.open()
    with pytest.raises(ProtocolError):
        extra.next(5)
    assert extra.reset == 2
    for stream in streams:
        stream.cancel()
    assert c.ping().kind == "PONG"


# --- a hostile host ---

def test_garbage_then_hello(c):
    c.run("true")
    for junk in (os.urandom(5000), b"\0" * 100, channel.MAGIC * 10, struct.pack("<BBHIII", 5, 0, 0, c.epoch & 0xFFFFFFFF, 1, 40000)):
        c.raw(junk)
        c.hello(resync=True)
        assert c.run("echo", "ok").stdout == b"ok\n"


def test_host_dies_inside_a_frame(c):
    stream = c.open()
    c.frame(channel.DATA, stream.id, 30000, b"x" * 100)
    c.hello(resync=True)
    assert c.run("echo", "ok").stdout == b"ok\n"


def test_more_than_the_credit(c):
    stream = c.open()
    stream.send(record("STDIN", process_id="nobody"))
    stream.next()
    hog = c.start("sleep", "600", process_id="hog", stdin=1).wait_started()
    stream = c.open()
    stream.send(record("STDIN", process_id="hog"))
    piece = record("DATA", data=bytes(30000))
    for _ in range(40):
        c.frame(channel.DATA, stream.id, len(piece), piece)
    deadline = time.monotonic() + 20
    while stream.reset is None:
        c.pump_until(deadline, "no reset")
    assert stream.reset == 4
    c.ask("SIGNAL", process_id="hog", signal=9)
    hog.wait()


def test_records_of_any_bytes(c):
    for i in range(size(30, 1000)):
        stream = c.open()
        body = os.urandom(i % 50)
        stream.send(struct.pack("<IHH", len(body), i % 40, 0) + body)
        stream.cancel()
    assert c.ping().kind == "PONG"


# --- flatness ---

def test_commands_leave_descriptors_and_memory_flat(guest, c):
    n = guest.flat_commands
    fds, rss = [], []
    for i in range(n):
        kind = i % 6
        if kind == 0:
            c.run("true")
        elif kind == 1:
            c.sh("echo out; echo err >&2", stdin=1)
        elif kind == 2:
            c.sh("echo tty", pty_cols=80, pty_rows=24)
        elif kind == 3:
            c.start("sleep", "0.01").stream.cancel()
        elif kind == 4:
            c.run("no-such-command")
        else:
            c.ask("PROBE", argv=["true"])
        if i % max(1, n // 20) == 0:
            pong = c.ping(flags=1)
            fds.append(pong.fds)
            rss.append(pong.rss_kib)
    say(f"{n} commands: descriptors {fds}, rss KiB {rss}")
    assert flat(fds, 4), fds
    assert flat(rss, 2048), rss
