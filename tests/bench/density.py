#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What idle sandboxes cost: memory by PSS of space-vm and VMM, and processor time, at 1, 20 and 50.

`pss_N`: PSS of all of them divided by N, what one sandbox adds on the host. `idle_cpu_N`: percent of a core each, over ten seconds."""

import time

from report import Report, arguments, finish

from lib import benching as b
from lib.system import System


def main():
    args = arguments(__doc__, kernel={"choices": ["stock", "lean", "both"], "default": "lean"}, most={"type": int, "default": 50})
    report = Report("density")
    report.conditions.update({"sandbox": "seed, 1 vCPU, 256 MiB, idle, cloned", "counted": "space-vm and VMM of each sandbox"})
    for kernel in b.kernels(args.kernel):
        system = System(kernel=kernel, max_sandboxes=200, memory_reserve_mib=256)
        try:
            system.up()
            system.seed()
            b.raise_quotas(system.api)
            ids = []
            for at in [n for n in (1, 20, 50) if n <= args.most]:
                while len(ids) < at:
                    ids.append(system.api.create())
                time.sleep(10)
                pids = [p for sid in ids for p in b.sandbox_pids(system, sid)]
                report.add(b.name("pss_%d" % at, kernel), [b.pss_kib(pids) / 1024 / at], unit="MiB", budget={"p50": 35} if at == 50 else None)
                shares = []
                for _ in range(3):
                    before, t = b.cpu_ms(pids), time.monotonic()
                    time.sleep(10)
                    shares.append((b.cpu_ms(pids) - before) / 10 / (time.monotonic() - t) / at)
                report.add(b.name("idle_cpu_%d" % at, kernel), shares, unit="% of a core", budget={"p50": 1.0} if at == 20 else None)
        finally:
            system.remove()
    finish(report, args)


if __name__ == "__main__":
    main()
