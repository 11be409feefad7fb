# SPDX-License-Identifier: Apache-2.0
"""What every benchmark shares: percentiles, conditions, the table on the terminal and the JSON of `--json FILE`."""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))


def percentile(values, p):
    """Nearest rank: a value that was measured."""
    values = sorted(values)
    return values[max(0, min(len(values) - 1, -(-len(values) * p // 100) - 1))]


class Report:
    def __init__(self, bench):
        self.bench, self.results, self.conditions = bench, [], base_conditions()

    def add(self, name, values, failures=0, unit="ms", budget=None, ratio=None):
        r = {"name": name, "unit": unit, "n": len(values), "failures": failures}
        if values:
            r.update({k: round(v, 2) for k, v in zip(("p50", "p90", "p95", "p99", "max"),
                                                     [percentile(values, p) for p in (50, 90, 95, 99)] + [max(values)])})
        if budget:
            r["budget"] = budget
        if ratio:
            r["ratio"] = {k: round(v, 3) if isinstance(v, float) else v for k, v in ratio.items()}
        self.results.append(r)
        return r

    def get(self, name):
        return next((r for r in self.results if r["name"] == name and "p50" in r), None)

    def print(self):
        print("\n%s" % self.bench)
        for k, v in self.conditions.items():
            print("  %-12s %s" % (k, v))
        print("  %-28s %5s %5s %9s %9s %9s %9s" % ("", "n", "fail", "p50", "p90", "p99", "max"))
        for r in self.results:
            if "p50" not in r:
                print("  %-28s %5d %5d   nothing measured" % (r["name"], r["n"], r["failures"]))
                continue
            print("  %-28s %5d %5d %9.1f %9.1f %9.1f %9.1f %s%s%s" % (
                r["name"], r["n"], r["failures"], r["p50"], r["p90"], r["p99"], r["max"], r["unit"], verdict(r),
                "; %.2f × %s" % (r["ratio"]["p50"], r["ratio"]["to"]) if "ratio" in r else ""))

    def write(self, path):
        pathlib.Path(path).write_text(json.dumps({"bench": self.bench, "conditions": self.conditions, "results": self.results},
                                                 indent=2) + "\n")


def verdict(r):
    """By how much a budget is met or missed; a benchmark never fails a build."""
    out = []
    for key, limit in r.get("budget", {}).items():
        left = limit - r[key]
        out.append("; budget %s ≤ %g: %s by %.1f" % (key, limit, "met" if left >= 0 else "MISSED", abs(left)))
    return "".join(out)


def first_line(*argv):
    try:
        return subprocess.run(argv, capture_output=True, timeout=20).stdout.decode(errors="replace").splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "not there"


def base_conditions():
    cpu = next((x.split(":")[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), platform.machine())
    return {"host": "%d × %s, %d MiB" % (os.cpu_count(), cpu, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20),
            "host kernel": platform.release(), "vmm": first_line("qemu-system-x86_64", "--version"),
            "load": "%.2f before the run" % os.getloadavg()[0]}


def arguments(doc, **extra):
    p = argparse.ArgumentParser(description=doc)
    p.add_argument("--json", help="write the results here too")
    p.add_argument("--runs", type=int, default=None)
    for name, kw in extra.items():
        p.add_argument("--" + name, **kw)
    return p.parse_args()


def finish(report, args):
    report.print()
    if args.json:
        report.write(args.json)
