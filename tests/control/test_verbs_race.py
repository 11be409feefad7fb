# SPDX-License-Identifier: Apache-2.0
"""Verbs at once, on two replicas, and with a replica killed in the middle: always an allowed end, deleted stays deleted."""
import random
import threading
import time

import pytest
from harness import wait_for

ROUNDS = 40


@pytest.fixture(scope="module")
def pair(postgres):
    """Two replicas and a node that obeys."""
    from conftest import World
    w = World(postgres)
    w.replica()
    w.replica()
    w.seed(shared=True)
    w.node()
    yield w
    w.close()


def at_once(*calls):
    """Runs each in a thread of its own, a random gap apart; their answers in order."""
    answers = [None] * len(calls)

    def run(i, call):
        time.sleep(random.uniform(0, 0.012))
        answers[i] = call()

    threads = [threading.Thread(target=run, args=(i, c)) for i, c in enumerate(calls)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


def settled(api, box):
    """The sandbox once nothing runs on it."""
    def look():
        shown = api.get(f"/v1/sandboxes/{box}").json
        return shown if shown["operation_id"] is None and shown["state"] not in ("deleting", "creating") else None
    return wait_for(look, what="the end of what runs")


def final(api, answer):
    return api.get(f"/v1/operations/{answer.json['operation_id']}?wait=20").json


def make(api):
    answer = api.post("/v1/sandboxes", {"template": "seed:latest"}, prefer=20)
    assert answer.json["sandbox"]["state"] == "running", answer
    return answer.json["sandbox"]["id"]


def call(w, i, box, verb, body=None):
    client = w.replicas[i % 2].admin()
    if verb == "delete":
        return lambda: client.delete(f"/v1/sandboxes/{box}")
    return lambda: client.post(f"/v1/sandboxes/{box}/{verb}", body or {})


def check_one(answer):
    assert answer.status == 202 or (answer.status == 409 and answer.code in ("operation_in_progress", "wrong_state")) or \
        (answer.status == 410 and answer.code == "gone"), answer


def test_pause_and_pause(pair):
    api = pair.replicas[0].admin()
    box = make(api)
    for _ in range(ROUNDS):
        answers = at_once(call(pair, 0, box, "pause"), call(pair, 1, box, "pause"))
        for answer in answers:
            check_one(answer)
        assert any(a.status == 202 for a in answers)
        assert settled(api, box)["state"] == "paused"
        assert final(api, api.post(f"/v1/sandboxes/{box}/wake", {}))["state"] == "succeeded"


def test_snapshot_and_suspend(pair):
    api = pair.replicas[0].admin()
    box = make(api)
    for _ in range(ROUNDS):
        answers = at_once(call(pair, 0, box, "snapshot"), call(pair, 1, box, "suspend"))
        for answer in answers:
            check_one(answer)
            if answer.status == 202:
                assert final(api, answer)["state"] == "succeeded"
        suspended = answers[1].status == 202
        assert settled(api, box)["state"] == ("suspended" if suspended else "running")
        if suspended:
            assert final(api, api.post(f"/v1/sandboxes/{box}/wake", {}))["state"] == "succeeded"
    assert api.get(f"/v1/snapshots?sandbox_id={box}&state=creating").json["items"] == []


@pytest.mark.parametrize("verb", ["wake", "fork", "snapshot", "suspend", "pause"])
def test_verb_and_delete(pair, verb):
    api = pair.replicas[0].admin()
    for i in range(ROUNDS // 2):
        box = make(api)
        if verb == "wake":
            api.post(f"/v1/sandboxes/{box}/pause", {}, prefer=20)
        other, gone = at_once(call(pair, i, box, verb), call(pair, i + 1, box, "delete"))
        check_one(other)
        assert gone.status == 202, gone
        assert final(api, gone)["state"] == "succeeded"
        shown = settled(api, box)
        assert shown["state"] == "deleted"
        if other.status == 202:
            assert final(api, other)["state"] in ("succeeded", "failed")
            for child in other.json.get("children", []):
                op = api.get(f"/v1/operations/{child['operation_id']}?wait=20").json
                shown = settled(api, child["sandbox_id"])
                assert (op["state"], shown["state"]) in (("succeeded", "running"), ("failed", "failed")), (op, shown)
                api.delete(f"/v1/sandboxes/{child['sandbox_id']}")
        assert api.get(f"/v1/sandboxes/{box}").json["state"] == "deleted"


def test_everything_at_once(pair):
    """Eight callers do as they please; whatever is accepted ends, and the sandbox ends up somewhere settled."""
    api = pair.replicas[0].admin()
    box = make(api)
    accepted = []

    def caller(seed):
        chance = random.Random(seed)
        client = pair.replicas[seed % 2].admin()
        end = time.monotonic() + 60
        while len(accepted) < 20 and time.monotonic() < end:
            verb = chance.choice(["pause", "wake", "suspend", "snapshot", "fork", "rollback"])
            body = {}
            if verb == "rollback":
                items = client.get(f"/v1/snapshots?sandbox_id={box}&state=ready&kind=snapshot").json.get("items")  # 429: too many requests
                if not items:
                    continue
                body = {"snapshot_id": chance.choice(items)["id"]}
            answer = client.post(f"/v1/sandboxes/{box}/{verb}", body, prefer=chance.choice([None, 5]))
            if answer.status == 429:  # eight callers without a pause are more than a tenant may ask
                time.sleep(0.1)
                continue
            check_one(answer)
            if answer.status == 202:
                accepted.append(answer)

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(accepted) > 5
    for answer in accepted:
        assert final(api, answer)["state"] == "succeeded"
    assert settled(api, box)["state"] in ("running", "paused", "suspended")
    open_ones = pair.sql("SELECT count(*) FROM operations WHERE state IN ('pending', 'running')")
    assert open_ones == [["0"]]


def test_killed_in_the_middle(own_world):
    """A replica is killed with operations on their way: the other one, or the next, brings each to its end."""
    w = own_world()
    w.replica()
    w.replica()
    w.seed(shared=True)
    node = w.node(start=False)
    node.reaction = lambda i: [node.running(i)] if i["observed"] == "creating" and not i["start"] else []
    api = w.replicas[1].admin()
    boxes = []
    for _ in range(4):
        boxes.append(api.post("/v1/sandboxes", {"template": "seed:latest"}).json["sandbox"]["id"])
    node.poll(wait=0)
    first = w.replicas[0].admin()
    begun = [first.post(f"/v1/sandboxes/{b}/{v}", {}) for b, v in zip(boxes, ("pause", "suspend", "snapshot", "fork"))]
    assert all(a.status == 202 for a in begun), begun
    w.replicas[0].process.kill()
    w.replicas[0].process.wait()
    w.replicas[0].process = None
    node.reaction, node.revision = node.obey, 0
    node.start()
    for answer, end in zip(begun, ("paused", "suspended", "running", "running")):
        assert final(api, answer)["state"] == "succeeded"
        assert api.get(f"/v1/sandboxes/{answer.json['sandbox']['id']}").json["state"] == end


def test_database_restarts_in_the_middle(own_world):
    from harness import Postgres
    w = own_world()
    w.postgres = Postgres()
    try:
        w.postgres.create(w.database)
        w.replica()
        w.seed(shared=True)
        w.node()
        api = w.replicas[0].admin()
        box = make(api)
        begun = api.post(f"/v1/sandboxes/{box}/suspend", {}, key="once").json
        w.postgres.stop("immediate")
        w.postgres.start()
        wait_for(lambda: api.get(f"/v1/operations/{begun['operation_id']}").status == 200, what="the database")
        assert api.get(f"/v1/operations/{begun['operation_id']}?wait=20").json["state"] == "succeeded"
        again = wait_for(lambda: (lambda a: a if a.status == 202 else None)(
            api.post(f"/v1/sandboxes/{box}/suspend", {}, key="once")), what="a worker with a connection")
        assert again.json["operation_id"] == begun["operation_id"]
        assert api.get(f"/v1/sandboxes/{box}").json["state"] == "suspended"
    finally:
        for node in w.nodes:
            node._stop.set()
        for replica in w.replicas:
            replica.stop()
        w.postgres.remove()
