# SPDX-License-Identifier: Apache-2.0
"""The life of a sandbox through the public API, with a node that does what it is told."""
import threading
import time

from conftest import DIGEST
from harness import wait_for


def test_create_runs_and_deletes(api, world):
    """Accepted, then running and ready, then deleted; each is its own answer."""
    answer = api.post("/v1/sandboxes", {"template": "seed:latest", "name": "one", "metadata": {"team": "a"},
                                        "resources": {"vcpus": 2, "memory_mib": 256}, "env": {"K": "v"}})
    assert answer.status == 202
    body = answer.json
    assert body["operation"]["state"] == "pending" and body["operation_id"] == body["operation"]["id"]
    assert body["sandbox"]["state"] == "creating" and body["sandbox"]["template"]["digest"] == DIGEST
    assert body["sandbox"]["node_id"] == "node-a"
    operation = api.get(f"/v1/operations/{body['operation_id']}?wait=20").json
    assert operation["state"] == "succeeded" and operation["started_at"] and operation["finished_at"]
    sandbox = api.get(f"/v1/sandboxes/{body['sandbox']['id']}").json
    assert sandbox["state"] == "running" and sandbox["ready"] is True
    assert sandbox["accelerator"] == "tcg" and sandbox["timings"] == {"restore_ms": 12.5}
    assert sandbox["operation_id"] is None
    gone = api.delete(f"/v1/sandboxes/{sandbox['id']}", prefer=20)
    assert gone.status == 202 and gone.json["sandbox"]["state"] == "deleted"
    assert gone.json["operation"]["state"] == "succeeded"
    assert gone.headers["Preference-Applied"] == "wait=20"
    again = api.delete(f"/v1/sandboxes/{sandbox['id']}")
    assert again.status == 202 and again.json["operation_id"] == gone.json["operation_id"]
    assert api.get(f"/v1/sandboxes/{sandbox['id']}").json["deleted_at"]


def test_desired_item_is_whole(api, world):
    """What a node needs to start a sandbox is in its list."""
    seen = {}
    world.nodes[0].reaction = lambda item: seen.update({item["id"]: item}) or world.nodes[0].obey(item)
    answer = api.post("/v1/sandboxes", {"template": "seed", "name": "My_Box.1", "env": {"A": "1"}}, prefer=20)
    item = seen[answer.json["sandbox"]["id"]]
    world.nodes[0].reaction = world.nodes[0].obey
    assert item["desired"] == "running" and item["observed"] == "creating" and item["generation"] == 1
    assert item["operation_id"] == answer.json["operation_id"] and item["operation_kind"] == "create"
    assert item["template"] == {"digest": DIGEST, "manifest": {"format": 1}}
    assert item["resources"] == {"vcpus": 1, "memory_mib": 512} and item["env"] == {"A": "1"}
    assert item["hostname"] == "my-box-1" and len(item["machine_id"]) == 32
    assert item["deadline_at"].endswith("Z")


def test_references_and_defaults_of_templates(api):
    """name, name:tag and name@digest; the manifest's resources are the defaults."""
    digest = "b" * 64
    api.post("/v1/templates", {"name": "sized", "tag": "v1", "digest": digest, "size_bytes": 5,
                               "manifest": {"resources": {"vcpus": 3, "memory_mib": 192}}})
    by_digest = api.post("/v1/sandboxes", {"template": f"sized@{digest}"}).json["sandbox"]
    assert by_digest["resources"] == {"vcpus": 3, "memory_mib": 192} and by_digest["template"]["tag"] is None
    by_tag = api.post("/v1/sandboxes", {"template": "sized:v1", "resources": {"vcpus": 1}}).json["sandbox"]
    assert by_tag["resources"] == {"vcpus": 1, "memory_mib": 192}
    missing = api.post("/v1/sandboxes", {"template": "sized"})
    assert missing.status == 404 and missing.code == "template_not_found" and missing.json["field"] == "template"
    for box in (by_digest, by_tag):
        api.delete(f"/v1/sandboxes/{box['id']}")


def test_list_filters_and_pages(api, running):
    """Pages follow each other without holes or doubles, newest first."""
    boxes = [running(name=f"list-{i}", metadata={"group": "pages", "n": str(i)}) for i in range(5)]
    ids, cursor = [], ""
    while True:
        page = api.get(f"/v1/sandboxes?metadata.group=pages&limit=2{cursor}").json
        ids += [s["id"] for s in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert ids == [b["id"] for b in reversed(boxes)]
    assert [s["id"] for s in api.get("/v1/sandboxes?metadata.n=3&metadata.group=pages").json["items"]] == [boxes[3]["id"]]
    assert [s["id"] for s in api.get("/v1/sandboxes?name=list-2").json["items"]] == [boxes[2]["id"]]
    api.delete(f"/v1/sandboxes/{boxes[0]['id']}", prefer=20)
    live = [s["id"] for s in api.get("/v1/sandboxes?metadata.group=pages").json["items"]]
    assert boxes[0]["id"] not in live and len(live) == 4
    assert [s["id"] for s in api.get("/v1/sandboxes?state=deleted&metadata.group=pages").json["items"]] == [boxes[0]["id"]]
    assert len(api.get("/v1/sandboxes?state=running&metadata.group=pages").json["items"]) == 4


def test_update_merges(api, running):
    """Metadata merge (RFC 7396), names change, a deleted one is gone."""
    box = running(name="before", metadata={"a": "1", "b": "2"})
    path = f"/v1/sandboxes/{box['id']}"
    changed = api.patch(path, {"name": "after", "metadata": {"a": None, "c": "3"}}).json
    assert changed["name"] == "after" and changed["metadata"] == {"b": "2", "c": "3"}
    assert api.patch(path, {"name": None}).json["name"] is None
    api.delete(path, prefer=20)
    gone = api.patch(path, {"name": "x"})
    assert gone.status == 410 and gone.code == "gone"


def test_operations_list(api, running):
    box = running()
    api.delete(f"/v1/sandboxes/{box['id']}", prefer=20)
    listed = api.get(f"/v1/operations?sandbox_id={box['id']}").json["items"]
    assert [o["kind"] for o in listed] == ["delete", "create"]
    page = api.get(f"/v1/operations?sandbox_id={box['id']}&limit=1").json
    rest = api.get(f"/v1/operations?sandbox_id={box['id']}&limit=1&cursor={page['next_cursor']}").json
    assert [page["items"][0]["id"], rest["items"][0]["id"]] == [o["id"] for o in listed]
    assert all(o["state"] == "succeeded" for o in api.get("/v1/operations?state=succeeded").json["items"])


def test_wait_ends_at_its_time(own_world):
    """A wait on something that does not come ends with the operation as it is, and holds no worker meanwhile."""
    w = own_world()
    w.replica()
    w.seed()
    api = w.replicas[0].admin()
    operation = api.post("/v1/sandboxes", {"template": "seed"}).json["operation_id"]
    waits = [threading.Thread(target=lambda: w.replicas[0].admin().get(f"/v1/operations/{operation}?wait=8"))
             for _ in range(40)]
    for t in waits:
        t.start()
    wait_for(lambda: w.replicas[0].metric("space_requests_parked") == 40)
    begin = time.monotonic()
    answer = api.get(f"/v1/operations/{operation}?wait=1")
    assert answer.json["state"] == "pending" and 0.9 < time.monotonic() - begin < 5
    for t in waits:
        t.join()
    wait_for(lambda: w.replicas[0].metric("space_requests_parked") == 0)


def test_a_client_that_leaves_while_waiting_leaves_nothing(own_world):
    w = own_world()
    w.replica()
    w.seed()
    api = w.replicas[0].admin()
    operation = api.post("/v1/sandboxes", {"template": "seed"}).json["operation_id"]
    connection = api._connection()
    connection.request("GET", f"/v1/operations/{operation}?wait=30", headers={"Authorization": f"Bearer {api.token}"})
    wait_for(lambda: w.replicas[0].metric("space_requests_parked") == 1)
    api.close()
    wait_for(lambda: w.replicas[0].metric("space_requests_parked") == 0)
