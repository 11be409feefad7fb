# SPDX-License-Identifier: Apache-2.0
"""Promise: what runs in a sandbox's two jails (space-vm and the VMM) reaches its own disk and descriptors and nothing else: no template,
no other RAM, no other process, no socket, no network, no privilege, no way to more."""

import os
import pathlib
import re
import select
import stat

import pytest

from driver import GATEWAY_GID, MIB, NODE_UID, ROOT, UID_BASE, alive

REFUSED = {"inet": "EAFNOSUPPORT", "inet6": "EAFNOSUPPORT", "netlink": "EAFNOSUPPORT", "packet": "EAFNOSUPPORT",
           "vsock": "EAFNOSUPPORT", "alg": "EAFNOSUPPORT", "clone3": "ENOSYS"}


@pytest.fixture
def clone(broker):
    vm = broker.start_vm(broker.image_template, snapshot=broker.image_key)
    yield {**vm, **broker.report(vm["id"])}
    broker.client.call("vm_stop", id=vm["id"])


@pytest.fixture
def boot(broker):
    vm = broker.start_vm(broker.image_template, mode="template_boot")
    yield {**vm, **broker.report(vm["id"])}
    broker.client.call("vm_stop", id=vm["id"])


def by_path(side):
    return {f["path"]: f for f in side["files"]}


@pytest.mark.parametrize("who", ["vm", "vmm"])
def test_identity(clone, who):
    side = clone[who]
    assert UID_BASE + 64 <= clone["uid"] <= UID_BASE + 8191
    assert side["uids"] == side["gids"] == [clone["uid"]] * 3
    assert side["groups"] == 0
    assert side["pid"] == 1 and side["ppid"] == 0
    assert side["hostname"] == "space"


@pytest.mark.parametrize("who", ["vm", "vmm"])
def test_no_privilege_and_no_way_to_more(clone, who):
    side = clone[who]
    assert side["caps"] == 0 and side["bounding"] == 0
    assert side["no_new_privs"] == 1
    assert side["seccomp"] == 2
    assert side["securebits"] & 3 == 3  # NOROOT and locked: not even a uid 0 would have capabilities
    for name, error in side["refused"].items():
        assert error == REFUSED.get(name, "EPERM"), name
    assert side["limits"]["core"] == 0 and side["limits"]["nofile"] <= 1024 and side["limits"]["nproc"] <= 256
    assert side["limits"]["fsize"] == 64 * MIB  # as large as its largest file: disk, memory, log


def test_processes(clone):
    assert clone["vmm"]["processes"] == []  # space-vm is not to be seen
    assert clone["stub_pid"] == 2           # in space-vm's own namespace,
    assert clone["vm"]["processes"] == [2]  # where it sees this child and no one else


def test_vmm_is_its_child_and_dies_with_it(broker, clone):
    assert alive(clone["pid"]) and alive(clone["vmm_pid"])
    status = pathlib.Path("/proc/%d/status" % clone["vmm_pid"]).read_text()
    assert int(re.search(r"^PPid:\s+(\d+)", status, re.M).group(1)) == clone["pid"]
    assert len(re.search(r"^NSpid:\s+(.*)", status, re.M).group(1).split()) == 3  # host's, space-vm's, its own
    fd = os.pidfd_open(clone["vmm_pid"])
    os.kill(clone["pid"], 9)
    assert select.select([fd], [], [], 10)[0]
    os.close(fd)


@pytest.mark.parametrize("who", ["vm", "vmm"])
def test_network(clone, who):
    assert clone[who]["interfaces"] == [{"name": "lo", "up": False}]


def test_namespaces_are_all_their_own(clone):
    for name in ("mnt", "pid_for_children", "net", "ipc", "uts"):
        ours, vm, vmm = (os.stat("/proc/%s/ns/%s" % (p, name)).st_ino for p in ("self", clone["pid"], clone["vmm_pid"]))
        assert len({ours, vm, vmm}) == 3, name


def test_files_of_the_vmm(clone):
    files = by_path(clone["vmm"])
    assert [p for p in files if files[p]["writable"]] == ["/dev/null"]
    assert [p for p in files if p.startswith("/vm/")] == ["/vm/preload.so"]  # neither RAM nor disk, and no kernel: RAM holds it
    assert [p for p in files if p.startswith("/dev/")] == ["/dev/null"]
    assert clone["vmm"]["usr_read_only"] is True
    assert {p for p in files if p.count("/") == 1} <= {"/", "/dev", "/vm", "/usr", "/lib", "/lib64"}


def test_files_of_space_vm(clone):
    """A static program gets an empty root; the loader's directories are only there for a dynamic one."""
    files = by_path(clone["vm"])
    assert sorted(files) == ["/", "/proc"]
    assert not any(f["writable"] for f in files.values())
    assert len(clone["vm"]["mounts"]) == 2
    assert all(re.match(r"\S+ \S+ \S+ \S+ \S+ ro,nosuid,nodev,noexec", m) for m in clone["vm"]["mounts"])


def test_descriptors(clone):
    kinds = {int(fd): (d["kind"], d["access"]) for fd, d in clone["vm"]["fds"].items()}
    assert clone["config"]["broker"]["fds"] == {"control": 3, "guest": 4, "stub": 5, "tap": 6, "memory": 8, "disk": 9, "devices": 10}
    assert kinds == {0: ("char", 2), 1: ("char", 2), 2: ("file", 1), 3: ("socket", 2), 4: ("socket", 2), 5: ("socket", 2),
                     6: ("char", 2), 7: ("file", 2), 8: ("file", 0), 9: ("file", 2), 10: ("file", 0)}
    assert clone["vm"]["fds"]["8"]["size"] == 64 * MIB
    assert clone["vm"]["fds"]["10"]["size"] == len("device state")
    assert sorted(clone["vmm"]["fds"]) == ["0", "1", "2", "3", "4"]  # what space-vm passed, and nothing more
    assert (clone["vmm"]["fds"]["3"]["access"], clone["vmm"]["fds"]["4"]["access"]) == (0, 2)


def test_files_of_a_blank(broker):
    """It has nothing of anybody yet, and room for whatever disk it will get."""
    vm = broker.blank()
    report = broker.report(vm["id"])
    assert report["config"]["broker"]["fds"] == {"control": 3, "guest": 4, "stub": 5, "tap": 6}
    assert sorted(int(fd) for fd in report["vm"]["fds"]) == list(range(8))
    files = by_path(report["vmm"])
    assert [p for p in files if files[p]["writable"]] == ["/dev/null"]
    assert [p for p in files if p.startswith("/vm/")] == ["/vm/preload.so"]
    assert all(report[who]["limits"]["fsize"] >= 1 << 40 for who in ("vm", "vmm"))
    assert sorted(os.listdir(broker.state / "store" / "sandboxes" / vm["id"])) == ["vm.json", "vm.log"]
    broker.client.call("vm_stop", id=vm["id"])


def test_no_writable_descriptor_of_memory_anywhere(clone):
    """A taken-over VMM could rewrite the memory of every clone."""
    for pid in (clone["pid"], clone["vmm_pid"]):
        for fd in os.listdir("/proc/%d/fd" % pid):
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            except OSError:
                continue
            assert not re.search(r"(memory|templates|snapshots)", target) or \
                int(re.search(r"flags:\s+(\d+)", pathlib.Path("/proc/%d/fdinfo/%s" % (pid, fd)).read_text()).group(1), 8) & 3 == 0


def test_template_boot_may_write_its_own_memory_only(boot):
    files = by_path(boot["vmm"])
    assert [p for p in files if files[p]["writable"]] == ["/dev/null"]
    assert sorted(p for p in files if p.startswith("/vm/")) == ["/vm/initrd", "/vm/kernel", "/vm/preload.so"]
    assert boot["vm"]["fds"]["8"] == {"kind": "file", "access": 2, "size": 64 * MIB}
    assert boot["vm"]["fds"]["10"] == {"kind": "file", "access": 1, "size": 0}
    assert (boot["vmm"]["fds"]["3"]["access"], boot["vmm"]["fds"]["4"]["access"]) == (2, 2)


def test_tap_is_down_and_alone(clone):
    """The sandbox's network namespace has no process in it; the tap's descriptor is all there is of it."""
    info = pathlib.Path("/proc/%d/fdinfo/6" % clone["pid"]).read_text()
    assert "iff:\ttap0" in info
    assert os.readlink("/proc/%d/fd/6" % clone["pid"]).endswith("/net/tun")


def test_configuration_is_handed_on(broker):
    config = {"acpi": False, "identity": {"hostname": "ä", "env": ["A=1"]}, "deadline_ms": 5}
    vm = broker.start_vm(broker.image_template, snapshot=broker.image_key, config=config, vcpus=3, memory_mib=128)
    got = broker.report(vm["id"])["config"]
    assert got["config"] == config
    assert {k: got["broker"][k] for k in ("id", "mode", "kernel", "accelerator", "vcpus", "memory_mib", "qemu", "vm_dir")} == {
        "id": vm["id"], "mode": "clone", "kernel": "stock", "accelerator": "tcg", "vcpus": 3, "memory_mib": 128,
        "qemu": "/usr/bin/qemu-system-x86_64", "vm_dir": "/vm"}


def test_sockets_belong_to_one_peer_each(broker, clone):
    run = broker.state / "run"
    for path, uid, gid, mode in ((run / "broker.sock", NODE_UID, NODE_UID, 0o600),
                                 (run / "vm" / clone["id"] / "control.sock", 0, NODE_UID, 0o660),
                                 (run / "vm" / clone["id"] / "guest.sock", 0, GATEWAY_GID, 0o660)):
        st = path.lstat()
        assert stat.S_ISSOCK(st.st_mode)
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (uid, gid, mode), path


def test_store_is_closed_to_the_vm(broker, clone):
    store = broker.state / "store"
    assert stat.S_IMODE((store / "sandboxes" / clone["id"]).stat().st_mode) == 0o700
    assert (store / "sandboxes" / clone["id"]).stat().st_uid == 0
    assert (store / "sandboxes" / clone["id"] / "disk.img").stat().st_uid == clone["uid"]
    for name in ("memory", "devices", "disk.img", "manifest.json"):
        st = (store / "snapshots" / broker.image_key / name).stat()
        assert (st.st_uid, stat.S_IMODE(st.st_mode)) == (0, 0o444), name


def test_uids_are_not_shared(broker):
    a = broker.start_vm(broker.image_template, snapshot=broker.image_key)
    b = broker.start_vm(broker.image_template, snapshot=broker.image_key)
    assert a["uid"] != b["uid"]
    broker.client.call("vm_stop", id=a["id"])
    c = broker.start_vm(broker.image_template, snapshot=broker.image_key)
    assert c["uid"] not in (a["uid"], b["uid"])  # nor is one used again at once


def test_control_group(broker, clone):
    """Both processes are in it, and it limits them: on this host's version of control groups."""
    roots = {line.split(":")[1]: line.split(":")[2] for line in pathlib.Path("/proc/%d/cgroup" % clone["vmm_pid"]).read_text().split()}
    want = "/space-%d/%s" % (UID_BASE, clone["id"])
    if broker.client.hello["cgroup"] == "v2":
        assert roots[""].endswith(want)
        return
    for controller in ("cpu", "memory", "pids"):
        assert [p for names, p in roots.items() if controller in names.split(",")] == [want]
    base = pathlib.Path("/sys/fs/cgroup")
    assert sorted(int(p) for p in (base / "pids" / want[1:] / "cgroup.procs").read_text().split()) == sorted([clone["pid"], clone["vmm_pid"]])
    assert int((base / "memory" / want[1:] / "memory.limit_in_bytes").read_text()) == (64 + 384) * MIB
    assert int((base / "pids" / want[1:] / "pids.max").read_text()) == 256
    assert int((base / "cpu" / want[1:] / "cpu.cfs_quota_us").read_text()) == 150000


def test_page_about_privileges_matches(broker, clone):
    """docs/reference/privileges.md names uid, capabilities and seccomp of each process; these three are running."""
    rows = {}
    for line in (ROOT / "docs" / "reference" / "privileges.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) >= 5:
            rows[cells[0].strip("`")] = cells
    for name, pid in (("space-broker", broker.process.pid), ("space-vm", clone["pid"]), ("VMM", clone["vmm_pid"])):
        status = dict(line.split(":\t", 1) for line in pathlib.Path("/proc/%d/status" % pid).read_text().splitlines())
        uid = int(status["Uid"].split()[0])
        shown = rows[name][1]
        assert shown == ("0" if uid == 0 else "base + 64 … 8191"), name
        assert (rows[name][2] == "none") == (int(status["CapEff"], 16) == 0), name
        assert (rows[name][3] == "yes") == (status["Seccomp"] == "2" and status["NoNewPrivs"] == "1"), name
