#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What pausing, suspending, waking and snapshots cost: from the HTTP request to its final answer, one at a time.

`pause`, `wake_paused`: the VM stays in memory. `suspend`: idle, little dirty; `suspend_16`, `suspend_128`: after a program in the guest
wrote to so many MiB. `wake_suspended`: page cache warm; `wake_suspended_cold`: dropped. `snapshot_stall`: a program in the guest writes
a byte every millisecond; the longest gap at the host around a snapshot, less the median longest gap of windows as long without
one; `snapshot_stall_64` while another one dirties 64 MiB/s. Ratios are to what the VMM alone takes for its part of it in this run."""

import subprocess
import time

from report import Report, arguments, finish, percentile

from lib import benching as b
from lib import rawvmm
from lib.system import System

IDLE_S = 0.5  # between two operations, so that one does not pay for the last


def ratio(report, to, values):
    base = report.get(to)
    return {"to": to, "p50": percentile(values, 50) / base["p50"]} if base and values and base["p50"] else None


def collect(values, took):
    if took is None:
        return 1
    values.append(took)
    return 0


def pauses(report, api, kernel, n):
    sid = api.create()
    pause, wake, failures = [], [], [0, 0]
    for _ in range(n):
        time.sleep(0.1)
        failures[0] += collect(pause, b.operation(api, sid, "pause")[0])
        failures[1] += collect(wake, b.operation(api, sid, "wake")[0])
    report.add(b.name("pause", kernel), pause, failures[0], budget={"p50": 8}, ratio=ratio(report, b.name("raw_stop", kernel), pause))
    report.add(b.name("wake_paused", kernel), wake, failures[1], budget={"p50": 8}, ratio=ratio(report, b.name("raw_cont", kernel), wake))
    api.delete(sid)


def dirty(api, sid, mib):
    """Anonymous pages of a program that ends: dirty against the last snapshot all the same."""
    if mib:
        r = api.run(sid, ["python3", "-c", "import sys; n = int(sys.argv[1]) << 20; b = bytearray(n); b[::4096] = b'x' * (n // 4096)", str(mib)])
        assert r.code == 0, r


def exclusive_mib(api, sid):
    """What the newest suspend snapshot holds alone."""
    held = [s for s in api.snapshots(sid) if s["kind"] == "suspend" and s["exclusive_bytes"] is not None]
    return held[0]["exclusive_bytes"] / (1 << 20) if held else None


def drop_cache():
    subprocess.run(["sync"], check=True)
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3\n")


def suspends(api, n, mib=0, cold=False):
    """(suspend ms, wake ms, failures, MiB that each suspend's snapshot holds alone, steps)"""
    sid = api.create()
    out = {"suspend": [], "wake": [], "failures": 0, "mib": [], "steps": {}}
    for i in range(n + 1):
        dirty(api, sid, mib)
        time.sleep(IDLE_S)
        took, answer = b.operation(api, sid, "suspend")
        if took is None:
            out["failures"] += 1
            print("suspend failed: %s" % answer)
            break
        held = exclusive_mib(api, sid)
        if cold:
            drop_cache()
        woke, wake_answer = b.operation(api, sid, "wake")
        if woke is None:
            out["failures"] += 1
            print("wake failed: %s" % wake_answer)
            break
        if i == 0:  # everything since the template is in the first one
            continue
        out["suspend"].append(took)
        out["wake"].append(woke)
        if held is not None:
            out["mib"].append(held)
        for which, a in (("suspend", answer), ("wake", wake_answer)):
            for k, v in (a["operation"].get("timings") or {}).items():
                out["steps"].setdefault("%s %s" % (which, k), []).append(v)
    api.delete(sid)
    api.delete_snapshots(sid)
    return out


def print_steps(title, steps):
    print("steps of %s, p50 ms: %s" % (title, {k: round(percentile(v, 50), 1) for k, v in sorted(steps.items())}))


def suspending(report, api, kernel, n):
    raw_save, raw_restore = b.name("raw_save", kernel), b.name("raw_restore", kernel)
    idle = suspends(api, n)
    report.add(b.name("suspend", kernel), idle["suspend"], idle["failures"], budget={"p50": 60}, ratio=ratio(report, raw_save, idle["suspend"]))
    report.add(b.name("wake_suspended", kernel), idle["wake"], idle["failures"], budget={"p50": 150}, ratio=ratio(report, raw_restore, idle["wake"]))
    report.add(b.name("suspend_holds", kernel), idle["mib"], unit="MiB")
    print_steps("suspend and wake", idle["steps"])
    some = suspends(api, max(5, n // 3), mib=12)
    report.add(b.name("suspend_16", kernel), some["suspend"], some["failures"], budget={"p50": 120})
    report.add(b.name("suspend_16_holds", kernel), some["mib"], unit="MiB")
    much = suspends(api, max(5, n // 3), mib=128)
    report.add(b.name("suspend_128", kernel), much["suspend"], much["failures"])
    report.add(b.name("suspend_128_holds", kernel), much["mib"], unit="MiB")
    if idle["mib"] and much["mib"]:
        more = percentile(much["mib"], 50) - percentile(idle["mib"], 50)
        slope = (percentile(much["suspend"], 50) - percentile(idle["suspend"], 50)) / max(more, 1) * 100
        report.add(b.name("suspend_per_100_mib", kernel), [slope])
    cold = suspends(api, max(5, n // 3), cold=True)
    report.add(b.name("wake_suspended_cold", kernel), cold["wake"], cold["failures"])


def tenth(report, api, kernel, rounds):
    """The tenth idle suspend, and the tenth idle snapshot, beside the second."""
    found = {"suspend_second": [], "suspend_tenth": [], "snapshot_second": [], "snapshot_tenth": []}
    held = {"snapshot_second": [], "snapshot_tenth": []}
    for _ in range(rounds):
        for kind in ("suspend", "snapshot"):
            sid = api.create()
            for i in range(1, 11):
                time.sleep(IDLE_S)
                took, answer = b.operation(api, sid, kind, {} if kind == "snapshot" else None)
                which = {2: "second", 10: "tenth"}.get(i)
                if which and took is not None:
                    found["%s_%s" % (kind, which)].append(took)
                    if kind == "snapshot":
                        s = api.ok("GET", "/v1/snapshots/" + answer["snapshot"]["id"])
                        held["snapshot_" + which].append(s["exclusive_bytes"] / (1 << 20))
                if kind == "suspend":
                    b.operation(api, sid, "wake")
            api.delete(sid)
            api.delete_snapshots(sid)
    for k, v in found.items():
        report.add(b.name(k, kernel), v, ratio=ratio(report, b.name(k.replace("tenth", "second"), kernel), v) if "tenth" in k else None)
    for k, v in held.items():
        report.add(b.name(k + "_holds", kernel), v, unit="MiB")


def stalls(report, api, kernel, n, mib_s):
    sid = api.create()
    ticker = b.Ticker(api, sid, mib_s)
    try:
        gaps, said, windows, failures = [], [], [], 0
        for i in range(n + 1):
            time.sleep(IDLE_S)
            begin = time.monotonic()
            took, answer = b.operation(api, sid, "snapshot", {})
            end = time.monotonic()
            time.sleep(0.05)
            if took is None:
                failures += 1
                print("snapshot failed: %s" % answer)
                continue
            if i == 0:
                continue
            gap = b.longest_gap(ticker.follower.arrivals, begin, end)
            if gap is None:
                failures += 1
                continue
            gaps.append(gap)
            windows.append(end - begin)
            stall = api.ok("GET", "/v1/snapshots/" + answer["snapshot"]["id"])["stall_us"]
            if stall is not None:
                said.append(stall / 1000)
            if i % 10 == 0:
                api.delete_snapshots(sid)
        base = ticker.baseline(percentile(windows, 50) if windows else 0.1, max(n, 10))
    finally:
        ticker.stop()
        api.delete(sid)
        api.delete_snapshots(sid)
    suffix = "_%d" % mib_s if mib_s else ""
    middle = percentile(base, 50) if base else 0
    report.add(b.name("baseline_gap" + suffix, kernel), base)
    report.add(b.name("snapshot_stall" + suffix, kernel), [max(0.0, g - middle) for g in gaps], failures, budget={"p50": 40 if mib_s else 20})
    report.add(b.name("snapshot_stall_said" + suffix, kernel), said)


def bench_kernel(report, kernel, n):
    for name, values in rawvmm.measure(kernel, n).items():
        report.add(b.name(name, kernel), values)
    system = System(kernel=kernel, max_sandboxes=64)
    try:
        system.up()
        system.seed()
        b.raise_quotas(system.api)
        api = system.api
        for _ in range(2):
            api.delete(api.create())
        pauses(report, api, kernel, n)
        suspending(report, api, kernel, n)
        tenth(report, api, kernel, max(2, n // 10))
        stalls(report, api, kernel, n, 0)
        stalls(report, api, kernel, n, 64)
    finally:
        system.remove()


def main():
    args = arguments(__doc__, kernel={"choices": ["stock", "lean", "both"], "default": "both"})
    report = Report("lifecycle")
    report.conditions.update({"sandbox": "seed, 1 vCPU, 256 MiB", "store": "btrfs on a loop device", "names": "lean kernel; .stock is Debian's",
                              "time": "HTTP request to final answer"})
    for kernel in b.kernels(args.kernel):
        bench_kernel(report, kernel, args.runs or 30)
    finish(report, args)


if __name__ == "__main__":
    main()
