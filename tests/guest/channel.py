# SPDX-License-Identifier: Apache-2.0
"""The host's end of the guest channel, for tests: written from spec/guest-protocol.md, not from the C code."""

import itertools
import os
import select
import struct
import time

MAGIC = b"SPACE-CHANNEL-1\n"
HELLO, HELLO_ACK, OPEN, OPENED, DATA, CREDIT, SHUTDOWN, RESET = range(1, 9)

TYPES = dict(PING=1, PONG=2, QUIESCE=3, QUIESCED=4, IDENTITY=5, IDENTIFIED=6, SHUTDOWN=7, SHUTDOWN_OK=8, OK=9,
             ERROR=10, ATTACH=20, STARTED=21, OUTPUT=22, GAP=23, RESYNC=24, EXITED=25, STDIN=30, DATA=31, RESIZE=32,
             SIGNAL=33, PROBE=34, LIST=35, PROCESS=36, SYNC=37)
TYPE_NAMES = {v: k for k, v in TYPES.items()}
TAGS = """process_id argv env cwd user pty_cols pty_rows stdin timeout_ms on_disconnect stdout_from stderr_from pty_from
may_start pid started_realtime_ns resumed stream offset data from to reason stdout_offset stderr_offset pty_offset
exit_code signal oom_killed duration_ms output_may_continue code message generation realtime_ns entropy hostname
machine_id sandbox_id output_window flags close_after accepted cols rows scope remaining state command agent_version
protocol uptime_ns boot_id clocksource fds rss_kib processes zombies streams session_retention_ms hooks_run
hooks_failed""".split()
TAG_OF = {name: i + 1 for i, name in enumerate(TAGS)}
STRINGS = set("""process_id argv env cwd user reason code message hostname machine_id sandbox_id command agent_version
boot_id clocksource""".split())
BYTES = {"data", "entropy"}
_serial = itertools.count(1)  # process ids are never used twice


class ProtocolError(Exception):
    """The guest broke the protocol, or did not answer in time."""


def field(name, value):
    if isinstance(value, int):
        value = struct.pack("<Q", value)
    elif isinstance(value, str):
        value = value.encode()
    return struct.pack("<HHI", TAG_OF[name], 0, len(value)) + value


def record(kind, **fields):
    """Names as in the spec; `from` is written from_; a list repeats the tag; None is left out."""
    payload = b""
    for name, value in fields.items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item is not None:
                payload += field(name.rstrip("_"), item)
    return struct.pack("<IHH", len(payload), TYPES[kind], 0) + payload


class Record:
    def __init__(self, kind, payload):
        self.kind = TYPE_NAMES.get(kind, kind)
        self.fields = {}
        while payload:
            tag, zero, length = struct.unpack_from("<HHI", payload)
            value = payload[8:8 + length]
            if zero or len(value) != length:
                raise ProtocolError("malformed field")
            payload = payload[8 + length:]
            name = TAGS[tag - 1]
            if name in STRINGS:
                value = value.decode()
            elif name not in BYTES:
                value = struct.unpack("<Q", value)[0]
            self.fields[name] = value

    def __getattr__(self, name):
        try:
            return self.fields[name.rstrip("_")]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self):
        return f"{self.kind}({self.fields})"


class Stream:
    def __init__(self, channel, sid):
        self.channel, self.id = channel, sid
        self.opened = self.ended = False
        self.reset = None
        self.auto_credit = True
        self.send_credit = channel.window
        self.received = bytearray()
        self.uncredited = 0

    def _data(self, data):
        self.received += data
        self.uncredited += len(data)
        if self.auto_credit:
            self.give_credit()

    def give_credit(self):
        if self.uncredited and self.reset is None:
            n, self.uncredited = self.uncredited, 0
            self.channel.frame(CREDIT, self.id, n)

    def send(self, data, timeout=30):
        deadline = time.monotonic() + timeout
        while data:
            n = min(len(data), self.send_credit, self.channel.max_frame)
            if n:
                self.channel.frame(DATA, self.id, n, data[:n])
                self.send_credit -= n
                data = data[n:]
            elif self.reset is not None:
                raise ProtocolError(f"stream reset ({self.reset})")
            else:
                self.channel.pump_until(deadline, "no credit")

    def shutdown(self):
        self.channel.frame(SHUTDOWN, self.id, 0)

    def cancel(self):
        self.channel.frame(RESET, self.id, 5)
        self.channel.streams.pop(self.id, None)
        self.reset = 5
        self.channel.flush()

    def take_record(self):
        """A record that has already arrived, or None."""
        if len(self.received) < 8:
            return None
        length, kind, zero = struct.unpack_from("<IHH", self.received)
        if zero or length > 65536:
            raise ProtocolError("malformed record")
        if len(self.received) < 8 + length:
            return None
        payload = bytes(self.received[8:8 + length])
        del self.received[:8 + length]
        return Record(kind, payload)

    def next(self, timeout=30):
        deadline = time.monotonic() + timeout
        while True:
            rec = self.take_record()
            if rec:
                return rec
            if self.reset is not None or self.ended:
                raise ProtocolError(f"stream ended (reset {self.reset})")
            self.channel.pump_until(deadline, "no record")


class Command:
    """An ATTACH stream and what came over it."""

    def __init__(self, stream):
        self.stream = stream
        self.started = self.exited = self.error = None
        self.out = {1: bytearray(), 2: bytearray(), 3: bytearray()}
        self.offset = {}
        self.gaps, self.resyncs = [], []

    def take(self, rec):
        if self.exited is not None:
            raise ProtocolError(f"{rec} after EXITED")
        if rec.kind == "STARTED":
            self.started = rec
        elif rec.kind == "OUTPUT":
            expected = self.offset.get(rec.stream)
            if expected is not None and expected != rec.offset:
                raise ProtocolError(f"stream {rec.stream} jumps from {expected} to {rec.offset}")
            self.out[rec.stream] += rec.data
            self.offset[rec.stream] = rec.offset + len(rec.data)
        elif rec.kind == "GAP":
            self.gaps.append(rec)
            self.offset[rec.stream] = rec.to
        elif rec.kind == "RESYNC":
            self.resyncs.append(rec)
            self.offset.clear()
        elif rec.kind == "EXITED":
            self.exited = rec
        elif rec.kind == "ERROR":
            self.error = rec
        else:
            raise ProtocolError(f"unexpected {rec}")

    def step(self, timeout=30):
        self.take(self.stream.next(timeout))
        return self

    def wait(self, timeout=60):
        deadline = time.monotonic() + timeout
        while self.exited is None and self.error is None:
            self.step(max(0.01, deadline - time.monotonic()))
        return self

    def wait_started(self, timeout=30):
        while self.started is None and self.error is None:
            self.step(timeout)
        return self

    def wait_output(self, text, stream=1, timeout=30):
        deadline = time.monotonic() + timeout
        while text not in self.out[stream]:
            self.step(max(0.01, deadline - time.monotonic()))
        return self

    @property
    def stdout(self):
        return bytes(self.out[1])

    @property
    def stderr(self):
        return bytes(self.out[2])

    @property
    def pty(self):
        return bytes(self.out[3])


class Channel:
    def __init__(self, sock, window=256 * 1024, max_frame=32768):
        self.sock = sock
        sock.setblocking(False)
        self.offer = (window, max_frame)
        self.rx, self.tx = bytearray(), bytearray()
        self.synced = self.eof = self.parsing = False
        self.streams = {}
        self.ids = 0

    # --- transport ---
    def pump(self, timeout=0.0):
        """Moves bytes both ways once; True when anything moved."""
        moved = False
        readable, writable, _ = select.select([self.sock], [self.sock] if self.tx else [], [], timeout)
        if writable:
            n = self.sock.send(memoryview(self.tx)[:65536])
            del self.tx[:n]
            moved = True
        if readable:
            data = self.sock.recv(1 << 18)
            self.eof |= not data
            self.rx += data
            self._parse()
            moved = True
        return moved

    def pump_until(self, deadline, what):
        left = deadline - time.monotonic()
        if left <= 0 or (self.eof and not self.rx):
            raise ProtocolError(f"{what} in time" if left <= 0 else "the guest is gone")
        self.pump(min(left, 0.5))

    def raw(self, data):
        self.tx += data
        self.flush()

    def flush(self):
        deadline = time.monotonic() + 10
        while self.tx:
            self.pump_until(deadline, "port takes nothing")

    def frame(self, op, sid, arg, payload=b"", epoch=None):
        epoch_low = (self.epoch if epoch is None else epoch) & 0xFFFFFFFF
        self.tx += struct.pack("<BBHIII", op, 0, 0, epoch_low, sid, arg) + payload
        if len(self.tx) > 1 << 16 and not self.parsing:  # else the bytes being taken apart would be so twice
            self.pump()

    # --- connection ---
    def hello(self, generation=1, timeout=30, resync=False):
        self.epoch = int.from_bytes(os.urandom(8), "little") | 1
        self.synced, self.streams, self.ids = False, {}, 0
        self.tx.clear()
        body = MAGIC + struct.pack("<QQII", self.epoch, generation, *self.offer)
        if resync:
            self.tx += bytes(32768 + 56)
        self.frame(HELLO, 0, len(body), body)
        self.window, self.max_frame = self.offer
        deadline = time.monotonic() + timeout
        while not self.synced:
            self.pump_until(deadline, "no HELLO_ACK")
        return self

    def _find_ack(self):
        want = struct.pack("<BBHIII", HELLO_ACK, 0, 0, self.epoch & 0xFFFFFFFF, 0, 40) + MAGIC + struct.pack("<Q", self.epoch)
        at = self.rx.find(want)
        if at < 0 or len(self.rx) < at + 56:
            if at < 0:
                del self.rx[:max(0, len(self.rx) - 55)]
            return
        _, window, frame = struct.unpack_from("<QII", self.rx, at + 40)
        self.window, self.max_frame = window, frame
        del self.rx[:at + 56]
        self.synced = True

    def _parse(self):
        self.parsing = True
        try:
            self._take_frames()
        finally:
            self.parsing = False

    def _take_frames(self):
        if not self.synced:
            self._find_ack()
        at = 0
        while self.synced and len(self.rx) - at >= 16:
            op, flags, zero, epoch, sid, arg = struct.unpack_from("<BBHIII", self.rx, at)
            if flags or zero or op not in (OPENED, DATA, CREDIT, SHUTDOWN, RESET):
                raise ProtocolError(f"bad frame op {op}")
            size = 16 + (arg if op == DATA else 0)
            if len(self.rx) - at < size:
                break
            payload = bytes(self.rx[at + 16:at + size])
            at += size
            if epoch == self.epoch & 0xFFFFFFFF:
                self._frame(op, sid, arg, payload)
        del self.rx[:at]

    def _frame(self, op, sid, arg, payload):
        stream = self.streams.get(sid)
        if stream is None:
            if sid > self.ids:
                raise ProtocolError("a stream that was never opened")
            return
        if op == OPENED:
            stream.opened = True
        elif op == DATA:
            if len(payload) > self.max_frame or stream.uncredited + len(payload) > self.window:
                raise ProtocolError("more than the credit")
            stream._data(payload)
        elif op == CREDIT:
            stream.send_credit += arg
        elif op == SHUTDOWN:
            stream.ended = True
            self.frame(SHUTDOWN, sid, 0)
        else:
            stream.reset = arg
            del self.streams[sid]

    # --- requests ---
    def open(self, port=1):
        self.ids += 1 if self.ids == 0 else 2
        stream = self.streams[self.ids] = Stream(self, self.ids)
        self.frame(OPEN, self.ids, port)
        return stream

    def ask(self, kind, timeout=30, **fields):
        stream = self.open()
        stream.send(record(kind, **fields))
        answer = stream.next(timeout)
        stream.shutdown()
        return answer

    def attach(self, process_id=None, **fields):
        stream = self.open()
        name = f"p{next(_serial)}" if process_id is None else process_id
        stream.send(record("ATTACH", process_id=name, **fields))
        return Command(stream)

    def start(self, *argv, process_id=None, **fields):
        return self.attach(process_id, may_start=1, argv=list(argv), **fields)

    def run(self, *argv, timeout=60, **fields):
        return self.start(*argv, **fields).wait(timeout)

    def sh(self, script, timeout=60, **fields):
        return self.run("sh", "-c", script, timeout=timeout, **fields)

    def stdin(self, process_id, data, close_after=0, timeout=60, piece=30000):
        stream = self.open()
        stream.send(record("STDIN", process_id=process_id, close_after=close_after))
        for i in range(0, len(data), piece):
            stream.send(record("DATA", data=data[i:i + piece]), timeout)
        stream.shutdown()
        return stream.next(timeout)

    def ping(self, **fields):
        return self.ask("PING", **fields)

    def list(self):
        stream, found = self.open(), []
        stream.send(record("LIST"))
        while True:
            rec = stream.next()
            if rec.kind == "OK":
                stream.shutdown()
                return found
            found.append(rec)

    def identity(self, generation=2, **fields):
        fields.setdefault("realtime_ns", time.time_ns())
        fields.setdefault("entropy", os.urandom(64))
        return self.ask("IDENTITY", generation=generation, **fields)
