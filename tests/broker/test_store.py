# SPDX-License-Identifier: Apache-2.0
"""Promise: the store is mounted while somebody needs it and goes when told, what is in use is not removed, and no two installations take
each other's VMs for leftovers."""

import os
import subprocess
import sys
import time

from driver import UID_BASE, Broker, alive, look, refused, vm_id
from lib import hostdiff


def test_template_list_and_remove(broker):
    template, key = broker.image()
    listed = broker.client.call("template_list")
    assert template in listed["templates"] and key in listed["snapshots"] and not listed["more"]
    vm = broker.start_vm(template, snapshot=key)
    refused("conflict", broker.client.call, "snapshot_remove", snapshot=key)
    refused("conflict", broker.client.call, "template_remove", template=template)
    broker.client.call("vm_stop", id=vm["id"])
    broker.client.call("template_remove", template=template)
    listed = broker.client.call("template_list")
    assert template not in listed["templates"] and key not in listed["snapshots"]
    assert not (broker.state / "store" / "snapshots" / key).exists() and not (broker.state / "store" / "templates" / template).exists()
    refused("not_found", broker.start_vm, template, snapshot=key)
    broker.client.call("template_remove", template=template)  # again: fine
    assert broker.image_key in broker.client.call("template_list")["snapshots"]


def test_unmount(own):
    template = own.template()
    vm = own.start_vm(template, mode="template_boot")
    assert own.unmount().returncode != 0  # the broker runs
    own.stop()
    done = own.unmount()
    assert done.returncode != 0 and b"still running" in done.stderr
    assert os.path.ismount(own.state / "store") and alive(vm["pid"])
    own.start()
    own.client.call("vm_stop", id=vm["id"])
    own.stop()
    assert os.path.ismount(own.state / "store")  # a broker that ends leaves it mounted
    assert own.unmount().returncode == 0
    assert not os.path.ismount(own.state / "store")
    assert not hostdiff.snapshot(own.root, own.uid_base)["loops"]
    assert own.unmount().returncode == 0  # again: fine
    own.start()
    assert own.client.call("template_list")["templates"] == [template]
    assert "already_mounted" not in own.log_text().splitlines()[-5]


def test_release(own):
    """`space down`: with no broker serving, every VM ends, in whatever state it is, and the store goes."""
    template = own.template()
    boot = own.start_vm(template, mode="template_boot")
    dead = own.start_vm(template, mode="template_boot")
    own.exit_vm(dead)
    (own.state / "store" / "sandboxes" / vm_id()).mkdir()
    busy = subprocess.run(own.argv("--release"), stderr=subprocess.PIPE, timeout=60)
    assert busy.returncode != 0 and alive(boot["pid"])  # a broker serves
    own.stop()
    done = subprocess.run(own.argv("--release"), stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert not alive(boot["pid"]) and not alive(boot["vmm_pid"])
    end = time.monotonic() + 30
    while (left := look(own))["processes"] and time.monotonic() < end:  # process 1 reaps when it likes
        time.sleep(0.05)
    assert not left["mounts"] and not left["loops"] and not left["cgroups"] and not left["processes"]
    own.start()
    assert own.client.call("vm_list")["vms"] == [] and own.client.call("template_list")["templates"] == [template]
    assert os.listdir(own.state / "store" / "sandboxes") == []


def test_a_reflink_file_system_needs_no_image(own):
    """The state directory of this one lies in the store of another broker, which is btrfs."""
    inner = Broker(uid_base=UID_BASE + 10000)
    inner.state = own.state / "store" / "inner"
    inner.settings["state_dir"] = inner.state
    kernel = inner.state / "kernels" / "stock"
    kernel.mkdir(parents=True)
    (kernel / "vmlinuz").write_bytes(b"kernel")
    (kernel / "initrd.cpio").write_bytes(b"initrd")
    try:
        inner.start()
        assert not (inner.state / "store.img").exists() and not os.path.ismount(inner.state / "store")
        vm = inner.start_vm(inner.template(), mode="template_boot")
        assert inner.report(vm["id"])["vmm"]["pid"] == 1
    finally:
        inner.remove()


def test_not_root():
    done = subprocess.run([sys.executable, "-c", "import os, sys; os.setgroups([]); os.setuid(65534); os.execv(sys.argv[1], sys.argv[1:])",
                           *Broker.argv(_bare())], capture_output=True, timeout=20)
    assert done.returncode != 0 and b"must run as root" in done.stderr


def _bare():
    b = Broker.__new__(Broker)
    b.settings, b.vm_program, b.preload = {"state_dir": "/tmp/space-none"}, "/bin/true", "/bin/true"
    return b


def test_two_installations_do_not_share_user_ids(own):
    """Each would take the other's VMs for leftovers: the second is refused, while the first runs and while only its VMs do."""
    template, key = own.image()
    vm = own.start_vm(template, snapshot=key)
    other = Broker(uid_base=own.uid_base)
    try:
        for _ in range(2):
            done = subprocess.run(other.argv(), stderr=subprocess.PIPE, timeout=60)
            assert done.returncode != 0 and b"uid_base" in done.stderr, done.stderr.decode()[-1000:]
            released = subprocess.run(other.argv("--release"), stderr=subprocess.PIPE, timeout=60)
            assert released.returncode != 0 and alive(vm["pid"])
            own.stop()
        own.start()
        own.stop_all()
        own.stop()
        other.start()  # nobody's any more
        other.remove()
    finally:
        own.start()
