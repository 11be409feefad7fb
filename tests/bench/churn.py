#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Create, run a command, delete, over and over through a pool, while ten others live and idle. `churn_ready`, `churn_first_byte`,
`churn_delete`: each step's time. Afterwards: what the host holds that it did not before (nothing), and how the daemons' memory and
descriptors went over the last 80 % of the run (`growth_…`: at most 1 MiB and 2 descriptors is flat)."""

import time

from report import Report, arguments, finish

from lib import api as apilib
from lib import benching as b
from lib import hostdiff
from lib.system import System


def slope(samples):
    """Growth from the first fifth's end to the run's end, by a straight line through the samples."""
    xs = samples[len(samples) // 5:]
    n = len(xs)
    if n < 2:
        return 0.0
    mean_x, mean_y = (n - 1) / 2, sum(xs) / n
    k = sum((i - mean_x) * (y - mean_y) for i, y in enumerate(xs)) / sum((i - mean_x) ** 2 for i in range(n))
    return k * (n - 1)


def cycle(api, out):
    t = time.monotonic()
    took, answer = b.timed_ask(api, "/v1/sandboxes", b.CREATE)
    sid = answer["sandbox"]["id"]
    if took is None:
        out["failures"] += 1
        print("create failed: %s" % answer["operation"])
    else:
        out["churn_ready"].append(took)
        with apilib.Stream(api.session(sid, ["echo", "hi"])) as s:
            r = s.collect(until=lambda x: x.stdout)
            out["churn_first_byte"].append((time.monotonic() - t) * 1000)
            r = s.collect(r)
        if r.code != 0 or bytes(r.stdout) != b"hi\n" or r.faults or r.error:
            out["failures"] += 1
            print("run failed: %r" % r)
    gone, answer = b.timed_ask(api, "/v1/sandboxes/" + sid, method="DELETE")
    if gone is None:
        out["failures"] += 1
    else:
        out["churn_delete"].append(gone)


def bench(report, system, kernel, runs):
    api = system.api
    idle = [api.create() for _ in range(10)]
    b.pool(api, 4)
    look = lambda: hostdiff.snapshot(str(system.root), int(system.settings["uid_base"]), standing_by=True)  # noqa: E731
    cycle(api, {"failures": 0, "churn_ready": [], "churn_first_byte": [], "churn_delete": []})
    before = look()
    out = {"failures": 0, "churn_ready": [], "churn_first_byte": [], "churn_delete": []}
    memory, descriptors = {}, {}
    for i in range(runs):
        cycle(api, out)
        if i % max(1, runs // 50) == 0:
            for d in ("control", "node", "broker", "gateway"):
                memory.setdefault(d, []).append(system.rss_kib(system.pid(d)) / 1024)
                descriptors.setdefault(d, []).append(system.fds(system.pid(d)))
    end = time.monotonic() + 90
    while (left := hostdiff.diff(before, look())) and time.monotonic() < end:
        time.sleep(1)
    for key in ("churn_ready", "churn_first_byte", "churn_delete"):
        report.add(b.name(key, kernel), out[key], out["failures"])
    report.add(b.name("host_difference", kernel), [sum(map(len, left.values()))], unit="things", budget={"max": 0})
    if left:
        print("left on the host: %s" % left)
    for d in memory:
        report.add(b.name("growth_memory_" + d, kernel), [slope(memory[d])], unit="MiB", budget={"max": 1})
        report.add(b.name("growth_descriptors_" + d, kernel), [slope(descriptors[d])], unit="fds", budget={"max": 2})
    for sid in idle:
        api.delete(sid)


def main():
    args = arguments(__doc__, kernel={"choices": ["stock", "lean", "both"], "default": "lean"})
    report = Report("churn")
    runs = args.runs or 500
    report.conditions.update({"run": "%d create/run/delete, one after the other, pool of 4, 10 idle sandboxes" % runs})
    for kernel in b.kernels(args.kernel):
        system = System(kernel=kernel, max_sandboxes=64, memory_reserve_mib=256)
        try:
            system.up()
            system.seed()
            b.raise_quotas(system.api)
            bench(report, system, kernel, runs)
        finally:
            system.remove()
    finish(report, args)


if __name__ == "__main__":
    main()
