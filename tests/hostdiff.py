# SPDX-License-Identifier: Apache-2.0
"""The host difference as a program; the code and its description are in lib/hostdiff.py."""

import sys

from lib.hostdiff import main

sys.exit(main())
