# SPDX-License-Identifier: Apache-2.0
"""Promise: a sandbox is created, runs a command, streams its output, and is gone after delete; by API, CLI and example client."""

import os
import subprocess
import sys

from lib.system import ROOT


def test_create_run_delete(api):
    r = api.ok("POST", "/v1/sandboxes", {"template": "seed:latest", "name": "first", "resources": {"memory_mib": 256},
                                         "metadata": {"team": "test"}, "env": {"HELLO": "wörld"}})
    sid = r["sandbox"]["id"]
    op = api.wait(r["operation_id"])
    assert op["state"] == "succeeded", op
    sandbox = api.sandbox(sid)
    assert sandbox["state"] == "running" and sandbox["ready"] is True
    assert sandbox["metadata"] == {"team": "test"} and sandbox["template"]["tag"] == "latest"
    assert sandbox["accelerator"] in ("tcg", "kvm") and sandbox["kernel"] in ("stock", "lean")
    res = api.run(sid, ["sh", "-c", "echo $HELLO; id -un; pwd; echo err >&2; exit 3"])
    assert res.stdout.decode() == "wörld\nuser\n/home/user\n" and bytes(res.stderr) == b"err\n" and res.code == 3
    assert not res.faults and res.error is None
    api.delete(sid)
    assert api.sandbox(sid)["state"] == "deleted"


def test_identity_and_clock(api, sandbox):
    res = api.run(sandbox, ["sh", "-c", "cat /sys/devices/system/clocksource/clocksource0/current_clocksource /etc/machine-id; "
                            "hostname; date +%s; cat /proc/sys/kernel/random/boot_id"])
    clocksource, machine_id, hostname, now, _ = res.stdout.decode().split()
    assert clocksource == "tsc"
    assert len(machine_id) == 32 and machine_id != "0" * 32
    import time
    assert abs(int(now) - time.time()) < 5


def test_two_sandboxes_differ(api):
    ids = [api.create() for _ in range(2)]
    what = ["sh", "-c", "cat /etc/machine-id; hostname; head -c 16 /dev/urandom | od -An -tx1; python3 -c 'import uuid; print(uuid.uuid4())'"]
    outs = [api.run(i, what).stdout.decode().splitlines() for i in ids]
    for a, b in zip(*outs):
        assert a != b
    for i in ids:
        api.delete(i)


def test_cli_run(system):
    p = system.cli("run", "seed:latest", "--memory-mib", "256", "--", "python3", "-c", "print(6*7)")
    assert p.stdout == b"42\n"


def test_cli_exit_codes_streams_and_stdin(system, sandbox):
    p = system.cli("exec", sandbox, "--", "sh", "-c", "echo out; echo err >&2; exit 9", check=False)
    assert (p.returncode, p.stdout, p.stderr) == (9, b"out\n", b"err\n")
    p = system.cli("exec", sandbox, "--", "sh", "-c", "kill -9 $$", check=False)
    assert p.returncode == 128 + 9
    data = os.urandom(300000)
    p = system.cli("exec", sandbox, "-i", "--", "sha256sum", input=data)
    import hashlib
    assert p.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    p = system.cli("exec", sandbox, "--", "no-such-program", check=False)
    assert p.returncode == 127


def test_cli_objects(system, sandbox):
    assert sandbox.encode() in system.cli("ls").stdout
    assert b'"running"' in system.cli("get", sandbox, "-o", "json").stdout
    assert b"create" in system.cli("op", "ls", sandbox).stdout
    assert b"seed" in system.cli("template", "ls").stdout
    p = system.cli("get", "sbx_00000000000000000000000000", check=False)
    assert p.returncode != 0 and p.stderr.startswith(b"space: ")
    p = system.cli("lss", check=False)
    assert p.returncode == 64 and b"did you mean ls" in p.stderr
    assert system.cli("doctor").stdout.count(b"ok ") >= 8


def test_cli_detach_and_logs(system, sandbox):
    env = {"XDG_STATE_HOME": str(system.root / "xdg")}
    session = system.cli("exec", sandbox, "--detach", "--", "sh", "-c", "sleep 1; echo later", env=env).stdout.decode().strip()
    assert system.cli("logs", session, env=env).stdout == b"later\n"


def test_example_client(system):
    env = {**os.environ, "SPACE_API_URL": system.api.url, "SPACE_DATA_URL": system.data_url, "SPACE_TOKEN": system.api.token,
           "http_proxy": "http://127.0.0.1:1"}
    p = subprocess.run([sys.executable, str(ROOT / "examples" / "first_sandbox.py"), "run", "--delete", "--", "echo", "hello"],
                       env=env, capture_output=True, timeout=120)
    assert p.returncode == 0 and p.stdout == b"hello\n", p
