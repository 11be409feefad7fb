# SPDX-License-Identifier: Apache-2.0
"""Promise: a VM runs on the engine its snapshot was taken with, whatever the host has now: out of a bundle in the store that is whole or
is not used. A bundle stays while something needs it, goes when it is asked to and nothing does, and is never left half made."""

import hashlib
import json
import os
import pathlib
import shutil

import pytest

from driver import Refused, UID_BASE, Broker, vm_id
from lib import engines, hostdiff
from lib.sizes import size


class Upgraded:
    """A broker that had the host's QEMU, and may have another one."""

    def __init__(self, uid_base):
        self.b = Broker(uid_base=uid_base)
        self.b.start()
        self.other = engines.renamed(self.b.root / "other")
        self.store = self.b.state / "store" / "engines"

    def use(self, qemu=None, fault=None):
        if self.b.process.poll() is None:
            self.b.stop()
        self.b.settings["qemu"] = str(qemu or engines.HOST)
        self.b.start(fault)
        return self.b.client.hello["engine"]

    def list(self):
        return {e["engine"]: e for e in self.b.client.call("engine_list")["engines"]}

    def there(self):
        return sorted(os.listdir(self.store))


@pytest.fixture
def up():
    u = Upgraded(UID_BASE + 40000)
    try:
        yield u
    finally:
        u.use()
        u.b.remove()


@pytest.fixture(scope="module")
def many():
    """For tests that leave it as it was: one for all."""
    u = Upgraded(UID_BASE + 50000)
    try:
        u.template = u.b.template()
        yield u
    finally:
        if u.b.process.poll() is None:
            u.b.stop()
        u.b.settings["qemu"] = str(engines.HOST)
        u.b.start()
        u.b.remove()


def record(b, id):
    return json.loads((b.state / "store" / "sandboxes" / id / "vm.json").read_text())


def manifest_of(b, key):
    return json.loads((b.state / "store" / "snapshots" / key / "manifest.json").read_text())


def test_the_bundle_is_what_the_host_has(up):
    """Every file under its hash, read-only, and the digest over all of them; the dynamic loader finds nothing elsewhere."""
    b, digest = up.b, up.b.client.hello["engine"]
    assert up.there() == []  # nothing was started yet
    vm = b.blank()
    assert up.there() == [digest] and record(b, vm["id"])["engine"] == digest
    bundle = up.store / digest
    manifest = json.loads((bundle / "manifest.json").read_text())
    rows = []
    for path, row in manifest["files"].items():
        data, st = (bundle / path).read_bytes(), (bundle / path).lstat()
        assert hashlib.sha256(data).hexdigest() == row["sha256"] and len(data) == row["size"]
        assert (st.st_uid, st.st_mode & 0o7777) == (0, 0o555 if row["executable"] else 0o444), path
        rows.append("%s  %s\n" % (row["sha256"], path))
    assert hashlib.sha256("".join(rows).encode()).hexdigest() == digest and rows == sorted(rows, key=lambda r: r[66:])
    assert {str(p.relative_to(bundle)) for p in bundle.rglob("*") if p.is_file()} == {*manifest["files"], "manifest.json"}
    assert (bundle / manifest["qemu"].lstrip("/")).read_bytes() == engines.HOST.read_bytes()
    assert (bundle / "usr/share/qemu/qboot.rom").exists() and manifest["qemu_version"][0].isdigit()
    root = b.root / "root"
    shutil.copytree(bundle, root)
    said = os.popen("chroot %s %s --version; chroot %s /lib64/ld-linux-x86-64.so.2 --list %s" % (
        root, manifest["qemu"], root, manifest["qemu"])).read()
    assert "QEMU emulator version " + manifest["qemu_version"] in said and "not found" not in said


def test_restored_with_what_it_was_taken_with(up):
    b, old = up.b, up.b.client.hello["engine"]
    template, key = b.image()
    vm = b.start_vm(template, snapshot=key)
    snapshot, _ = b.take(vm)
    b.client.call("snapshot_copy", snapshot=snapshot, to=(copy := vm_id("snp")))
    assert {manifest_of(b, k)["engine"] for k in (key, snapshot, copy)} == {old}
    new = up.use(up.other)
    assert new != old
    for source in (key, snapshot, copy):
        again = b.start_vm(template, snapshot=source)
        assert record(b, again["id"])["engine"] == old
        taken, _ = b.take(again)
        assert manifest_of(b, taken)["engine"] == old and manifest_of(b, taken)["qemu_version"] == b.report(again["id"])[
            "config"]["broker"]["qemu_version"]
    boot = b.start_vm(template, mode="template_boot")
    assert record(b, boot["id"])["engine"] == new and up.there() == sorted([old, new])


def test_a_blank_is_of_one_engine(up):
    """Refused before anything is done to it: it is as good as it was for its own."""
    b = up.b
    template, key = b.image()
    up.use(up.other)
    blank = b.blank()
    with pytest.raises(Refused) as e:
        b.load(blank, template, key, bind=vm_id())
    assert (e.value.args[0], e.value.args[1]["field"]) == ("conflict", "engine")
    other_key = b.snapshot(template)
    b.load(blank, template, other_key, bind=vm_id())


def test_in_use_while_something_names_it(up):
    """A VM or a sandbox's snapshot; a template's goes with its engine, nobody asks for it any more."""
    b, old = up.b, up.b.client.hello["engine"]
    template, key = b.image()
    vm = b.start_vm(template, snapshot=key)
    snapshot, _ = b.take(vm)
    remove = lambda: b.client.call("engine_remove", engine=old)
    with pytest.raises(Refused, match="conflict"):
        remove()  # the host's own
    new = up.use(up.other)
    assert up.list()[old]["vms"] == 1 and up.list()[old]["snapshots"] == 1 and not up.list()[old]["current"]
    with pytest.raises(Refused, match="conflict"):
        remove()
    b.client.call("vm_stop", id=vm["id"])
    with pytest.raises(Refused, match="conflict"):
        remove()
    b.client.call("snapshot_remove", snapshot=snapshot)
    assert key in b.client.call("template_list")["snapshots"]
    remove()
    assert old not in up.there() and key not in b.client.call("template_list")["snapshots"]
    remove()  # gone already
    b.blank()
    assert list(up.list()) == [new] and up.list()[new]["current"]


@pytest.mark.parametrize("what", ["missing", "hash", "size", "mode", "file", "manifest"])
def test_a_broken_bundle_is_not_used(up, what):
    """With a code of its own, and the snapshot stays. The host's own is made again."""
    b, old = up.b, up.b.client.hello["engine"]
    template, key = b.image()
    vm = b.start_vm(template, snapshot=key)
    snapshot, _ = b.take(vm)
    b.client.call("vm_stop", id=vm["id"])
    version = up.list()[old]["qemu_version"]

    def break_it():
        bundle = up.store / old
        path = bundle / "usr" / "lib" / "libz.so.1"
        if what == "missing":
            shutil.rmtree(bundle)
        elif what == "manifest":
            (bundle / "manifest.json").write_text("{}")
        elif what == "mode":
            path.chmod(0o644)
        elif what == "file":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] + (b"" if what == "size" else b"\xff"))

    up.use(up.other)
    break_it()
    with pytest.raises(Refused) as e:
        b.start_vm(template, snapshot=snapshot)
    error = e.value.args[1]
    assert error["field"] == ("engine_missing" if what == "missing" else "engine_broken")
    assert error["code"] == ("not_found" if what == "missing" else "corrupt") and old in error["text"], error
    assert what == "manifest" or version in error["text"] or True
    assert b.client.call("snapshot_stat", snapshot=snapshot)["memory_bytes"]
    up.use()
    assert record(b, b.start_vm(template, snapshot=snapshot)["id"])["engine"] == old
    assert (up.store / old / "usr" / "lib" / "libz.so.1").stat().st_size == os.stat("/lib/x86_64-linux-gnu/libz.so.1").st_size


def test_without_a_qemu_everything_but_vms_goes_on(up):
    b = up.b
    template, key = b.image()
    b.stop()
    b.settings["qemu"] = "/nowhere/qemu"
    b.start()
    assert "engine" not in b.client.hello
    with pytest.raises(Refused):
        b.blank()
    assert b.client.call("template_list")["snapshots"] == [key]


STEPS = ["engine.begin", "engine.copy", "engine.version", "engine.sync", "engine.manifest", "engine.publish"]
FAULTS = [(point, action) for point in STEPS for action in ("error", "enospc", "kill", "kill_broker")]


# At the small size each point has one fault, and each fault comes in turn.
@pytest.mark.parametrize("point,action", size([f for i, f in enumerate(FAULTS) if i % 4 == i // 4 % 4], FAULTS))
def test_the_making_is_cut_off(many, point, action):
    """Nothing of it is left, or what a new broker sweeps; the next start makes it whole."""
    b = many.b
    current = many.use()
    shutil.rmtree(many.store / current, ignore_errors=True)
    before = hostdiff.snapshot(b.root, b.uid_base)
    many.use(fault="%s:%s" % (point, action))
    seq = b.client.send("vm_start", id=vm_id("spr"), mode="blank", kernel="stock", accelerator="tcg", vcpus=1, memory_mib=64, config={})
    if action == "kill_broker":
        b.wait_dead()
    else:
        with pytest.raises(Refused) as e:
            b.client.reply(seq)
        assert e.value.args[0] == {"error": "io", "enospc": "no_space", "kill": "internal"}[action]
        assert b.client.call("vm_list")["vms"] == []
        assert all(n.endswith(".tmp") for n in many.there()) and (action == "kill" or not many.there())
    many.use()
    assert many.there() == []
    b.client.call("sweep", known=[])
    assert not hostdiff.diff(before, hostdiff.snapshot(b.root, b.uid_base))
    vm = b.blank()
    assert many.there() == [current]
    b.client.call("vm_stop", id=vm["id"])


@pytest.mark.parametrize("action", ["error", "kill", "kill_broker"])
def test_the_removal_is_cut_off(many, action):
    """Half removed is gone: nobody takes it for whole."""
    b, old = many.b, many.use()
    b.client.call("vm_stop", id=b.blank()["id"])
    new = many.use(many.other, fault="engine.remove:" + action)
    seq = b.client.send("engine_remove", engine=old)
    if action == "kill_broker":
        b.wait_dead()
    else:
        with pytest.raises(Refused):
            b.client.reply(seq)
    assert old not in (many.list() if action != "kill_broker" else [])
    many.use(many.other)
    assert old not in many.there()
    many.use()
    b.client.call("vm_stop", id=b.blank()["id"])
    assert old in many.there()
    many.use()
    if new in many.there():
        b.client.call("engine_remove", engine=new)


def test_starts_at_once_make_one(many):
    b, current = many.b, many.use()
    shutil.rmtree(many.store / current, ignore_errors=True)
    many.use()
    ids = [vm_id("spr") for _ in range(4)]
    seqs = [b.client.send("vm_start", id=i, mode="blank", kernel="stock", accelerator="tcg", vcpus=1, memory_mib=64, config={}) for i in ids]
    for seq in seqs:
        b.client.reply(seq)
    assert many.there() == [current] and b.log_text().count('"engine_made"') >= 1
    b.stop_all()


def test_libraries_are_shared_between_bundles(up):
    """The same bytes twice: reflinked from the other bundle."""
    b, old = up.b, up.b.client.hello["engine"]
    b.client.call("vm_stop", id=b.blank()["id"])
    new = up.use(up.other)
    b.client.call("vm_stop", id=b.blank()["id"])
    os.sync()
    path = pathlib.Path("usr/lib/libc.so.6")
    said = [os.popen("filefrag -v %s" % (up.store / e / path)).read() for e in (old, new)]
    places = [[line.split()[3] for line in s.splitlines() if ":" in line and line.strip()[0].isdigit()] for s in said]
    if not shutil.which("filefrag"):
        pytest.skip("no filefrag (e2fsprogs)")
    assert places[0] and places[0] == places[1]
