#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forks of a running sandbox. `fork_N`: from the request until every child is ready, its identity taken on. `fork_stall`: the longest gap
in a byte a millisecond from the parent around it, less the median longest gap without a fork. `fork_cpu_per_child`: processor time of the
whole machine during a fork, less what the same machine used just before, divided by the children."""

import time

from report import Report, arguments, finish, percentile

from lib import benching as b
from lib.system import System


def idle_rate(seconds=1.0):
    """ms of processor time a second while nothing is asked for."""
    before = b.all_cpu_ms()
    time.sleep(seconds)
    return (b.all_cpu_ms() - before) / seconds


def one(api, sid, count):
    """(ms until all children are ready, cpu ms a child, ids, the answer)"""
    rate = idle_rate()
    before, t = b.all_cpu_ms(), time.monotonic()
    took, answer = b.operation(api, sid, "fork", {"count": count})
    cpu = b.all_cpu_ms() - before - rate * (time.monotonic() - t)
    return took, cpu / count, [c["sandbox_id"] for c in answer.get("children", [])], answer


def forks(report, api, kernel, runs, count):
    sid = api.create()
    values, cpu, failures, kinds = [], [], 0, {}
    for i in range(runs + 1):
        time.sleep(3 + count * 0.3)  # machines that stand by are made again, one at a time
        took, share, children, answer = one(api, sid, count)
        if took is None:
            failures += 1
            print("fork failed: %s" % answer)
        elif i:
            values.append(took)
            cpu.append(share)
        for c in children:
            kinds[api.sandbox(c)["start_kind"]] = kinds.get(api.sandbox(c)["start_kind"], 0) + 1
            api.delete(c, wait=False)
        for c in children:
            api.wait_state(c, "deleted")
    report.add(b.name("fork_%d" % count, kernel), values, failures, budget={"p50": 1800} if count == 20 else None)
    report.add(b.name("fork_cpu_per_child", kernel), cpu, unit="ms")
    report.conditions["children %s" % kernel] = str(kinds)
    api.delete(sid)
    api.delete_snapshots(sid)


def stalls(report, api, kernel, runs, count):
    """The parent writes while it is forked."""
    sid = api.create()
    ticker = b.Ticker(api, sid)
    gaps, said, windows = [], [], []
    try:
        for i in range(runs + 1):
            time.sleep(3)
            begin = time.monotonic()
            took, answer = b.operation(api, sid, "fork", {"count": count})
            op = answer.get("operation", {})
            snapshot = next((s for s in api.snapshots(sid) if s["id"] == op.get("snapshot_id")), None)
            # The parent goes on as soon as its snapshot is taken; the children's start makes the host busy, which is no stall.
            end = begin + 0.5
            if took is not None and i:
                gap = b.longest_gap(ticker.follower.arrivals, begin, end)
                if gap is not None:
                    gaps.append(gap)
                    windows.append(end - begin)
                if snapshot and snapshot["stall_us"] is not None:
                    said.append(snapshot["stall_us"] / 1000)
            for c in answer.get("children", []):
                api.delete(c["sandbox_id"], wait=False)
            for c in answer.get("children", []):
                api.wait_state(c["sandbox_id"], "deleted")
        base = ticker.baseline(0.5, max(runs, 10))
    finally:
        ticker.stop()
        api.delete(sid)
        api.delete_snapshots(sid)
    middle = percentile(base, 50) if base else 0
    report.add(b.name("fork_baseline_gap", kernel), base)
    report.add(b.name("fork_stall", kernel), [max(0.0, g - middle) for g in gaps], budget={"p50": 40})
    report.add(b.name("fork_stall_said", kernel), said, budget={"p50": 40})


def main():
    args = arguments(__doc__, kernel={"choices": ["stock", "lean", "both"], "default": "both"}, count={"type": int, "default": 20})
    report = Report("fork")
    report.conditions.update({"sandbox": "seed, 1 vCPU, 256 MiB, running, idle", "ready": "every child's create operation has succeeded",
                              "blank VMMs": "a stock of %d (blank_vmms)" % args.count})
    for kernel in b.kernels(args.kernel):
        system = System(kernel=kernel, max_sandboxes=200, blank_vmms=args.count)
        try:
            system.up()
            system.seed()
            b.raise_quotas(system.api)
            system.api.delete(system.api.create())
            forks(report, system.api, kernel, args.runs or 8, args.count)
            stalls(report, system.api, kernel, args.runs or 8, 1)
        finally:
            system.remove()
    finish(report, args)


if __name__ == "__main__":
    main()
