# SPDX-License-Identifier: Apache-2.0
"""Ports for programs that are told theirs. Below what the kernel hands out by itself, and workers of one run (pytest-xdist) each have a
range: nobody takes a port between its choice and the program's bind."""

import itertools
import os
import random
import socket

FIRST, EACH, RANGES = 12000, 2000, 10
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_next = itertools.count(random.randrange(EACH))


def free_port():
    for _ in range(EACH):
        port = FIRST + _worker % RANGES * EACH + next(_next) % EACH
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
