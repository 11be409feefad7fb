# SPDX-License-Identifier: Apache-2.0
"""Sandboxes from wanted to running to gone."""

import threading
import time

import pytest


def test_register_says_what_the_node_is(node):
    node.control.wait_for(lambda: node.control.registered)
    body = node.control.registered[0]
    assert body["accelerator"] == "tcg" and body["vmm"] == "qemu 7.2.22"
    assert body["kernels"] == [{"profile": "stock", "version": "6.1.0", "sha256": "a" * 64}]
    assert body["gateway_url"] == "http://127.0.0.1:7072"
    assert body["capacity"]["vcpus"] >= 4 and body["capacity"]["memory_mib"] > 128 and body["capacity"]["disk_mib"] > 0
    assert body["capacity"]["max_sandboxes"] == 256 and len(body["boot_id"]) == 36


def test_from_wanted_to_running_to_deleted(node):
    sandbox_id = node.want()
    report = node.control.wait_report(sandbox_id, "running")
    assert report["ready"] and report["generation"] == 1
    assert (report["accelerator"], report["kernel"], report["vmm"]) == ("tcg", "stock", "qemu 7.2.22")
    assert {"node_queue_ms", "template_ms", "broker_ms", "node_total_ms", "vm_load_ms", "vm_total_ms"} <= set(report["timings"])
    assert report["timings"]["vm_load_ms"] == 12.5

    boot = next(f for r, f in node.broker.requests if r == "vm_start" and f["mode"] == "template_boot")
    assert boot["id"].startswith("tpb_") and "snapshot" not in boot
    assert boot["config"]["identity"]["env"] == ["PATH=/bin", "LANG=C"] and boot["config"]["acpi"] is True
    clone = node.broker.vms[sandbox_id].request
    assert clone["snapshot"] in node.broker.snapshots and len(clone["snapshot"]) == 32
    assert clone["config"]["identity"] == {"hostname": "box", "machine_id": "0123456789abcdef" * 2,
                                           "env": ["PATH=/bin", "LANG=de", "MINE=1"]}
    assert clone["config"]["generation"] == 1 and clone["config"]["output_window"] == 256 * 1024
    assert 0 < clone["config"]["deadline_ms"] <= 120000
    order = [r for r, _ in node.broker.requests if r in ("vm_start", "snapshot_seal", "vm_stop")]
    assert order == ["vm_start", "snapshot_seal", "vm_stop", "vm_start"]

    node.control.delete(sandbox_id)
    node.control.wait_report(sandbox_id, "deleted")
    assert not node.broker.vms


def test_one_boot_however_many_wait(node):
    node.broker.boot_time = 0.4
    ids = [node.want() for _ in range(12)]
    for sandbox_id in ids:
        node.control.wait_report(sandbox_id, "running")
    assert node.broker.count("vm_start", mode="template_boot") == 1
    assert node.broker.count("vm_start", mode="clone") == 12
    assert all(node.control.wait_report(i, "running")["timings"]["template_ms"] >= 300 for i in ids[:3])
    node.running()
    assert node.broker.count("vm_start", mode="template_boot") == 1


def test_another_size_is_another_snapshot(node):
    first, second = node.running(), node.running(resources={"vcpus": 2, "memory_mib": 256})
    keys = {node.broker.vms[i].request["snapshot"] for i in (first, second)}
    assert len(keys) == 2 == node.broker.count("vm_start", mode="template_boot")


def test_starts_and_boots_are_limited(node):
    node.broker.boot_time = 0.2

    def slow(vm):
        time.sleep(0.05)
        vm.set("running")

    node.broker.scripts["clone"] = slow
    ids = [node.want(resources={"vcpus": 1, "memory_mib": 128 + i % 5}) for i in range(20)]
    for sandbox_id in ids:
        node.control.wait_report(sandbox_id, "running")
    assert node.broker.peak["template_boot"] <= 2 and node.broker.peak["clone"] <= 8


def test_a_template_with_a_program_and_a_probe(node):
    manifest = {"env": {"A": "1"}, "workdir": "/srv", "user": "app", "start_command": ["/bin/server", "-p", "80"],
                "readiness_probe": {"command": ["/bin/check"], "timeout_s": 7}}
    node.running(template={"digest": "d" * 64, "manifest": manifest})
    config = next(f for r, f in node.broker.requests if r == "vm_start" and f["mode"] == "template_boot")["config"]
    assert config["start"] == {"argv": ["/bin/server", "-p", "80"], "user": "app", "cwd": "/srv", "env": ["A=1"]}
    assert config["probe"] == {"argv": ["/bin/check"], "user": "app", "cwd": "/srv", "env": ["A=1"], "timeout_ms": 7000}
    assert config["deadline_ms"] == 127000


def test_ready_follows_the_vm(node):
    node.broker.scripts["clone"] = lambda vm: vm.set("running", ready=False)
    sandbox_id = node.want()
    assert not node.control.wait_report(sandbox_id, "running")["ready"]
    node.broker.vms[sandbox_id].set("running", ready=True)
    node.control.wait_for(lambda: node.control.reports(sandbox_id)[-1]["ready"])


def test_an_agent_that_falls_silent_is_not_ready(node):
    sandbox_id = node.running()
    node.broker.vms[sandbox_id].answers = False
    node.control.wait_for(lambda: not node.control.reports(sandbox_id)[-1]["ready"])
    node.broker.vms[sandbox_id].answers = True
    node.control.wait_for(lambda: node.control.reports(sandbox_id)[-1]["ready"])
    assert "failed" not in {r["state"] for r in node.control.reports(sandbox_id)}


def test_delete_in_every_step(node):
    """Wherever it is on its way, delete ends it and leaves nothing."""
    hold = threading.Event()
    node.broker.scripts["clone"] = lambda vm: hold.wait(20)
    node.broker.boot_time = 0.5
    waiting = node.want()
    node.broker.wait(lambda: node.broker.count("vm_start", mode="template_boot"))
    node.control.delete(waiting)
    node.control.wait_report(waiting, "deleted")
    coming = node.want()
    node.broker.wait(lambda: coming in node.broker.vms)
    node.control.delete(coming)
    node.control.wait_report(coming, "deleted")
    node.broker.slow["vm_start"] = 0.5
    starting = node.want()
    node.broker.wait(lambda: node.broker.count("vm_start", id=starting))
    node.control.delete(starting)
    node.control.wait_report(starting, "deleted")
    hold.set()
    assert not [i for i in node.broker.vms if i.startswith("sbx_")]
    for sandbox_id in (waiting, coming, starting):
        assert not [r for r in node.control.reports(sandbox_id) if r["state"] == "running"]


def test_a_sandbox_control_no_longer_knows_is_ended(node):
    sandbox_id = node.running()
    node.control.forget(sandbox_id)
    node.broker.wait(lambda: sandbox_id not in node.broker.vms)
    other = node.running()
    assert list(node.broker.vms) == [other]


def test_another_generation_starts_anew(node):
    sandbox_id = node.running()
    row = node.control.sandboxes[sandbox_id]
    node.control.want({**row, "generation": 2})
    node.control.wait_for(lambda: [r for r in node.control.reports(sandbox_id) if r["state"] == "running" and r["generation"] == 2])
    assert node.broker.vms[sandbox_id].request["config"]["generation"] == 2
    assert node.broker.count("vm_stop", id=sandbox_id) == 1


def test_lean_is_taken_when_it_is_there(cold):
    cold.add_kernel("lean", acpi=False)
    cold.start()
    request = cold.broker.vms[cold.running()].request
    assert request["kernel"] == "lean" and request["config"]["acpi"] is False
    assert [k["profile"] for k in cold.control.registered[0]["kernels"]] == ["lean", "stock"]


@pytest.mark.parametrize("settings,accelerators,expected", [({}, ["kvm", "tcg"], "kvm"), ({"accelerator": "tcg"}, ["kvm", "tcg"], "tcg")])
def test_the_accelerator(cold, settings, accelerators, expected):
    cold.broker.accelerators = accelerators
    cold.start(**settings)
    assert cold.broker.vms[cold.running()].request["accelerator"] == expected


def test_a_forced_kernel_that_is_not_there(cold):
    cold.start(kernel="lean")
    assert cold.process.wait(10) != 0
    assert "lean" in cold.log.read_text()
    cold.process = None
