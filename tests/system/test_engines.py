# SPDX-License-Identifier: Apache-2.0
"""Promise: a suspended sandbox and every snapshot outlive an upgrade of QEMU: what was taken with one version is woken, forked and gone
back to with that one, whatever the host has now; new sandboxes get the new one; what nothing is left of goes."""

import json
import os
import time

import pytest

from lib import engines, guest
from lib.sizes import say
from lib.system import running_system


def engines_of(system):
    """{digest: version} of the store."""
    found = {}
    for path in (system.state / "store" / "engines").iterdir():
        if (path / "manifest.json").exists():
            found[path.name] = json.loads((path / "manifest.json").read_text())["qemu_version"]
    return found


def engine_of(system, sid):
    return json.loads((system.state / "store" / "sandboxes" / sid / "vm.json").read_text())["engine"]


def program_of(system, sid):
    _, vmm = system.vm_pids(sid)
    return os.stat("/proc/%d/exe" % vmm)


def runs_out_of(system, sid, digest):
    bundle = system.state / "store" / "engines" / digest / "usr" / "bin"
    have = program_of(system, sid)
    return any((p.stat().st_dev, p.stat().st_ino) == (have.st_dev, have.st_ino) for p in bundle.iterdir())


@pytest.fixture
def own(tmp_path):
    with running_system(garbage_grace_s=0, blank_vmms=1) as s:
        yield s


def other_qemu(kind, folder):
    if kind == "copy":
        return engines.renamed(folder)
    program, why = engines.backports()
    if not program:
        pytest.skip(why)
    return program


def upgrade(system, qemu):
    """As an upgrade by the package manager and a restart do it."""
    system.down()
    system.settings["qemu"] = str(qemu)
    system.env["SPACE_QEMU"] = str(qemu)
    system.up()
    system.wait_ready()


def wait_gone(system, digest):
    end = time.monotonic() + 120
    while digest in engines_of(system):
        assert time.monotonic() < end, "the old engine is still there\n" + system.logs()
        system.restart("broker")  # a pass over what is in the store begins
        time.sleep(4)


@pytest.mark.parametrize("kind", ["copy", "backports"])
def test_upgrade(own, kind):
    s, api = own, own.api
    qemu = other_qemu(kind, s.root / "qemu")
    sid, plain = api.create(), api.create()
    guest.detached(api, sid, ["python3", "-c", guest.COUNTER])
    guest.write(api, sid, "/home/user/kept", "before")
    (old, old_version), = engines_of(s).items()
    assert engine_of(s, sid) == old and runs_out_of(s, sid, old)
    named = api.take_snapshot(sid, "named")
    guest.write(api, sid, "/home/user/kept", "after")
    count = guest.count(api, sid)
    api.suspend(sid)
    api.suspend(plain)

    upgrade(s, qemu)
    api = s.api
    fresh = api.create()
    new = engine_of(s, fresh)
    assert new != old and runs_out_of(s, fresh, new) and set(engines_of(s)) == {old, new}
    t = time.monotonic()
    api.wake(sid)
    took = time.monotonic() - t
    assert engine_of(s, sid) == old and runs_out_of(s, sid, old)
    assert guest.read(api, sid, "/home/user/kept") == "after"
    assert count <= guest.count(api, sid) <= count + 40
    assert api.sandbox(sid)["vmm"] == "qemu " + old_version
    assert api.sandbox(fresh)["vmm"] == "qemu " + engines_of(s)[new]
    assert kind == "copy" or engines_of(s)[new].startswith("10.")
    _, (child,) = api.fork(sid)
    assert guest.read(api, child, "/home/user/kept") == "after" and guest.count(api, child) >= count
    assert engine_of(s, child) == old
    api.suspend(sid)
    api.wake(sid)  # what was taken since is of the old one too
    assert engine_of(s, sid) == old
    api.rollback(sid, named)
    assert guest.read(api, sid, "/home/user/kept") == "before" and engine_of(s, sid) == old
    say("%s → %s: woken in %.0f ms" % (old_version, engines_of(s)[new], took * 1000))

    for each in (child, sid, plain):  # `plain` is still suspended: it alone keeps the old one
        assert old in engines_of(s)
        api.delete(each)
        api.delete_snapshots(each)
    wait_gone(s, old)
    assert set(engines_of(s)) == {new} and api.run(fresh, ["true"]).code == 0
    api.delete(fresh)


def test_an_engine_that_is_gone_or_broken(own):
    s, api = own, own.api
    sid = api.create()
    guest.write(api, sid, "/home/user/kept", "here")
    (old, version), = engines_of(s).items()
    api.suspend(sid)
    upgrade(s, engines.renamed(s.root / "qemu"))
    api = s.api
    bundle, aside = (s.state / "store" / "engines" / name for name in (old, "aside"))
    library = bundle / "usr" / "lib" / "libz.so.1"
    good = library.read_bytes()
    library.chmod(0o644)
    library.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    library.chmod(0o444)
    for code, there in (("engine_broken", True), ("engine_missing", False)):
        if not there:
            bundle.rename(aside)
        op = api.operate(sid, "wake", good=False)
        assert op["error"]["code"] == code and old in op["error"]["message"] and version in op["error"]["message"], op
        assert api.sandbox(sid)["state"] == "suspended", api.sandbox(sid)
    aside.rename(bundle)
    library.chmod(0o644)
    library.write_bytes(good)
    library.chmod(0o444)
    api.wake(sid)  # nothing was lost
    assert guest.read(api, sid, "/home/user/kept") == "here" and runs_out_of(s, sid, old)
