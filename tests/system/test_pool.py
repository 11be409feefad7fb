# SPDX-License-Identifier: Apache-2.0
"""Promise: a create that finds a machine in its pool takes it, exactly one owner each; one that finds none is a clone; a member that is
dead, silent or outdated is never handed out; a restarted node finds its pool again or leaves nothing of it."""

import concurrent.futures
import datetime
import json
import os
import signal
import time

import pytest

from lib import hostdiff
from lib.sizes import say, size
from lib.system import running_system

POOL = 4


@pytest.fixture(scope="module")
def pooled():
    with running_system() as s:
        s.api.delete(s.api.create())
        s.before = hostdiff.snapshot(str(s.root), int(s.settings["uid_base"]), standing_by=True)
        yield s


def set_pool(api, n, memory_mib=256):
    pools = [p for p in api.ok("GET", "/v1/pools")["items"] if p["resources"]["memory_mib"] == memory_mib]
    if pools:
        return api.ok("PATCH", "/v1/pools/" + pools[0]["id"], {"size": n})
    return api.ok("POST", "/v1/pools", {"template": "seed:latest", "resources": {"memory_mib": memory_mib}, "size": n})


def counts(api, pool_id):
    pool = next(p for p in api.ok("GET", "/v1/pools")["items"] if p["id"] == pool_id)
    return {k: sum(n[k] for n in pool["nodes"]) for k in ("warm", "filling", "target", "hits", "misses")}


def wait_warm(api, pool_id, n, timeout=120, fresh=False):
    """Until the nodes report so many; with fresh, by a report made from now on (they make one every ten seconds)."""
    begun, end = time.time(), time.monotonic() + timeout

    def told():
        nodes = next(p for p in api.ok("GET", "/v1/pools")["items"] if p["id"] == pool_id)["nodes"]
        times = [datetime.datetime.fromisoformat(node["reported_at"]).timestamp() for node in nodes]
        return sum(node["warm"] for node in nodes) == n and (not fresh or min(times) > begun)
    while not told():
        assert time.monotonic() < end, counts(api, pool_id)
        time.sleep(0.1)


def create(api):
    """(operation, sandbox id)"""
    a = api.call("POST", "/v1/sandboxes", {"template": "seed:latest", "resources": {"memory_mib": 256}}, headers={"Prefer": "wait=60"})
    assert a.status == 202, a
    op = a.json["operation"]
    return (op if op["state"] in ("succeeded", "failed") else api.wait(op["id"])), a.json["sandbox"]["id"]


def spares(system):
    """Directories of spare VMs in the store."""
    return sorted(p.name for p in (system.state / "store" / "sandboxes").iterdir() if p.name.startswith("spr_"))


def test_hit_and_miss(pooled):
    api = pooled.api
    pool = set_pool(api, POOL)
    wait_warm(api, pool["id"], POOL)
    first = counts(api, pool["id"])
    op, sid = create(api)
    assert op["state"] == "succeeded" and op["start_kind"] == "warm" and op["timings"]["control_total_ms"] > 0, op
    before = time.time()
    r = api.run(sid, ["sh", "-c", "id -un; hostname; cat /etc/machine-id; date +%s"])
    assert r.code == 0, r
    user, host, machine, now = r.stdout.decode().split()
    assert user == "user" and len(machine) == 32 and before - 2 < int(now) < time.time() + 2
    api.delete(sid)
    wait_warm(api, pool["id"], POOL)  # refilled
    end = time.monotonic() + 60
    while (after := counts(api, pool["id"]))["hits"] < first["hits"] + 1:
        assert time.monotonic() < end, (first, after)
        time.sleep(0.1)
    say("hit: %s ms, %s" % (op["timings"]["control_total_ms"], op["timings"]))
    other = api.ok("POST", "/v1/sandboxes", {"template": "seed:latest", "resources": {"memory_mib": 512}})  # another size: no member fits
    assert api.wait(other["operation_id"])["start_kind"] != "warm"
    api.delete(other["sandbox"]["id"])


def test_environment_and_identity_of_a_member(pooled):
    api = pooled.api
    pool = set_pool(api, POOL)
    wait_warm(api, pool["id"], POOL)
    made = [api.ok("POST", "/v1/sandboxes", {"template": "seed:latest", "resources": {"memory_mib": 256}, "env": {"WHO": "s%d" % i}})
            for i in range(POOL)]
    seen = set()
    for i, m in enumerate(made):
        assert api.wait(m["operation_id"])["state"] == "succeeded"
        out = api.run(m["sandbox"]["id"], ["sh", "-c", "echo $WHO; cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; head -c 16 /dev/urandom | od -An -tx1"])
        lines = out.stdout.decode().splitlines()
        assert lines[0] == "s%d" % i
        assert not seen & set(lines[1:])
        seen |= set(lines[1:])
    for m in made:
        api.delete(m["sandbox"]["id"])


def test_burst_over_the_pool(pooled):
    """More at once than there are: every one succeeds, no member has two owners, the rest are clones."""
    api, n = pooled.api, size(8, 40)
    pool = set_pool(api, POOL)
    wait_warm(api, pool["id"], POOL, fresh=True)
    with concurrent.futures.ThreadPoolExecutor(n) as executor:
        results = list(executor.map(lambda _: create(api), range(n)))
    kinds = [op["start_kind"] for op, _ in results]
    assert all(op["state"] == "succeeded" for op, _ in results), [op["error"] for op, _ in results]
    assert kinds.count("warm") >= POOL and len({sid for _, sid in results}) == n
    machines = [bytes(api.run(sid, ["cat", "/etc/machine-id"]).stdout) for _, sid in results]
    uids = [pooled.vm_pids(sid)[1] for _, sid in results]
    assert len(set(machines)) == n and len(set(uids)) == n and None not in uids
    say("%d creates at once over a pool of %d: %s" % (n, POOL, {k: kinds.count(k) for k in set(kinds)}))
    for _, sid in results:
        api.delete(sid)


def record(system, name):
    try:
        return json.loads((system.state / "store" / "sandboxes" / name / "vm.json").read_text())
    except (OSError, ValueError):
        return {}


def wait_members(system):
    """The VMM pids of a full pool. What the node reported may be from before members were taken."""
    end = time.monotonic() + 60
    while len(pids := member_pids(system)) < POOL:
        assert time.monotonic() < end, (pids, spares(system))
        time.sleep(0.1)
    return pids


def member_pids(system):
    """VMM pids of the spares, by their uids."""
    found = []
    for name in spares(system):
        uid = record(system, name).get("uid")
        for p in os.listdir("/proc"):
            try:
                if p.isdigit() and os.stat("/proc/" + p).st_uid == uid and open("/proc/%s/comm" % p).read().startswith("qemu"):
                    found.append(int(p))
            except OSError:
                pass
    return found


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_dead_member_is_not_handed_out(pooled, how):
    api = pooled.api
    pool = set_pool(api, POOL)
    wait_warm(api, pool["id"], POOL)
    victims = wait_members(pooled)
    for pid in victims:
        os.kill(pid, getattr(signal, how))
    results = [create(api) for _ in range(2)]
    for op, sid in results:
        assert op["state"] == "succeeded", op
        assert api.run(sid, ["echo", "well"]).code == 0
        api.delete(sid)
    for pid in victims:
        try:
            os.kill(pid, signal.SIGCONT)
        except OSError:
            pass
    say("%s of %d members: creates were %s" % (how, len(victims), [op["start_kind"] for op, _ in results]))
    wait_warm(api, pool["id"], POOL, timeout=180)


def test_node_restart_with_a_full_pool(pooled):
    api = pooled.api
    pool = set_pool(api, POOL)
    wait_warm(api, pool["id"], POOL)
    before = set(wait_members(pooled))
    pooled.restart("node")
    wait_warm(api, pool["id"], POOL, fresh=True)
    after = set(member_pids(pooled))
    op, sid = create(api)
    assert op["start_kind"] == "warm", op
    api.delete(sid)
    say("node restarted: %d of %d members are the same machines" % (len(before & after), POOL))


def test_restarts_in_the_middle_of_a_burst(pooled):
    """The node, then the broker, is killed while creates take members: one owner each, all of them come to an end."""
    api, n = pooled.api, size(6, 50)
    for program in ("node", "broker"):
        pool = set_pool(api, POOL)
        wait_warm(api, pool["id"], POOL)
        with concurrent.futures.ThreadPoolExecutor(n) as executor:
            futures = [executor.submit(create, api) for _ in range(n)]
            time.sleep(0.05)
            pooled.restart(program)
            results = [f.result() for f in futures]
        good = [sid for op, sid in results if op["state"] == "succeeded"]
        machines = {bytes(api.run(sid, ["cat", "/etc/machine-id"]).stdout) for sid in good}
        assert len(machines) == len(good) == len(set(good))
        say("%s killed during %d creates: %d succeeded, others: %s" % (program, n, len(good), [op["error"] for op, _ in results
                                                                                                 if op["state"] != "succeeded"]))
        for _, sid in results:
            api.delete(sid)


def test_an_emptied_pool_leaves_nothing(pooled):
    """Of a size that nothing else asks for."""
    api = pooled.api
    pool = set_pool(api, 2, memory_mib=384)
    wait_warm(api, pool["id"], 2)
    api.ok("DELETE", "/v1/pools/" + pool["id"])
    assert pool["id"] not in [p["id"] for p in api.ok("GET", "/v1/pools")["items"]]
    end = time.monotonic() + 90
    while 384 in (sizes := [record(pooled, name).get("memory_mib") for name in spares(pooled)]):
        assert time.monotonic() < end, sizes
        time.sleep(0.5)
    look = lambda: hostdiff.snapshot(str(pooled.root), int(pooled.settings["uid_base"]), standing_by=True)  # noqa: E731
    while left := {c: [x for x in names if "snapshots/" not in x] for c, names in hostdiff.diff(pooled.before, look()).items()}:
        if not any(left.values()):
            break
        assert time.monotonic() < end, left
        time.sleep(0.5)
