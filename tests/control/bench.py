#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Latencies of the control plane alone, against a node that is a Python thread: bench.py [N]. Prints milliseconds.

create:    POST /v1/sandboxes sent → 202 read (one transaction, fsync on)
node sees: 202 read → the node's long poll has the sandbox in hand (negative: before the client had its answer)
wait:      node's POST observed sent → the client's `?wait` has the final operation
"""
import statistics
import sys
import threading
import time

from conftest import World
from harness import Postgres


def show(name, values):
    values = sorted(v * 1000 for v in values)
    pick = lambda q: values[min(len(values) - 1, int(q * len(values)))]  # noqa: E731
    print(f"{name:28} n={len(values):4}  p50={pick(.5):7.2f}  p90={pick(.9):7.2f}  p99={pick(.99):7.2f}  "
          f"max={values[-1]:7.2f}  mean={statistics.mean(values):7.2f} ms")


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    postgres = Postgres(fsync=True)
    world = World(postgres)
    try:
        control = world.replica()
        api = control.admin()
        api.checks = False
        world.seed()
        reported = {}

        def reaction(item):
            if item["desired"] == "running":
                reported.setdefault(item["operation_id"], time.monotonic())
            return node.obey(item)

        node = world.node(start=False, max_sandboxes=100000, reaction=reaction)
        node.start()
        create, sees, wait, reads, delete = [], [], [], [], []
        for _ in range(n):
            begin = time.monotonic()
            answer = api.post("/v1/sandboxes", {"template": "seed"})
            end = time.monotonic()
            assert answer.status == 202, answer
            create.append(end - begin)
            op, box = answer.json["operation_id"], answer.json["sandbox"]["id"]
            api.get(f"/v1/operations/{op}?wait=20")
            wait.append(time.monotonic() - reported[op])
            sees.append(node.first_seen[box] - end)
            begin = time.monotonic()
            api.get(f"/v1/sandboxes/{box}")
            reads.append(time.monotonic() - begin)
            begin = time.monotonic()
            api.delete(f"/v1/sandboxes/{box}")
            delete.append(time.monotonic() - begin)
        show("create", create)
        show("node sees, after the 202", sees)
        show("observed → wait answered", wait)
        show("read", reads)
        show("delete", delete)
        done = []

        def creator():
            client = control.admin()
            client.checks = False
            for _ in range(n // 4):
                begin = time.monotonic()
                assert client.post("/v1/sandboxes", {"template": "seed"}).status in (202, 429, 503)
                done.append(time.monotonic() - begin)

        api.patch("/v1/tenants/self", {"quotas": {"requests_per_second": 100000, "max_sandboxes": 100000,
                                                  "max_vcpus": 1000000, "max_memory_mib": 1000000000}})
        threads = [threading.Thread(target=creator) for _ in range(8)]
        begin = time.monotonic()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        show("create, 8 clients", done)
        print(f"{len(done) / (time.monotonic() - begin):.0f} creates a second with 8 clients")
    finally:
        world.close()
        postgres.remove()


main()
