# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for a node program's neighbours: control's internal API, the broker, space-vm. For tests/node and tests/gateway."""

import itertools
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SPACE_BUILD_DIR") or
                     next((ROOT / d for d in ("build-sanitize", "build") if (ROOT / d / "build.ninja").exists()), ROOT / "build"))
PATIENCE = 60  # seconds for what will happen: on a machine with much to do it takes as long as it takes
_counter = itertools.count()


def new_id(prefix):
    """A fresh, valid id: 26 characters of Crockford's base32."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    n = int.from_bytes(os.urandom(12), "big") * 4096 + next(_counter)
    return prefix + "_" + "".join(alphabet[(n >> (5 * i)) & 31] for i in range(25, -1, -1))
