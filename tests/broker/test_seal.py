# SPDX-License-Identifier: Apache-2.0
"""Promise: a sealed snapshot is what the boot left, nobody can write to it, it exists whole or not at all, and a clone of one that was
changed is refused."""

import hashlib
import json
import os
import stat

import pytest

from driver import MIB, alive, refused, vm_id


def piece_hash(path):
    data = path.read_bytes()
    return hashlib.sha256(pieces(data)).hexdigest()


def pieces(data):
    """Number and digest of each piece that is not all zeros, as it is kept beside the file."""
    rows = ((i // 65536, data[i:i + 65536]) for i in range(0, len(data), 65536))
    return b"".join(n.to_bytes(8, "little") + hashlib.sha256(piece).digest() for n, piece in rows if piece.strip(b"\0"))


def ended_boot(broker, template=None):
    boot = broker.start_vm(template or broker.image_template, mode="template_boot")
    broker.report(boot["id"])
    broker.exit_vm(boot)
    return boot


def seal(broker, boot, key, manifest=None):
    return broker.client.call("snapshot_seal", id=boot["id"], snapshot=key, manifest=manifest or {})


def test_seal(broker):
    boot = ended_boot(broker)
    key = os.urandom(16).hex()
    seal(broker, boot, key, {"tsc_khz": 2000000, "list": [1, "ä"]})
    path = broker.state / "store" / "snapshots" / key
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format"] == 2 and manifest["key"] == key and manifest["template"] == broker.image_template
    assert manifest["kernel"] == "stock" and manifest["vcpus"] == 1 and manifest["memory_mib"] == 64
    assert manifest["node"] == {"tsc_khz": 2000000, "list": [1, "ä"]}
    for name, content in (("memory", None), ("devices", b"device state"), ("disk.img", None)):
        st = (path / name).stat()
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (0, 0, 0o444)
        assert manifest["files"][name] == {"size": st.st_size, "sha256_pieces": piece_hash(path / name)}
        if content:
            assert (path / name).read_bytes() == content
    memory = (path / "memory").read_bytes()
    assert len(memory) == 64 * MIB and memory.startswith(b"guest memory, first page")
    assert memory[3 * MIB:3 * MIB + 10] == b"guest memo"
    assert (path / "memory").stat().st_blocks * 512 < MIB  # still sparse
    assert (path / "disk.img").read_bytes()[8192:8212] == b"written by the guest"
    for name in ("memory", "disk.img"):
        kept = path / (name + ".pieces")
        assert kept.read_bytes() == pieces((path / name).read_bytes()) and stat.S_IMODE(kept.stat().st_mode) == 0o444
    assert sorted(os.listdir(path)) == ["devices", "disk.img", "disk.img.pieces", "manifest.json", "memory", "memory.pieces"]
    seal(broker, boot, key)  # again: fine, and nothing changes
    broker.client.call("vm_stop", id=boot["id"])
    seal(broker, boot, key)  # and after the boot is gone
    assert json.loads((path / "manifest.json").read_text()) == manifest
    broker.client.call("snapshot_remove", snapshot=key)
    assert not path.exists()


def test_clones_share_the_memory_file(broker):
    """The same inode, so the same page cache, and each its own disk."""
    a = broker.start_vm(broker.image_template, snapshot=broker.image_key)
    b = broker.start_vm(broker.image_template, snapshot=broker.image_key)
    broker.report(a["id"]), broker.report(b["id"])
    inode = (broker.state / "store" / "snapshots" / broker.image_key / "memory").stat().st_ino
    for vm in (a, b):
        assert os.stat("/proc/%d/fd/3" % vm["vmm_pid"]).st_ino == inode
    assert os.stat("/proc/%d/fd/4" % a["vmm_pid"]).st_ino != os.stat("/proc/%d/fd/4" % b["vmm_pid"]).st_ino


def test_only_an_ended_boot_is_sealed(broker):
    key = os.urandom(16).hex()
    boot = broker.start_vm(broker.image_template, mode="template_boot")
    refused("conflict", seal, broker, boot, key)
    clone = broker.start_vm(broker.image_template, snapshot=broker.image_key)
    refused("conflict", seal, broker, clone, key)
    refused("not_found", seal, broker, {"id": vm_id("tpb")}, key)
    broker.exit_vm(clone)
    refused("conflict", seal, broker, clone, key)
    assert alive(boot["pid"])


def test_boot_that_left_no_device_state(broker):
    boot = ended_boot(broker)
    (broker.state / "store" / "sandboxes" / boot["id"] / "devices").write_bytes(b"")
    refused("corrupt", seal, broker, boot, os.urandom(16).hex())
    broker.client.call("vm_stop", id=boot["id"])


@pytest.mark.parametrize("what", ["link", "second_name", "size", "directory"])
def test_boot_that_left_something_else(broker, what):
    """As if the files had been made by the guest: they are looked at, not trusted."""
    boot = ended_boot(broker)
    memory = broker.state / "store" / "sandboxes" / boot["id"] / "memory"
    if what == "size":
        os.truncate(memory, 5)
    elif what == "second_name":
        os.link(memory, memory.parent / "other")
    else:
        memory.unlink()
        memory.symlink_to("/etc/passwd") if what == "link" else memory.mkdir()
    error = refused({"link": "io", "directory": "corrupt"}.get(what, "corrupt"), seal, broker, boot, os.urandom(16).hex())
    assert error["text"]
    assert os.stat("/etc/passwd").st_mode & 0o777 == 0o644
    broker.client.call("vm_stop", id=boot["id"])


def test_a_writer_that_is_left_is_seen(broker):
    """Whoever still holds memory open for writing could change every clone."""
    boot = ended_boot(broker)
    key = os.urandom(16).hex()
    with open(broker.state / "store" / "sandboxes" / boot["id"] / "memory", "r+b"):
        refused("conflict", seal, broker, boot, key)
    seal(broker, boot, key)
    broker.client.call("vm_stop", id=boot["id"])


def tamper(path, at, text):
    os.chmod(path, 0o644)
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(text)
    os.chmod(path, 0o444)


def test_changed_device_state_is_refused_at_once(broker):
    template, key = broker.image()
    path = broker.state / "store" / "snapshots" / key
    tamper(path / "devices", 0, b"D")
    assert "devices" in refused("corrupt", broker.start_vm, template, snapshot=key)["text"]
    tamper(path / "devices", 0, b"d")
    os.chmod(path / "memory", 0o644)
    refused("corrupt", broker.start_vm, template, snapshot=key)
    os.chmod(path / "memory", 0o444)
    vm = broker.start_vm(template, snapshot=key)
    broker.client.call("vm_stop", id=vm["id"])
    os.truncate(path / "disk.img", 4096)
    refused("corrupt", broker.start_vm, template, snapshot=key)
    broker.client.call("template_remove", template=template)


@pytest.mark.parametrize("name,at", [("memory", 3 * MIB + 5), ("memory", 50 * MIB), ("disk.img", 8192), ("disk.img", 15 * MIB),
                                     ("memory.pieces", 40), ("disk.img.pieces", 0)])
def test_changed_memory_or_disk_is_refused_after_a_restart(broker, name, at):
    """Every snapshot is hashed whole once in a broker's life, before its first use."""
    template, key = broker.image()
    broker.stop()
    tamper(broker.state / "store" / "snapshots" / key / name, at, b"\x01")
    broker.start()
    assert name in refused("corrupt", broker.start_vm, template, snapshot=key)["text"]
    assert "snapshot_not_trusted" in broker.log_text()
    vm = broker.start_vm(broker.image_template, snapshot=broker.image_key)
    assert alive(vm["pid"])
    broker.client.call("template_remove", template=template)


def test_manifests_that_are_not_ours(broker):
    template, key = broker.image()
    path = broker.state / "store" / "snapshots" / key / "manifest.json"
    good = json.loads(path.read_text())
    os.chmod(path, 0o644)
    for change in ({"format": 1}, {"format": 3}, {"key": "0" * 32}, {"files": {}}, {"files": {"memory": 1}}, None):
        path.write_text(json.dumps({**good, **change}) if change else "{")
        refused("corrupt", broker.start_vm, template, snapshot=key)
    path.write_text(json.dumps(good))
    broker.client.call("vm_stop", id=broker.start_vm(template, snapshot=key)["id"])
    broker.client.call("template_remove", template=template)


def test_requests_go_on_while_a_snapshot_is_hashed(own):
    """Sealing a large one takes its time; others do not wait."""
    template = own.template(size_mib=600)
    with open(own.state / "store" / "templates" / template / "disk.img", "r+b") as f:
        for i in range(300):
            f.seek(i * 2 * MIB)
            f.write(os.urandom(4096))
    boot = ended_boot(own, template)
    key = os.urandom(16).hex()
    seq = own.client.send("snapshot_seal", id=boot["id"], snapshot=key, manifest={})
    answered = 0
    while seq not in own.client.replies:
        own.client.call("stat", timeout=5)
        answered += 1
    own.client.reply(seq)
    assert answered > 3
