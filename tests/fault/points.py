# SPDX-License-Identifier: Apache-2.0
"""The named fault points, read from the sources: a new one is in the matrix by itself."""

import re

from lib.system import ROOT

CALL = re.compile(r'fault_point\(\s*"([a-z_]+\.[a-z_.]+)"')
# Tables of steps name their point in a row; of all literals shaped like one, files and the like are not.
LITERAL = re.compile(r'"([a-z_]+\.[a-z_]+)"')
SUFFIXES = {"json", "img", "sock", "lock", "log", "cpio", "pieces", "tmp", "so", "pid", "conf", "txt", "mode", "max", "limit_in_bytes",
            "subtree_control", "procs", "kill", "events", "controllers"}


def named_points():
    found = set()
    for path in sorted((ROOT / "src" / "broker").rglob("*.c")):
        text = path.read_text()
        found |= set(CALL.findall(text))
        if "fault_point(" in text or ".fault" in text:
            found |= {x for x in LITERAL.findall(text) if x.split(".")[1] not in SUFFIXES}
    return sorted(found)
