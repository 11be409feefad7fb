#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Latencies of the control plane alone: a real database with fsync on, a real space-control, a node that is a thread here.

create: POST /v1/sandboxes sent → 202 read. node sees: that 202 read → the node's long poll has the sandbox in hand. wait answered:
the node sends its report → the client's `?wait` has the final operation. to the end: sent → the final answer of `Prefer: wait`. Beside it, in the same run on the same cluster:
pgbench's transaction of one insert, which is what a commit costs here."""

import pathlib
import re
import subprocess
import sys
import threading
import time

from report import Report, arguments, finish

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "control"))
from conftest import World  # noqa: E402
from harness import PG_BIN, Postgres  # noqa: E402


def plain_commits(world, n):
    """Milliseconds of each of n transactions of one insert, from pgbench's log."""
    world.sql("CREATE TABLE plain (i bigint, t text)")
    script = pathlib.Path(world.dir) / "insert.sql"
    script.write_text("BEGIN;\nINSERT INTO plain VALUES (1, 'x');\nCOMMIT;\n")
    subprocess.run([str(PG_BIN / "pgbench"), "-n", "-M", "prepared", "-f", str(script), "-t", str(n), "-l", "--log-prefix=plain",
                    "-h", str(world.postgres.dir), "-U", "postgres", world.database], check=True, capture_output=True, cwd=world.dir)
    log = next(pathlib.Path(world.dir).glob("plain.*"))
    return [int(line.split()[2]) / 1000 for line in log.read_text().splitlines() if re.match(r"\d", line)]


def one_by_one(world, control, n):
    api = control.admin()
    api.checks = False
    reported = {}

    def reaction(item):
        if item["desired"] == "running":
            reported.setdefault(item["operation_id"], time.monotonic())
        return node.obey(item)

    node = world.node(start=False, max_sandboxes=100000, memory_mib=10**9, reaction=reaction)
    node.start()
    values = {name: [] for name in ("create", "node sees", "wait answered", "read", "delete")}

    def timed(name, call):
        begin = time.monotonic()
        answer = call()
        values[name].append((time.monotonic() - begin) * 1000)
        return answer

    for _ in range(n):
        made = timed("create", lambda: api.post("/v1/sandboxes", {"template": "seed"})).json
        answered = time.monotonic()
        api.get(f"/v1/operations/{made['operation_id']}?wait=20")
        values["wait answered"].append((time.monotonic() - reported[made["operation_id"]]) * 1000)
        box = made["sandbox"]["id"]
        values["node sees"].append(max(0, node.first_seen[box] - answered) * 1000)
        timed("read", lambda: api.get(f"/v1/sandboxes/{box}"))
        timed("delete", lambda: api.delete(f"/v1/sandboxes/{box}"))
    return values


def to_the_end(world, control, n):
    """Sent → the final answer (`Prefer: wait`), with a node that says at once that what it was asked for is so."""
    api = control.admin()
    api.checks = False
    values = {f"{name}, to the end": [] for name in ("create", "pause", "wake", "suspend", "wake suspended", "snapshot", "delete")}

    def timed(name, call):
        begin = time.monotonic()
        answer = call()
        assert answer.json["operation"]["state"] == "succeeded", answer
        values[f"{name}, to the end"].append((time.monotonic() - begin) * 1000)
        return answer.json["sandbox"]["id"]

    for _ in range(n):
        box = timed("create", lambda: api.post("/v1/sandboxes", {"template": "seed"}, prefer=20))
        for name in ("pause", "wake", "suspend", "wake suspended", "snapshot"):
            timed(name, lambda: api.post(f"/v1/sandboxes/{box}/{name.split()[0]}", {}, prefer=20))
        timed("delete", lambda: api.delete(f"/v1/sandboxes/{box}", prefer=20))
    return values


def at_once(control, n, clients):
    values = []

    def creator():
        client = control.admin()
        client.checks = False
        for _ in range(n // clients):
            begin = time.monotonic()
            if client.post("/v1/sandboxes", {"template": "seed"}).status == 202:
                values.append((time.monotonic() - begin) * 1000)

    threads = [threading.Thread(target=creator) for _ in range(clients)]
    begin = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return values, len(values) / (time.monotonic() - begin)


def main():
    args = arguments(__doc__, n={"type": int, "default": 200, "help": "of each"})
    report = Report("control")
    postgres = Postgres(fsync=True)
    world = World(postgres)
    try:
        control = world.replica()
        world.seed()
        report.conditions["database"] = "PostgreSQL 15, fsync on, unix socket"
        plain = plain_commits(world, args.n)
        report.add("plain commit", plain)
        base = report.get("plain commit")["p50"]
        for name, values in one_by_one(world, control, args.n).items():
            p50 = sorted(values)[len(values) // 2]
            ratio = {"to": "plain commit", "p50": p50 / base} if name in ("create", "delete") else None
            report.add(name, values, failures=args.n - len(values), ratio=ratio,
                       budget={"node sees": {"p50": 5}}.get(name))
        for name, values in to_the_end(world, control, args.n).items():
            report.add(name, values, failures=args.n - len(values),
                       budget={"pause, to the end": {"p50": 8}, "wake, to the end": {"p50": 8}}.get(name))
        control.admin().patch("/v1/tenants/self", {"quotas": {"requests_per_second": 100000, "max_sandboxes": 100000,
                                                             "max_vcpus": 1000000, "max_memory_mib": 10**9}})
        values, rate = at_once(control, args.n * 2, 8)
        report.add("create, 8 clients", values, failures=args.n * 2 // 8 * 8 - len(values))
        report.add("creates a second, 8 clients", [rate], unit="1/s")
    finally:
        world.close()
        postgres.remove()
    finish(report, args)


if __name__ == "__main__":
    main()
