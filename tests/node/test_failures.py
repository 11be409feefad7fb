# SPDX-License-Identifier: Apache-2.0
"""Everything that can go wrong with a sandbox, and that its reason arrives and nothing is left."""

import datetime
import time

import pytest

from fakes.broker import Refusal


def refuse(code, field="", text="told to", times=None, mode=None):
    count = [0]

    def fail(fields):
        if mode and fields.get("mode") != mode:
            return
        count[0] += 1
        if times is None or count[0] <= times:
            raise Refusal(code, field, text)
    return fail


def failed(node, sandbox_id):
    error = node.control.wait_report(sandbox_id, "failed")["error"]
    node.broker.wait(lambda: sandbox_id not in node.broker.vms)
    return error


@pytest.mark.parametrize("code", ["vmm_failed", "vmm_killed", "guest_silent", "guest_protocol", "host_disk_full", "probe_failed",
                                  "deadline_exceeded", "internal"])
def test_a_clone_that_fails(node, code):
    node.broker.scripts["clone"] = lambda vm: vm.set("failed", error=(code, "because\n\x01"))
    sandbox_id = node.want()
    assert failed(node, sandbox_id) == {"code": code, "message": "because\\x0a\\x01"}
    node.control.delete(sandbox_id)  # as control's list has it for a failed one
    node.control.wait_report(sandbox_id, "deleted")


def test_an_unknown_code_is_internal(node):
    node.broker.scripts["clone"] = lambda vm: vm.set("failed", error=("made_up", "x"))
    assert failed(node, node.want())["code"] == "internal"


@pytest.mark.parametrize("error,expected", [(("no_space", ""), "host_disk_full"), (("internal", ""), "internal"),
                                            (("vmm", ""), "vmm_failed"), (("no_capacity", ""), "no_capacity"),
                                            (("io", ""), "io")])
def test_a_broker_that_refuses_the_start(node, error, expected):
    node.running()
    node.broker.fail["vm_start"] = refuse(*error, mode="clone")
    assert failed(node, node.want())["code"] == expected


def test_an_unknown_template(node):
    sandbox_id = node.want(template={"digest": "e" * 64, "manifest": {}})
    assert failed(node, sandbox_id)["code"] == "template_missing"


def test_a_boot_that_fails_fails_all_who_wait_and_the_next_one_tries_again(node):
    def broken(vm):
        time.sleep(0.2)
        vm.set("failed", error=("probe_failed", "exits with 1"))

    node.broker.scripts["template_boot"] = broken
    ids = [node.want() for _ in range(4)]
    for sandbox_id in ids:
        assert failed(node, sandbox_id) == {"code": "probe_failed", "message": "template boot: exits with 1"}
    assert node.broker.count("vm_start", mode="template_boot") == 1
    del node.broker.scripts["template_boot"]
    node.running()
    assert not [i for i in node.broker.vms if i.startswith("tpb_")]


def test_a_boot_whose_vm_dies(node):
    node.broker.scripts["template_boot"] = lambda vm: (time.sleep(0.1), vm.die())
    assert failed(node, node.want())["code"] == "vmm_killed"


def test_a_seal_that_fails(node):
    node.broker.fail["snapshot_seal"] = refuse("no_space")
    assert failed(node, node.want())["code"] == "host_disk_full"
    node.broker.wait(lambda: not node.broker.vms)
    assert not node.broker.snapshots


@pytest.mark.alone
def test_death_of_a_running_vm(node):
    sandbox_id = node.running()
    before = time.monotonic()
    node.broker.vms[sandbox_id].die()
    report = node.control.wait_report(sandbox_id, "failed")
    assert report["error"]["code"] == "vmm_killed" and time.monotonic() - before < 2
    node.broker.wait(lambda: sandbox_id not in node.broker.vms)


def test_failure_of_a_running_vm(node):
    sandbox_id = node.running()
    node.broker.vms[sandbox_id].set("failed", error=("guest_protocol", "nonsense on the channel"))
    assert failed(node, sandbox_id) == {"code": "guest_protocol", "message": "nonsense on the channel"}


def test_a_vm_that_hangs_up_but_lives(node):
    sandbox_id = node.running()
    for _ in range(3):
        node.broker.vms[sandbox_id].hang_up()
        time.sleep(0.2)
    assert not [r for r in node.control.reports(sandbox_id) if r["state"] == "failed"]
    node.broker.vms[sandbox_id].set("running", ready=False)
    node.control.wait_for(lambda: not node.control.reports(sandbox_id)[-1]["ready"])


@pytest.mark.parametrize("message", [b"nonsense", {"event": "status", "id": "sbx_other", "state": "running", "generation": 1},
                                     {"event": "status", "state": "running"}, {"no": "event"}, b"\xff\xfe", {"event": "status"}])
def test_a_vm_that_does_not_speak_the_protocol(node, message):
    sandbox_id = node.running()
    node.broker.vms[sandbox_id].say(message)
    assert failed(node, sandbox_id)["code"] == "vmm_killed"


def at(seconds):
    when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


@pytest.mark.alone
def test_a_deadline_that_passes(node):
    node.broker.scripts["clone"] = lambda vm: None
    sandbox_id = node.want(deadline_at=at(1))
    begun = time.monotonic()
    error = failed(node, sandbox_id)
    assert error["code"] == "deadline_exceeded" and "coming_up" in error["message"]
    assert 0.5 < time.monotonic() - begun < 5


def test_a_deadline_passes_while_the_broker_works(node):
    node.running()
    node.broker.slow["vm_start"] = 1.5
    sandbox_id = node.want(deadline_at=at(0.5))
    assert failed(node, sandbox_id)["code"] == "deadline_exceeded"
    node.broker.slow.clear()
    time.sleep(1.5)
    assert sandbox_id not in node.broker.vms  # stopped after its start was answered


def test_a_deadline_that_had_passed(node):
    assert failed(node, node.want(deadline_at="2020-01-01T00:00:00Z"))["code"] == "deadline_exceeded"
    assert not node.broker.count("vm_start")


def test_a_waiter_leaves_but_the_boot_goes_on(node):
    node.broker.boot_time = 1.2
    early = node.want(deadline_at=at(0.5))
    assert failed(node, early)["code"] == "deadline_exceeded"
    node.broker.wait(lambda: node.broker.snapshots)
    node.running()
    assert node.broker.count("vm_start", mode="template_boot") == 1


def test_leftovers_of_an_earlier_start(node):
    node.running()
    node.broker.fail["vm_start"] = refuse("conflict", text="it exists", times=1, mode="clone")
    sandbox_id = node.running()
    assert node.broker.count("vm_stop", id=sandbox_id) == 1
    node.broker.fail["vm_start"] = refuse("conflict", text="it exists", mode="clone")
    assert failed(node, node.want())["code"] == "internal"


@pytest.mark.parametrize("how", ["status", "reply", "missing"])
def test_a_broken_snapshot_is_made_again_once(node, how):
    node.running()
    first = set(node.broker.snapshots)
    victim = next(iter(node.broker.vms))
    node.control.delete(victim)
    node.control.wait_report(victim, "deleted")
    broken = [True]

    def script(vm):
        if broken[0]:
            broken[0] = False
            vm.set("failed", error=("snapshot_broken", "does not load"))
        else:
            vm.set("running")

    if how == "status":
        node.broker.scripts["clone"] = script
    elif how == "missing":
        node.broker.fail["vm_start"] = refuse("not_found", "snapshot", "there is no snapshot", times=1, mode="clone")
    else:
        node.broker.fail["vm_start"] = refuse("corrupt", "snapshot", "hash differs", times=1, mode="clone")
    node.running()
    assert node.broker.count("snapshot_remove") == 1 and node.broker.count("vm_start", mode="template_boot") == 2
    assert node.broker.snapshots == first


def test_a_snapshot_that_stays_broken(node):
    node.broker.scripts["clone"] = lambda vm: vm.set("failed", error=("snapshot_broken", "does not load"))
    assert failed(node, node.want())["code"] == "snapshot_broken"
    assert node.broker.count("vm_start", mode="clone") == 2 == node.broker.count("vm_start", mode="template_boot")


def test_several_meet_a_broken_snapshot_at_once(node):
    node.running()
    victim = next(iter(node.broker.vms))
    node.control.delete(victim)
    node.control.wait_report(victim, "deleted")
    fresh = set()

    def script(vm):
        time.sleep(0.1)
        if node.broker.count("snapshot_seal") > 1:
            vm.set("running")
            fresh.add(vm.id)
        else:
            vm.set("failed", error=("snapshot_broken", "does not load"))

    node.broker.scripts["clone"] = script
    ids = [node.want() for _ in range(6)]
    for sandbox_id in ids:
        node.control.wait_report(sandbox_id, "running")
    assert node.broker.count("vm_start", mode="template_boot") == 2 and fresh == set(ids)


def test_a_broken_snapshot_in_use_is_left(node):
    other = node.running()
    node.broker.fail["vm_start"] = refuse("corrupt", "snapshot", mode="clone")
    assert failed(node, node.want())["code"] == "snapshot_broken"
    assert other in node.broker.vms and node.broker.count("vm_start", mode="template_boot") == 1


def test_no_more_than_the_node_may_hold(cold):
    cold.start(max_sandboxes=2)
    cold.running()
    second = cold.running()
    assert failed(cold, cold.want())["code"] == "no_capacity"
    cold.control.delete(second)
    cold.control.wait_report(second, "deleted")
    cold.running()


@pytest.mark.parametrize("settings,resources,code", [
    ({"memory_reserve_mib": 16000000}, {"vcpus": 1, "memory_mib": 128}, "no_capacity"),
    ({}, {"vcpus": 1, "memory_mib": 262144}, "no_capacity"),
    ({"disk_reserve_mib": 16000000}, {"vcpus": 1, "memory_mib": 128}, "host_disk_full")])
def test_admission(cold, settings, resources, code):
    cold.start(**settings)
    assert failed(cold, cold.want(resources=resources))["code"] == code
    assert not cold.broker.count("vm_start")


@pytest.mark.parametrize("fields,where", [({"hostname": None}, "hostname"), ({"machine_id": "x"}, "machine_id"),
                                          ({"resources": {"vcpus": 1}}, "memory_mib"), ({"deadline_at": "soon"}, "deadline_at"),
                                          ({"template": {"digest": "x"}}, "digest"), ({"env": {"A": 1}}, "env"),
                                          ({"env": {f"V{i}": "x" * 4000 for i in range(9)}}, "32768")])
def test_a_row_that_is_malformed_fails_alone(node, fields, where):
    sandbox_id = node.want(**fields)
    error = failed(node, sandbox_id)
    assert error["code"] == "internal" and where in error["message"]
    node.running()


@pytest.mark.parametrize("manifest", [{"start_command": "sh"}, {"start_command": []}, {"env": []}, {"env": {"A=B": "1"}},
                                      {"readiness_probe": {"command": ["x"], "timeout_s": 0}}, {"readiness_probe": {"command": 1}}])
def test_a_manifest_that_is_malformed(node, manifest):
    assert failed(node, node.want(template={"digest": "d" * 64, "manifest": manifest}))["code"] == "internal"
