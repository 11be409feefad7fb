# SPDX-License-Identifier: Apache-2.0
"""Promise: the command line does what the API does, prints what a script needs, and says what went wrong with an exit status."""

import json


def out(p):
    return p.stdout.decode().strip()


def test_every_command(system, api):
    sid = out(system.cli("create", "seed:latest", "--memory-mib", "256", "--idle-pause", "600", "--idle-suspend", "0"))
    assert api.sandbox(sid)["lifecycle"]["idle_pause_after_s"] == 600 and api.sandbox(sid)["lifecycle"]["idle_suspend_after_s"] is None
    system.cli("exec", sid, "--", "sh", "-c", "echo kept > kept")
    assert out(system.cli("pause", sid)) == sid and api.sandbox(sid)["state"] == "paused"
    assert out(system.cli("wake", sid)) == sid and api.sandbox(sid)["state"] == "running"
    snapshot = out(system.cli("snapshot", sid, "--name", "one", "--label", "a=b"))
    assert snapshot.startswith("snp_") and snapshot.encode() in system.cli("snapshots", "--sandbox", sid).stdout
    listed = json.loads(system.cli("snapshots", "ls", "--json").stdout)
    mine = next(s for s in listed if s["id"] == snapshot)
    assert mine["name"] == "one" and mine["metadata"] == {"a": "b"} and mine["state"] == "ready"
    assert b"exclusive" in system.cli("snapshots", "get", snapshot).stdout
    op = json.loads(system.cli("suspend", sid, "--json").stdout)
    assert op["kind"] == "suspend" and op["state"] == "succeeded" and op["timings"]
    line = next(x for x in system.cli("ls").stdout.decode().splitlines() if sid in x)
    assert "suspended" in line
    system.cli("wake", sid)
    children = out(system.cli("fork", sid, "--count", "2", "--name", "kid")).splitlines()
    assert len(children) == 2
    for i, child in enumerate(children):
        assert out(system.cli("exec", child, "--", "cat", "kept")) == "kept"
        assert api.sandbox(child)["name"] == "kid-%d" % (i + 1)
    system.cli("exec", sid, "--", "rm", "kept")
    assert out(system.cli("rollback", sid, snapshot)) == sid
    assert out(system.cli("exec", sid, "--", "cat", "kept")) == "kept"
    other = out(system.cli("create", "--snapshot", snapshot))
    assert out(system.cli("exec", other, "--", "cat", "kept")) == "kept"
    shown = system.cli("op", "get", op["id"]).stdout.decode()
    assert "ms" in shown and "control_total" in shown
    system.cli("rm", sid, other, *children)
    assert out(system.cli("snapshots", "rm", snapshot)) == snapshot
    for s in (sid, other, *children):
        api.delete_snapshots(s)


def test_ls_shows_age_idle_memory_and_disk(system, api, sandbox):
    head, *lines = system.cli("ls").stdout.decode().splitlines()
    for word in ("STATE", "AGE", "IDLE", "MEMORY", "DISK"):
        assert word in head
    line = next(x for x in lines if sandbox in x).split()
    assert "running" in line and "256M" in line
    api.take_snapshot(sandbox)
    api.suspend(sandbox)
    line = next(x for x in system.cli("ls").stdout.decode().splitlines() if sandbox in x).split()
    assert "suspended" in line and line[-2] == "0" and line[-1] != "0", line
    assert json.loads(system.cli("ls", "--json").stdout)
    api.delete_snapshots(sandbox)


def test_errors(system, api, sandbox):
    none = "sbx_" + "0" * 26
    for argv in (["pause", none], ["fork", none], ["rollback", sandbox, "snp_" + "0" * 26], ["snapshots", "rm", "snp_" + "0" * 26],
                 ["snapshots", "get", "x/y"], ["fork", sandbox, "--count", "0"], ["pool", "set", "seed:latest", "many"], ["pool", "rm", "nothing"],
                 ["create", "seed:latest", "--snapshot", "snp_" + "0" * 26], ["create", "seed:latest", "--idle-pause", "soon"], ["pause"]):
        p = system.cli(*argv, check=False)
        assert p.returncode not in (0, 1) and p.stderr.startswith(b"space: "), (argv, p)
    api.suspend(sandbox)
    p = system.cli("pause", sandbox, check=False)
    assert p.returncode != 0 and b"space: " in p.stderr, p


def test_one_of_several_fails(system, api, sandbox):
    p = system.cli("pause", "sbx_" + "0" * 26, sandbox, check=False)
    assert p.returncode != 0 and api.sandbox(sandbox)["state"] == "paused" and sandbox.encode() in p.stdout


def test_pool(system, api):
    pool = out(system.cli("pool", "set", "seed:latest", "1", "--memory-mib", "320"))
    assert pool.startswith("pol_")
    assert out(system.cli("pool", "set", "seed:latest", "0", "--memory-mib", "320")) == pool
    assert b"seed:latest" in system.cli("pool", "ls").stdout
    assert out(system.cli("pool", "rm", pool)) == pool
    assert pool not in [p["id"] for p in api.ok("GET", "/v1/pools")["items"]]
