#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a sandbox takes from the HTTP request to ready, and to the first byte of a command's output.

Beside it, in the same run: the VMM's own clone without our control plane, and `podman run` of the same root file system. Seed template,
256 MiB, one vCPU. "ready" means: the create operation succeeded, so the guest agent has acknowledged its new identity. One create at a
time; every sandbox is deleted before the next. `create_ready`, `create_first_byte`: a machine of a pool (.stock: with Debian's kernel);
`create_ready/KERNEL`, `create_first_byte/KERNEL`: no pool, a clone or a machine that stands by blank. --burst N: N creates at once over a
pool of N, and nothing else."""

import concurrent.futures
import json
import subprocess
import sys
import time

from report import Report, arguments, finish, percentile

from lib import api as apilib
from lib import benching
from lib.system import CACHE, OUT, System

PODMAN = ["podman", "--runtime", "runc", "run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit",
          "nproc=10000:10000"]


def one_ready(api):
    t = time.monotonic()
    r = api.ok("POST", "/v1/sandboxes", {"template": "seed:latest", "resources": {"memory_mib": 256}}, headers={"Prefer": "wait=60"})
    took = (time.monotonic() - t) * 1000
    ok = r["operation"]["state"] == "succeeded"
    return took if ok else None, r["sandbox"]["id"]


def pooled(report, system, kernel, n, podman_p50):
    """Hits: the pool is full again before each."""
    api = system.api
    pool_id = benching.pool(api, 2)
    for result, fn, budget in (("create_ready", one_ready, {"p50": 15, "p99": 60}), ("create_first_byte", one_first_byte, {"p50": 50, "p99": 150})):
        values, failures, misses, steps = [], 0, 0, {}
        before = benching.starts(benching.pool_nodes(api, pool_id))
        for i in range(n + 1):
            benching.wait_warm(api, pool_id, 2, after=before + i)
            took, sid = fn(api)
            sandbox = api.sandbox(sid)
            api.delete(sid)
            if i == 0:
                continue
            if took is None:
                failures += 1
            elif sandbox["start_kind"] != "warm":
                misses += 1
            else:
                values.append(took)
                for k, v in (sandbox.get("timings") or {}).items():
                    steps.setdefault(k, []).append(v)
        report.add(benching.name(result, kernel), values, failures, budget=budget,
                   ratio={"to": "podman run", "p50": percentile(values, 50) / podman_p50} if podman_p50 and values else None)
        print("%s: %d misses; steps, p50 ms: %s" % (benching.name(result, kernel), misses,
                                                    {k: round(percentile(v, 50), 1) for k, v in sorted(steps.items())}))


def burst(report, system, kernel, size, rounds):
    """As many creates at once as the pool has machines."""
    api = system.api
    pool_id = benching.pool(api, size)
    values, failures, kinds = [], 0, {}
    before = benching.starts(benching.pool_nodes(api, pool_id))
    for i in range(rounds + 1):
        benching.wait_warm(api, pool_id, size, after=before + i * size)
        time.sleep(1)
        with concurrent.futures.ThreadPoolExecutor(size) as executor:
            results = list(executor.map(lambda _: one_ready(api), range(size)))
        for took, sid in results:
            if i and took is None:
                failures += 1
            elif i:
                values.append(took)
                kind = api.sandbox(sid)["start_kind"]
                kinds[kind] = kinds.get(kind, 0) + 1
        for _, sid in results:
            api.delete(sid, wait=False)
        for _, sid in results:
            api.wait_state(sid, "deleted")
    report.add(benching.name("create_burst_%d" % size, kernel), values, failures, budget={"p95": 150})
    report.conditions["burst %s" % kernel] = "%d at once over a pool of %d: %s" % (size, size, kinds)


def one_first_byte(api):
    t = time.monotonic()
    took, sid = one_ready(api)
    if took is None:
        return None, sid
    with apilib.Stream(api.session(sid, ["echo", "hi"])) as s:
        r = s.collect(until=lambda x: x.stdout)
        return (time.monotonic() - t) * 1000 if bytes(r.stdout) == b"hi\n" else None, sid


def repeat(fn, api, n):
    values, failures, steps = [], 0, {}
    for i in range(n + 2):
        took, sid = fn(api)
        sandbox = api.sandbox(sid)
        api.delete(sid)
        if i < 2:  # the first ones make the template's snapshot and warm the page cache
            continue
        if took is None:
            failures += 1
            continue
        values.append(took)
        for k, v in (sandbox.get("timings") or {}).items():
            steps.setdefault(k, []).append(v)
    return values, failures, steps


def raw_clone(kernel, n):
    program = OUT / "libexec" / "space" / "space-raw-clone"
    if not program.exists():
        return [], 0, "no %s" % program
    p = subprocess.run([str(program), "--kernel-dir", str(CACHE / "kernels" / kernel), "--rootfs", str(CACHE / "seed" / "rootfs"),
                        "--memory-mib", "256", "--runs", str(n)], capture_output=True, timeout=1200, stdin=subprocess.DEVNULL)
    if p.returncode:
        return [], n, p.stderr.decode(errors="replace")[-300:]
    return json.loads(p.stdout)["clone_ms"], 0, None


def podman(n):
    image = "localhost/space-bench-seed"
    have = subprocess.run(["podman", "image", "exists", image]).returncode == 0
    if not have:
        tar = subprocess.Popen(["tar", "-C", str(CACHE / "seed" / "rootfs"), "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(["podman", "import", "-", image], stdin=tar.stdout, check=True, capture_output=True)
    values, failures = [], 0
    for i in range(n + 1):
        t = time.monotonic()
        p = subprocess.run([*PODMAN, image, "echo", "hi"], capture_output=True)
        if i == 0:
            continue
        if p.stdout == b"hi\n":
            values.append((time.monotonic() - t) * 1000)
        else:
            failures += 1
    return values, failures


def bench_kernel(report, kernel, n, podman_p50):
    raw, raw_failures, why = raw_clone(kernel, n)
    if why:
        print("raw_clone %s: %s" % (kernel, why), file=sys.stderr)
    base = report.add("raw_clone/%s" % kernel, raw, raw_failures)
    system = System(kernel=kernel, max_sandboxes=64, pool_demand_max=0)
    try:
        system.up()
        system.seed()
        values, failures, steps = repeat(one_ready, system.api, n)
        budget = {"p50": round(base["p50"] + 60, 1)} if "p50" in base else None
        report.add("create_ready/%s" % kernel, values, failures, budget=budget,
                   ratio={"to": "raw_clone", "p50": percentile(values, 50) / base["p50"]} if "p50" in base and values else None)
        print("steps of create_ready/%s, p50 ms: %s" % (kernel, {k: round(percentile(v, 50), 1) for k, v in sorted(steps.items())}))
        values, failures, _ = repeat(one_first_byte, system.api, n)
        report.add("create_first_byte/%s" % kernel, values, failures, budget={"p50": 350 if kernel == "lean" else 500},
                   ratio={"to": "podman run", "p50": percentile(values, 50) / podman_p50} if podman_p50 and values else None)
        idle(report, system, kernel)
        benching.raise_quotas(system.api)
        pooled(report, system, kernel, n, podman_p50)
    finally:
        system.remove()


def idle(report, system, kernel):
    """CPU of one idle guest, and its clock."""
    sid = system.api.create()
    clock = system.api.run(sid, ["cat", "/sys/devices/system/clocksource/clocksource0/current_clocksource"]).stdout.decode().strip()
    _, vmm = system.vm_pids(sid)
    time.sleep(3)
    used = lambda: sum(map(int, open("/proc/%d/stat" % vmm).read().rsplit(")", 1)[1].split()[11:13]))  # noqa: E731
    shares = []
    for _ in range(5):
        a = used()
        time.sleep(4)
        shares.append((used() - a) / 100 / 4 * 100)
    report.add("idle_cpu/%s" % kernel, shares, unit="% of a core", budget={"p50": 1.0})
    report.conditions["clocksource %s" % kernel] = clock
    system.api.delete(sid)


def bursts(report, args):
    for kernel in benching.kernels(args.kernel):
        system = System(kernel=kernel, max_sandboxes=200)
        try:
            system.up()
            system.seed()
            benching.raise_quotas(system.api)
            system.api.delete(system.api.create())
            burst(report, system, kernel, args.burst, args.runs or 5)
        finally:
            system.remove()


def main():
    args = arguments(__doc__, kernel={"choices": ["stock", "lean", "both"], "default": "both"}, burst={"type": int, "default": 0})
    n = args.runs or 30
    report = Report("create")
    report.conditions.update({"sandbox": "seed, 1 vCPU, 256 MiB", "accelerator": "auto (tcg without /dev/kvm)",
                              "store": "btrfs on a loop device", "cache": "warm; two creates before counting",
                              "ready": "create operation succeeded: the guest acknowledged its identity"})
    if args.burst:
        bursts(report, args)
        finish(report, args)
        return
    values, failures = podman(n)
    peer = report.add("podman_run", values, failures)
    for kernel in ("lean", "stock") if args.kernel == "both" else (args.kernel,):
        if not (CACHE / "kernels" / kernel / "kernel.json").exists():
            print("no %s kernel in the cache; ./do kernel %s makes it" % (kernel, kernel), file=sys.stderr)
            continue
        bench_kernel(report, kernel, n, peer.get("p50"))
    finish(report, args)


if __name__ == "__main__":
    main()
