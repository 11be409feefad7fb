# SPDX-License-Identifier: Apache-2.0
"""Bounds that the other tests do not come near: full tables of nodes and sandboxes, long internal bodies, a full queue."""
import json
import socket
import threading
import time

import pytest
from harness import wait_for


def test_internal_bodies(world):
    control = world.replicas[0]
    raw = b'{"sandboxes": [], "x": "' + b"y" * 4194304 + b'"}'
    answer = control.internal().call("POST", "/internal/v1/nodes/node-a/observed", raw=raw)
    assert answer.status == 413 and answer.code == "too_large"
    fits = json.dumps({"sandboxes": [], "x": "y" * 4000000}).encode()
    assert control.internal().call("POST", "/internal/v1/nodes/node-a/observed", raw=fits).status == 200


def test_most_nodes(own_world):
    w = own_world()
    w.replica()
    w.sql("INSERT INTO nodes (id, boot_id, hostname, version, accelerator, vmm, kernels, vcpus, memory_mib, disk_mib, "
          "max_sandboxes, gateway_url) SELECT 'n' || i, '', '', '', '', '', '[]', 1, 1, 1, 1, '' FROM generate_series(1, 1000) i")
    body = {"boot_id": "b", "hostname": "h", "version": "v", "accelerator": "tcg", "vmm": "q", "kernels": [],
            "capacity": {"vcpus": 1, "memory_mib": 1, "disk_mib": 1, "max_sandboxes": 1}, "gateway_url": "http://x"}
    internal = w.replicas[0].internal()
    refused = internal.call("POST", "/internal/v1/nodes/one-more/register", body=body)
    assert refused.status == 429 and refused.code == "quota_exceeded"
    assert internal.call("POST", "/internal/v1/nodes/n7/register", body=body).status == 200
    assert len(w.replicas[0].admin().get("/v1/nodes").json["items"]) == 1000


def test_most_sandboxes_of_a_node(own_world):
    """4096, whatever the node says it can hold; and its list of them stays below the bound on bodies."""
    w = own_world()
    w.replica()
    w.seed()
    node = w.node(start=False, memory_mib=10**8, max_sandboxes=10**6)
    api = w.replicas[0].admin()
    box = api.post("/v1/sandboxes", {"template": "seed", "env": {f"K{i}": "v" * 3900 for i in range(2)}}).json["sandbox"]["id"]
    w.sql("INSERT INTO sandboxes (id, tenant_id, state, template_id, template_name, digest, vcpus, memory_mib, metadata, env, "
          "hostname, machine_id, node_id, started_at) SELECT 'sbx_' || lpad(i::text, 26, '0'), tenant_id, 'running', template_id, "
          "template_name, digest, 1, 1, '{}', env, hostname, machine_id, node_id, now() FROM sandboxes, "
          f"generate_series(1, 4095) i WHERE id = '{box}'")
    api.patch("/v1/tenants/self", {"quotas": {"max_sandboxes": 100000, "max_vcpus": 100000, "max_memory_mib": 10**9}})
    full = api.post("/v1/sandboxes", {"template": "seed"})
    assert full.status == 503 and full.code == "no_capacity"
    answer = node.call("GET", f"/nodes/{node.id}/desired")
    items = answer.json["sandboxes"]
    assert len(items) == 4096 and len(answer.raw) < 4194304
    mine = next(i for i in items if i["id"] == box)
    assert mine["env"]["K1"] and mine["template"]["manifest"], "what is to be started has all it needs"


@pytest.mark.alone
def test_full_queue(own_world):
    """While the database answers nobody, 8 requests are at work and 512 wait; the next are told 503 at once, and when it
    answers again all that waited are served."""
    w = own_world()
    control = w.replica()
    lock = threading.Thread(target=lambda: w.sql("BEGIN; LOCK TABLE tokens IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(8); COMMIT"))
    lock.start()
    wait_for(lambda: w.sql("SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 'tokens'::regclass"))
    request = (f"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {control.admin_token}\r\nConnection: close\r\n\r\n"
               ).encode()
    sockets = []
    for _ in range(600):
        s = socket.create_connection(("127.0.0.1", control.port))
        s.sendall(request)
        sockets.append(s)
    time.sleep(1)
    answers = []
    for s in sockets:
        s.settimeout(30)
        data = b""
        while piece := s.recv(65536):
            data += piece
        answers.append(data)
        s.close()
    lock.join()
    refused = [a for a in answers if a.startswith(b"HTTP/1.1 503")]
    assert len(refused) >= 600 - 512 - 8 and all(b'"unavailable"' in a and b"Retry-After" in a for a in refused)
    served = [a for a in answers if a.startswith(b"HTTP/1.1 200") or a.startswith(b"HTTP/1.1 429")]
    assert len(served) + len(refused) == 600 and len(refused) < 200
