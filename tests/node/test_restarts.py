# SPDX-License-Identifier: Apache-2.0
"""Each neighbour, and the node itself, may end at any time and come back."""

import threading
import time

import pytest

from fakes import new_id


def test_the_node_adopts_what_runs(node):
    ids = [node.running() for _ in range(3)]
    node.kill()
    node.control.observed.clear()
    node.start()
    for sandbox_id in ids:
        assert node.control.wait_report(sandbox_id, "running")["ready"]
    time.sleep(0.3)
    assert sorted(node.broker.vms) == sorted(ids) and node.broker.count("vm_start", mode="clone") == 3
    node.control.delete(ids[0])
    node.control.wait_report(ids[0], "deleted")


def test_adoption_in_pages(node):
    ids = [node.running() for _ in range(5)]
    node.kill()
    node.broker.page = 2
    node.control.observed.clear()
    node.start()
    for sandbox_id in ids:
        node.control.wait_report(sandbox_id, "running")
    assert node.broker.count("vm_list", after=sorted(ids)[1]) and len(node.broker.vms) == 5


def test_what_happened_while_the_node_was_away(node):
    died, deleted, forgotten, vanished, kept = [node.running() for _ in range(5)]
    node.kill()
    node.broker.vms[died].die()
    node.broker.vms.pop(vanished).remove()
    node.control.delete(deleted)
    node.control.forget(forgotten)
    node.control.observed.clear()
    new = node.want()
    node.start()
    assert node.control.wait_report(died, "failed")["error"]["code"] == "vmm_killed"
    assert node.control.wait_report(vanished, "failed")["error"]["code"] == "vmm_killed"
    node.control.wait_report(deleted, "deleted")
    node.control.wait_report(new, "running")
    node.broker.wait(lambda: sorted(node.broker.vms) == sorted([kept, new]))


def test_killed_in_the_middle_of_a_boot(node):
    node.broker.boot_time = 1
    sandbox_id = node.want()
    node.broker.wait(lambda: [i for i in node.broker.vms if i.startswith("tpb_")])
    leftover = next(iter(node.broker.vms))
    node.kill()
    node.broker.boot_time = 0.02
    node.start()
    node.control.wait_report(sandbox_id, "running")
    node.broker.wait(lambda: leftover not in node.broker.vms)


def test_killed_in_the_middle_of_a_start(node):
    hold = threading.Event()
    node.broker.scripts["clone"] = lambda vm: (hold.wait(20), vm.set("running"))
    sandbox_id = node.want()
    node.broker.wait(lambda: sandbox_id in node.broker.vms)
    node.kill()
    node.start()
    node.control.wait_for(lambda: len(node.control.registered) == 2)
    hold.set()
    node.control.wait_report(sandbox_id, "running")
    assert node.broker.count("vm_start", id=sandbox_id) == 1


def test_a_broker_that_comes_back(node):
    kept = node.running()
    node.broker.stop()
    waiting = node.want()
    node.control.delete(kept)
    time.sleep(0.5)
    assert kept in node.broker.vms
    node.broker.start()
    node.control.wait_report(waiting, "running")
    node.control.wait_report(kept, "deleted")


@pytest.mark.parametrize("mode", ["clone", "template_boot"])
def test_a_broker_that_dies_during_a_start(node, mode):
    if mode == "clone":
        node.running()
    node.broker.slow["vm_start"] = 0.3
    started = node.broker.count("vm_start", mode=mode)
    sandbox_id = node.want()
    node.broker.wait(lambda: node.broker.count("vm_start", mode=mode) > started)
    node.broker.stop()
    node.broker.quiet()  # the start is done, its answer went nowhere
    node.broker.slow.clear()
    node.broker.start()
    node.control.wait_report(sandbox_id, "running")
    node.broker.wait(lambda: not [i for i in node.broker.vms if i.startswith("tpb_")])


def test_a_broker_that_dies_during_a_seal(node):
    node.broker.slow["snapshot_seal"] = 0.3
    sandbox_id = node.want()
    node.broker.wait(lambda: node.broker.count("snapshot_seal"))
    node.broker.stop()
    node.broker.quiet()
    node.broker.slow.clear()
    node.broker.start()
    node.control.wait_report(sandbox_id, "running")


def test_a_broker_that_has_no_room_for_a_while(node):
    from test_failures import refuse
    node.broker.fail["vm_start"] = refuse("unavailable", text="too much to do", times=2)
    node.running()


def test_a_node_before_its_broker(cold):
    cold.broker.stop()
    cold.start()
    sandbox_id = cold.want()
    time.sleep(0.3)
    assert not cold.control.registered
    cold.broker.start()
    cold.control.wait_report(sandbox_id, "running")


def test_control_away_and_back(node):
    first = node.running()
    node.control.stop()
    node.broker.vms[first].die()
    time.sleep(0.5)
    node.control.resume()
    assert node.control.wait_report(first, "failed")["error"]["code"] == "vmm_killed"
    node.control.wait_for(lambda: len(node.control.registered) >= 2)
    node.running()


def test_control_that_forgot_the_node(node):
    node.running()
    node.control.fail = 404
    with node.control.lock:
        node.control.changed()
    time.sleep(0.3)
    node.control.fail = None
    node.control.wait_for(lambda: len(node.control.registered) >= 2)


def test_a_list_that_is_not_understood_is_not_acted_on(node):
    kept = node.running()
    good = node.control.sandboxes
    for bad in ({"id": "x"}, {"id": new_id("sbx"), "generation": 1, "desired": "dancing", "observed": "x"}, "text"):
        node.control.sandboxes = {"bad": bad} if isinstance(bad, dict) else {"bad": {"id": 1}}
        with node.control.lock:
            node.control.changed()
        time.sleep(0.3)
    assert kept in node.broker.vms
    node.control.sandboxes = good
    with node.control.lock:
        node.control.changed()
    node.running()
    assert kept in node.broker.vms


def test_reports_lost_on_the_way_are_said_again(node):
    sandbox_id = node.running()
    with node.control.lock:
        node.control.sandboxes[sandbox_id]["observed"] = "creating"  # as if the database lost the last write
        node.control.observed.clear()
        node.control.changed()
    time.sleep(1.2)
    with node.control.lock:
        node.control.changed()
    node.control.wait_report(sandbox_id, "running")


def test_the_sweep_names_what_is_known(node):
    sandbox_id = node.running()
    node.kill()
    node.broker.swept.clear()
    node.control.observed.clear()
    node.start()
    node.control.wait_report(sandbox_id, "running")
    time.sleep(0.5)
    for known in node.broker.swept:
        assert sandbox_id in known
