# SPDX-License-Identifier: Apache-2.0
"""Event streams: what a client sees of a process, and what it never sees."""

import base64
import os
import threading
import time

import pytest

from fakes import records


def data_of(events, name):
    return b"".join(base64.b64decode(e[2]["data"]) for e in events if e[0] == name)


def simple(stream, process_id):
    kind, attach = stream.read()
    assert kind == "ATTACH"
    stream.started(process_id)
    stream.send("OUTPUT", stream=1, offset=0, data=b"hello\n")
    stream.send("OUTPUT", stream=2, offset=0, data=b"oops")
    stream.send("OUTPUT", stream=1, offset=6, data=b"\x00\xff")
    stream.exited(exit_code=7)
    stream.attach = attach


def test_a_command_from_start_to_exit(gateway):
    seen = []

    def script(stream, process_id):
        simple(stream, process_id)
        seen.append(stream.attach)

    session_id, token, process_id, _ = gateway.session(script)
    stream = gateway.events(session_id, token)
    events = stream.all()
    assert stream.response.headers["Content-Type"] == "text/event-stream"
    assert [e[0] for e in events] == ["process_started", "stdout", "stderr", "stdout", "process_exited"]
    assert events[0][2] == {"process_id": process_id, "started_at": "2001-09-09T01:46:40.000Z"}
    assert data_of(events, "stdout") == b"hello\n\x00\xff" and data_of(events, "stderr") == b"oops"
    assert events[3][2]["offset"] == 6 and events[3][1] == "o=8,e=4,p=0"
    assert events[4][2] == {"exit_code": 7, "signal": None, "oom_killed": False, "reason": "exited", "duration_ms": 5,
                            "output_may_continue": False}
    assert seen[0] == {"process_id": process_id, "may_start": 1, "argv": ["/bin/sh", "-c", "echo hi"], "env": ["A=1", "B=two"],
                       "user": "user", "stdin": 1, "on_disconnect": 0, "stdout_from": 0, "stderr_from": 0, "pty_from": 0}
    states = gateway.control.wait_states(2)
    assert states[0] == (session_id, {"state": "started", "pid": 321})
    assert states[1] == (session_id, {"state": "exited", "pid": 321, "exit_code": 7, "signal": None, "reason": "exited"})


def test_killed_by_a_signal(gateway):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        stream.exited(signal=9, oom_killed=1, reason="oom", output_may_continue=1)

    session_id, token, _, _ = gateway.session(script)
    last = gateway.events(session_id, token).all()[-1]
    assert last[2] == {"exit_code": None, "signal": 9, "oom_killed": True, "reason": "oom", "duration_ms": 5,
                       "output_may_continue": True}
    assert gateway.control.wait_states(2)[1][1] == {"state": "exited", "pid": 321, "exit_code": None, "signal": 9,
                                                    "reason": "oom"}


def test_last_event_id_goes_on_behind_it(gateway):
    def script(stream, process_id):
        _, attach = stream.read()
        stream.started(process_id, resumed=1)
        assert (attach["stdout_from"], attach["stderr_from"], attach["pty_from"]) == (5, 3, 0)
        assert "argv" not in attach and attach["may_start"] == 0
        stream.send("OUTPUT", stream=1, offset=5, data=b"next")
        stream.exited()

    session_id, token, _, guest = gateway.session(script, may_start=False)
    events = gateway.events(session_id, token, last_event_id="o=5,e=3,p=0").all()
    assert events[1] == ("stdout", "o=9,e=3,p=0", {"offset": 5, "data": base64.b64encode(b"next").decode()})
    assert not guest.errors
    assert [s[1]["state"] for s in gateway.control.wait_states(1)] == ["exited"]  # its start was known


@pytest.mark.parametrize("value", ["", "5", "o=1", "o=1,e=2", "o=1,e=2,p=3,", "o=-1,e=0,p=0", "o=01,e=0,p=0", "e=0,o=0,p=0",
                                   "o=1, e=2,p=3", "o=9223372036854775808,e=0,p=0", "o=1,e=2,p=" + "9" * 30])
def test_a_malformed_last_event_id_is_refused(gateway, value):
    session_id, token, _, guest = gateway.session(simple)
    stream = gateway.events(session_id, token, last_event_id=value)
    assert (stream.status, stream.problem["code"], stream.problem["field"]) == (400, "invalid", "Last-Event-ID")
    assert not guest.streams


def test_gap_and_resync_are_said(gateway):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id, resumed=1)
        stream.send("RESYNC", reason="not_held", stdout_offset=100, stderr_offset=0, pty_offset=0)
        stream.send("OUTPUT", stream=1, offset=100, data=b"a")
        stream.send("GAP", stream=1, from_=101, to=200)
        stream.send("OUTPUT", stream=1, offset=200, data=b"b")
        stream.exited()

    session_id, token, _, _ = gateway.session(script)
    events = gateway.events(session_id, token).all()
    assert events[1] == ("resync_required", "o=100,e=0,p=0",
                         {"reason": "not_held", "stdout_offset": 100, "stderr_offset": 0, "pty_offset": 0})
    assert events[3] == ("gap", "o=200,e=0,p=0", {"stream": "stdout", "from": 101, "to": 200})
    assert [e[0] for e in events] == ["process_started", "resync_required", "stdout", "gap", "stdout", "process_exited"]


def test_every_byte_of_a_large_output_in_order(gateway):
    payload = os.urandom(3 * 1024 * 1024)

    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        for at in range(0, len(payload), 32768):
            stream.send("OUTPUT", stream=1, offset=at, data=payload[at:at + 32768])
        stream.exited()

    session_id, token, _, _ = gateway.session(script)
    events = gateway.events(session_id, token).all()
    assert data_of(events, "stdout") == payload and events[-1][0] == "process_exited"


def test_an_exit_behind_much_output_is_never_lost(gateway):
    """The agent's end closes the stream at once; the reader is slower than it."""
    for i in range(12):
        session_id, token, _, _ = gateway.session(flood(1024 * 1024 + i, {}))
        stream = gateway.events(session_id, token)
        time.sleep(0.01 * (i % 4))
        assert stream.all()[-1][0] == "process_exited"


def test_records_in_small_pieces(gateway):
    def script(stream, process_id):
        stream.read()
        text = records.encode("STARTED", process_id=process_id, pid=1, started_realtime_ns=1, resumed=0)
        text += records.encode("OUTPUT", stream=3, offset=0, data=b"pty!")
        text += records.encode("EXITED", exit_code=0, signal=0, reason="exited")
        for i in range(len(text)):
            stream.raw(text[i:i + 1])

    session_id, token, _, _ = gateway.session(script)
    assert [e[0] for e in gateway.events(session_id, token).all()] == ["process_started", "pty", "process_exited"]


VIOLATIONS = {
    "output before the start": [("OUTPUT", {"stream": 1, "offset": 0, "data": b"x"})],
    "exit before the start": [("EXITED", {"exit_code": 0, "signal": 0, "reason": "exited"})],
    "another process": [("STARTED", {"process_id": "prc_other", "pid": 1})],
    "a hole nobody mentioned": ["STARTED", ("OUTPUT", {"stream": 1, "offset": 5, "data": b"x"})],
    "output twice": ["STARTED", ("OUTPUT", {"stream": 1, "offset": 0, "data": b"xy"}),
                     ("OUTPUT", {"stream": 1, "offset": 1, "data": b"y"})],
    "an unknown stream": ["STARTED", ("OUTPUT", {"stream": 4, "offset": 0, "data": b"x"})],
    "too much in one record": ["STARTED", ("OUTPUT", {"stream": 1, "offset": 0, "data": b"x" * 32769})],
    "a gap backwards": ["STARTED", ("GAP", {"stream": 1, "from_": 0, "to": 0})],
    "an exit code that cannot be": ["STARTED", ("EXITED", {"exit_code": 256, "signal": 0, "reason": "exited"})],
    "a reason with a line break": ["STARTED", ("EXITED", {"exit_code": 0, "signal": 0, "reason": "a\n\ndata: x"})],
    "a record of the host": ["STARTED", ("SIGNAL", {"process_id": "x", "signal": 9, "scope": 1})],
    "a missing field": ["STARTED", ("OUTPUT", {"stream": 1, "data": b"x"})],
    "an over-long record": ["STARTED", b"\xff\xff\xff\x7f\x16\x00\x00\x00"],
    "nonsense": [b"HTTP/1.1 200 OK\r\n\r\n"],
}


@pytest.mark.parametrize("what", VIOLATIONS)
def test_a_guest_that_breaks_the_protocol(gateway, what):
    def script(stream, process_id):
        stream.read()
        for item in VIOLATIONS[what]:
            if item == "STARTED":
                stream.started(process_id)
            elif isinstance(item, bytes):
                stream.raw(item)
            else:
                stream.send(item[0], **item[1])
        stream.wait_closed()

    session_id, token, _, _ = gateway.session(script)
    events = gateway.events(session_id, token).all()
    assert events[-1][0] == "error" and events[-1][2]["code"] == "guest_protocol"
    assert "process_exited" not in [e[0] for e in events]
    assert gateway.get("/healthz")[0] == 200


@pytest.mark.parametrize("code,started,expected", [("not_found", False, "not_found"), ("no_user", False, "start_failed"),
                                                   ("bad_cwd", False, "start_failed"), ("internal", True, "upstream_unavailable"),
                                                   ("frozen", False, "upstream_unavailable")])
def test_errors_of_the_agent(gateway, code, started, expected):
    def script(stream, process_id):
        stream.read()
        if started:
            stream.started(process_id)
        stream.send("ERROR", code=code, message="say \"what\"\n\x01\xff")
        stream.wait_closed()

    session_id, token, _, _ = gateway.session(script)
    events = gateway.events(session_id, token).all()
    assert events[-1][0] == "error" and events[-1][2]["code"] == expected
    assert events[-1][2]["message"].startswith(code)


@pytest.mark.parametrize("started", [False, True])
def test_death_of_the_vm_is_an_error_and_never_an_exit(gateway, started):
    def script(stream, process_id):
        stream.read()
        if started:
            stream.started(process_id)
            stream.send("OUTPUT", stream=1, offset=0, data=b"x")
        stream.wait_closed()

    session_id, token, _, guest = gateway.session(script)
    stream = gateway.events(session_id, token)
    if started:
        assert stream.next()[0] == "process_started" and stream.next()[0] == "stdout"
    else:
        time.sleep(0.1)
    before = time.monotonic()
    guest.die()
    rest = stream.all()
    assert [e[0] for e in rest] == ["error"] and rest[0][2]["code"] == "sandbox_gone"
    assert time.monotonic() - before < 2
    assert "exited" not in [s[1]["state"] for s in gateway.control.states]


def test_a_failed_vm_that_still_listens_is_gone_too(gateway):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        guest.answer = "ERR not_running failed"

    session_id, token, _, guest = gateway.session(script)
    assert gateway.events(session_id, token).all()[-1][2]["code"] == "sandbox_gone"


def test_a_reset_stream_of_a_living_sandbox(gateway):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)

    session_id, token, _, _ = gateway.session(script)
    events = gateway.events(session_id, token).all()
    assert events[-1][0] == "error" and events[-1][2]["code"] == "upstream_unavailable"


def test_several_readers_of_one_session(gateway):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        stream.send("OUTPUT", stream=1, offset=0, data=b"for all")
        release.wait(10)
        stream.exited()

    release = threading.Event()
    session_id, token, _, guest = gateway.session(script)
    streams = [gateway.events(session_id, token) for _ in range(16)]
    for stream in streams:
        assert [stream.next()[0], stream.next()[0]] == ["process_started", "stdout"]
    refused = gateway.events(session_id, token)
    assert (refused.status, refused.problem["code"]) == (429, "too_many_streams")
    release.set()
    for stream in streams:
        assert [e[0] for e in stream.all()] == ["process_exited"]
    again = gateway.events(session_id, token)
    assert again.status == 200 and again.all()[-1][0] == "process_exited"
    assert not guest.errors


def test_a_client_that_leaves_frees_everything(own):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        stream.wait_closed()

    session_id, token, _, guest = own.session(script)
    for _ in range(20):
        stream = own.events(session_id, token)
        assert stream.next()[0] == "process_started"
        stream.close()
    deadline = time.monotonic() + 5
    while guest.open_count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert guest.open_count == 0
    assert b"space_gateway_streams_open 0\n" in own.get("/metrics")[1]


def flood(total, sent):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        for at in range(0, total, 32768):
            stream.send("OUTPUT", stream=1, offset=at, data=b"\0" * 32768)
            sent[process_id] = at + 32768
        stream.exited()
    return script


def wait_until_still(sent):
    last = None
    while last != sent:
        last = dict(sent)
        time.sleep(0.3)


def test_slow_readers_hold_little_and_only_themselves_up(own):
    total, sent, readers = 32 * 1024 * 1024, {}, 12
    warm = own.session(flood(4 * 1024 * 1024, {}))
    assert own.events(*warm[:2]).all()[-1][0] == "process_exited"
    before = own.rss_kib()
    slow = [own.events(*own.session(flood(total, sent))[:2]) for _ in range(readers)]
    for stream in slow:
        assert stream.next()[0] == "process_started"
    wait_until_still(sent)
    assert len(sent) == readers and all(n < total / 2 for n in sent.values())  # what the sockets on the way hold
    assert own.rss_kib() - before < readers * 256 + 4096  # the bound of a stream; 4 MiB for the sanitizer's own
    other = own.session(simple)
    assert own.events(*other[:2]).all()[-1][0] == "process_exited"
    for stream in slow[1:]:
        stream.close()
    count = 0
    while event := slow[0].next():
        if event[0] == "stdout":
            assert event[2]["offset"] == count
            count += len(base64.b64decode(event[2]["data"]))
    assert count == total  # nothing was lost for all the waiting


def test_comments_on_a_silent_stream(gateway):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        time.sleep(11)
        stream.exited()

    session_id, token, _, _ = gateway.session(script)
    stream = gateway.events(session_id, token)
    assert [e[0] for e in stream.all()] == ["process_started", "process_exited"]
    assert len(stream.comments) == 1


def test_stopping_tells_clients_to_come_back(own):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        stream.send("OUTPUT", stream=1, offset=0, data=b"x")
        stream.wait_closed()

    session_id, token, _, _ = own.session(script)
    stream = own.events(session_id, token)
    assert stream.next()[0] == "process_started" and stream.next()[0] == "stdout"
    thread = threading.Thread(target=own.stop)
    thread.start()
    assert stream.all() == [] and "Last-Event-ID" in stream.comments[-1]  # a clean end without an exit
    stream.close()
    thread.join()


def test_reports_are_repeated_until_control_took_them(own):
    def script(stream, process_id):
        stream.read()
        stream.started(process_id)
        own.control.fail = 503
        stream.exited()

    session_id, token, _, _ = own.session(script)
    own.events(session_id, token).all()
    time.sleep(0.5)
    assert len(own.control.states) <= 1
    own.control.fail = None
    states = own.control.wait_states(2)
    assert [s[1]["state"] for s in states] == ["started", "exited"] and states[0][0] == session_id


def leave_then_list(processes):
    """A first stream whose client leaves; then LIST questions, answered with `processes`."""
    def script(stream, process_id):
        kind, _ = stream.read()
        if kind == "ATTACH":
            stream.started(process_id)
            stream.wait_closed()
        else:
            assert kind == "LIST"
            for state in processes.pop(0) if len(processes) > 1 else processes[0]:
                stream.send("PROCESS", process_id=process_id, pid=9, started_realtime_ns=1, command="x", **state)
            stream.send("OK")
    return script


def test_the_end_of_a_command_nobody_watches_is_reported(own):
    running, ended = {"state": 1, "exit_code": 0, "signal": 0}, {"state": 2, "exit_code": 5, "signal": 0}
    session_id, token, _, guest = own.session(leave_then_list([[running], [ended]]))
    stream = own.events(session_id, token)
    assert stream.next()[0] == "process_started"
    stream.close()
    states = own.control.wait_states(2)
    assert states[1] == (session_id, {"state": "exited", "pid": 9, "exit_code": 5, "signal": None, "reason": "exited"})
    assert b"space_gateway_sessions_watched 0\n" in own.get("/metrics")[1] and not guest.errors


def test_a_watched_command_the_agent_forgot(own):
    session_id, token, _, guest = own.session(leave_then_list([[]]))
    stream = own.events(session_id, token)
    assert stream.next()[0] == "process_started"
    stream.close()
    deadline = time.monotonic() + 10
    while guest.open_count and time.monotonic() < deadline:
        time.sleep(0.05)
    while b"space_gateway_sessions_watched 0\n" not in own.get("/metrics")[1] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert b"space_gateway_sessions_watched 0\n" in own.get("/metrics")[1]
    assert [s[1]["state"] for s in own.control.states] == ["started"]
