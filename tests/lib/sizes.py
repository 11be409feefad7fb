# SPDX-License-Identifier: Apache-2.0
"""Sample sizes: `small` for every run, `full` (./do test full) for the sizes the acceptance lists name. Printed by each test."""

import os

FULL = os.environ.get("SPACE_TEST_SIZE", "small") == "full"


def size(small, full):
    return full if FULL else small


def say(text):
    """Shown with the test's result (pytest -rA / junit) and at once with -s."""
    print(text, flush=True)
