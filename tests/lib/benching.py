# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of the lifecycle share: timed operations, pools, the ticker in the guest, processor time of processes."""

import os
import pathlib
import subprocess
import tempfile
import time

from lib import api as apilib
from lib import guest
from lib.system import CACHE, ROOT

CREATE = {"template": "seed:latest", "resources": {"memory_mib": 256}}


def kernels(chosen):
    """Those that are there, the lean one first."""
    return [k for k in (("lean", "stock") if chosen == "both" else (chosen,)) if (CACHE / "kernels" / k / "kernel.json").exists()]


def name(result, kernel):
    """Results of the lean kernel have the acceptance table's names."""
    return result if kernel == "lean" else "%s.%s" % (result, kernel)


def timed_ask(api, path, body=None, method="POST"):
    """(ms from the request to the final answer, the answer); None for ms when it failed."""
    t = time.monotonic()
    a = api.call(method, path, body, headers={"Prefer": "wait=60"}, timeout=90)
    took = (time.monotonic() - t) * 1000
    ok = a.status == 202 and a.json["operation"]["state"] == "succeeded"
    return (took if ok else None), (a.json if a.status < 300 else {"problem": a.json})


def operation(api, sid, verb, body=None):
    return timed_ask(api, "/v1/sandboxes/%s/%s" % (sid, verb), body)


def raise_quotas(api):
    api.ok("PATCH", "/v1/tenants/self", {"quotas": {"requests_per_second": 100000, "max_sandboxes": 10000, "max_vcpus": 100000,
                                                   "max_memory_mib": 10**8}})


def pool(api, size):
    """The pool of seed at 256 MiB, brought to that size, all of it warm."""
    have = [p for p in api.ok("GET", "/v1/pools")["items"] if p["resources"]["memory_mib"] == 256]
    p = api.ok("PATCH", "/v1/pools/" + have[0]["id"], {"size": size}) if have else api.ok("POST", "/v1/pools", {**CREATE, "size": size})
    wait_warm(api, p["id"], size)
    return p["id"]


def pool_nodes(api, pool_id):
    return next(p for p in api.ok("GET", "/v1/pools")["items"] if p["id"] == pool_id)["nodes"]


def starts(nodes):
    """Creates that asked the pool, as its nodes have reported them."""
    return sum(n["hits"] + n["misses"] for n in nodes)


def wait_warm(api, pool_id, size, timeout=300, after=0):
    """after: so many creates are in the report, which is else one from before they emptied the pool."""
    end = time.monotonic() + timeout
    while True:
        nodes = pool_nodes(api, pool_id)
        if sum(n["warm"] for n in nodes) >= size and starts(nodes) >= after:
            return
        assert time.monotonic() < end, "the pool does not fill: %s" % nodes
        time.sleep(0.05)


def guest_program(api, sid, source, path):
    """A static C program of tests/lib, built and copied in."""
    with tempfile.TemporaryDirectory() as d:
        built = pathlib.Path(d) / "program"
        subprocess.run(["musl-gcc", "-static", "-O2", "-o", str(built), str(ROOT / "tests" / "lib" / source)], check=True)
        f = guest.follow(api.session(sid, ["sh", "-c", "cat > %s && chmod 755 %s" % (path, path)], stdin=True))
        f.wait(lambda r: r.started)
        assert apilib.stdin(f.session, built.read_bytes(), close=True).status < 300
        f.join(60)
        assert f.result.code == 0, f.result


def longest_gap(arrivals, begin, end):
    """ms; between two arrivals of which at least one lies in the window."""
    times = [t for t, _ in arrivals if begin - 0.5 <= t <= end + 0.5]
    gaps = [b - a for a, b in zip(times, times[1:]) if b >= begin and a <= end]
    return max(gaps) * 1000 if gaps else None


class Ticker:
    """A byte every millisecond from a guest program over the channel, and when each came."""

    def __init__(self, api, sid, dirty_mib_s=0):
        guest_program(api, sid, "ticker.c", "/tmp/ticker")
        self.dirtier = guest.detached(api, sid, ["/tmp/ticker", "dirty", str(dirty_mib_s), "48"]) if dirty_mib_s else None
        self.follower = guest.follow(api.session(sid, ["/tmp/ticker", "tick"]), timeout=1200)
        self.follower.wait(lambda r: len(r.stdout) > 500)

    def baseline(self, window, n):
        """The longest gap of each of n windows in which nothing happens."""
        gaps = []
        for _ in range(n):
            begin = time.monotonic()
            time.sleep(window)
            gaps.append(longest_gap(self.follower.arrivals, begin, time.monotonic()))
        return [g for g in gaps if g is not None]

    def stop(self):
        apilib.signal(self.follower.session, "KILL")
        if self.dirtier:
            apilib.signal(self.dirtier, "KILL")
        self.follower.stop()


def cpu_ms(pids):
    """Processor time of processes and the children they have waited for."""
    total = 0
    for pid in pids:
        try:
            fields = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total * 1000 / os.sysconf("SC_CLK_TCK")


def all_cpu_ms():
    """Processor time of the whole machine, idle left out."""
    fields = list(map(int, open("/proc/stat").readline().split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) * 1000 / os.sysconf("SC_CLK_TCK")


def pss_kib(pids):
    total = 0
    for pid in pids:
        try:
            for line in open("/proc/%d/smaps_rollup" % pid):
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            pass
    return total


def sandbox_pids(system, sid):
    return [p for p in system.vm_pids(sid) if p]


def daemon_pids(system):
    return [system.pid(n) for n in ("broker", "control", "node", "gateway")]
