# SPDX-License-Identifier: Apache-2.0
"""Agent records of spec/guest-protocol.md §2, in Python."""

import struct

TYPES = {"PING": 1, "PONG": 2, "OK": 9, "ERROR": 10, "ATTACH": 20, "STARTED": 21, "OUTPUT": 22, "GAP": 23, "RESYNC": 24,
         "EXITED": 25, "STDIN": 30, "DATA": 31, "RESIZE": 32, "SIGNAL": 33, "LIST": 35, "PROCESS": 36}
NAMES = {number: name for name, number in TYPES.items()}
TAGS = {"process_id": 1, "argv": 2, "env": 3, "cwd": 4, "user": 5, "pty_cols": 6, "pty_rows": 7, "stdin": 8, "timeout_ms": 9,
        "on_disconnect": 10, "stdout_from": 11, "stderr_from": 12, "pty_from": 13, "may_start": 14, "pid": 15,
        "started_realtime_ns": 16, "resumed": 17, "stream": 18, "offset": 19, "data": 20, "from": 21, "to": 22, "reason": 23,
        "stdout_offset": 24, "stderr_offset": 25, "pty_offset": 26, "exit_code": 27, "signal": 28, "oom_killed": 29,
        "duration_ms": 30, "output_may_continue": 31, "code": 32, "message": 33, "close_after": 42, "accepted": 43, "cols": 44,
        "rows": 45, "scope": 46, "remaining": 47, "state": 48, "command": 49}
TAG_NAMES = {number: name for name, number in TAGS.items()}
NUMBERS = {"pty_cols", "pty_rows", "stdin", "timeout_ms", "on_disconnect", "stdout_from", "stderr_from", "pty_from", "may_start",
           "pid", "started_realtime_ns", "resumed", "stream", "offset", "from", "to", "stdout_offset", "stderr_offset",
           "pty_offset", "exit_code", "signal", "oom_killed", "duration_ms", "output_may_continue", "close_after", "accepted",
           "cols", "rows", "scope", "remaining", "state"}
LISTS = {"argv", "env"}


def field(name, value):
    if isinstance(value, int):
        value = struct.pack("<Q", value)
    elif isinstance(value, str):
        value = value.encode()
    return struct.pack("<HHI", TAGS[name], 0, len(value)) + value


def encode(kind, **fields):
    """One record; the Python keyword `from` is given as from_."""
    payload = b""
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            payload += field(name.rstrip("_"), item)
    return struct.pack("<IHH", len(payload), TYPES[kind] if isinstance(kind, str) else kind, 0) + payload


def decode(kind, payload):
    fields = {}
    while payload:
        tag, _, length = struct.unpack_from("<HHI", payload)
        raw, payload = payload[8:8 + length], payload[8 + length:]
        name = TAG_NAMES.get(tag, str(tag))
        value = struct.unpack("<Q", raw)[0] if name in NUMBERS else raw if name == "data" else raw.decode()
        if name in LISTS:
            fields.setdefault(name, []).append(value)
        else:
            fields[name] = value
    return NAMES.get(kind, str(kind)), fields
