# SPDX-License-Identifier: Apache-2.0
"""Replicas come and go, the database too: nothing is lost, nothing is done twice, everything goes on by itself."""
import pathlib
import signal
import threading
import time

from harness import wait_for
from test_tokens import ROUTES


def test_kill_in_the_middle_of_creates(own_world):
    """SIGKILL of a replica at work, again and again: every accepted create ends, each key has one sandbox."""
    w = own_world()
    control = w.replica()
    w.seed()
    w.node()
    stop, done, lock = threading.Event(), {}, threading.Lock()

    def client(n):
        api, i = control.admin(), 0
        while not stop.is_set():
            key = f"c{n}-{i}"
            try:
                answer = api.post("/v1/sandboxes", {"template": "seed", "name": key}, key=key)
            except Exception:  # noqa: BLE001: the replica was killed; the same key is tried again
                time.sleep(0.05)
                continue
            if answer.status == 202:
                with lock:
                    done[key] = answer.json["sandbox"]["id"]
                i += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for _ in range(3):
        time.sleep(0.7)
        control.stop(signal.SIGKILL)
        control.start()
    time.sleep(0.5)
    stop.set()
    for t in threads:
        t.join()
    assert done
    rows = w.sql("SELECT name, count(*), min(id) FROM sandboxes GROUP BY name")
    made = {r[0]: r for r in rows}
    assert all(made[k][1] == "1" and made[k][2] == v for k, v in done.items())
    wait_for(lambda: w.sql("SELECT count(*) FROM operations WHERE state IN ('pending', 'running')") == [["0"]], 60,
             "every operation at its end")


def test_two_replicas_reconcile(own_world):
    """Both take work at once; every sandbox is assigned once, waits on one replica end by reports to the other."""
    w = own_world()
    a, b = w.replica(), w.replica()
    w.seed()
    api_a, api_b = a.admin(), b.admin()
    made = [(api_a, api_b)[i % 2].post("/v1/sandboxes", {"template": "seed"}).json for i in range(30)]
    assert all(m["sandbox"]["node_id"] is None for m in made)
    node = w.node()
    for i, m in enumerate(made):
        op = (api_b, api_a)[i % 2].get(f"/v1/operations/{m['operation_id']}?wait=30").json
        assert op["state"] == "succeeded", op
    assert w.sql("SELECT sum(memory_mib) FROM sandboxes WHERE node_id = 'node-a'") == [[str(30 * 512)]]
    a.stop()
    box = made[0]["sandbox"]["id"]
    assert api_b.delete(f"/v1/sandboxes/{box}", prefer=20).json["sandbox"]["state"] == "deleted"
    assert node.unknown == []


def test_replicas_start_at_once(own_world):
    """Three replicas on an empty database: one migrates, all get ready."""
    w = own_world()
    replicas = [w.replica(start=False) for _ in range(3)]
    for c in replicas:
        c.start(wait=False)
    for c in replicas:
        c.wait_ready()
    there_are = sorted((pathlib.Path(__file__).resolve().parents[2] / "src/store/migrations").glob("*.sql"))
    assert w.sql("SELECT version FROM schema_migrations ORDER BY version") == [[str(int(f.name[:4]))] for f in there_are]
    assert w.sql("SELECT count(*) FROM tenants") == [["1"]]


def test_database_restart(own_world):
    """While it is down: 503 with Retry-After, health stays; after it: everything works, waits have gone on."""
    w = own_world()
    control = w.replica()
    w.seed()
    w.node()
    api = control.admin()
    before = api.post("/v1/sandboxes", {"template": "seed"}, prefer=20).json
    waiting = w.node(start=False, node_id="node-b", memory_mib=1)
    revision = waiting.call("GET", "/nodes/node-b/desired").json["revision"]
    held = []
    poll = threading.Thread(target=lambda: held.append(waiting.call("GET", f"/nodes/node-b/desired?since={revision}&wait=30")))
    poll.start()
    wait_for(lambda: control.metric("space_requests_parked") >= 2)  # node-a's is the other
    w.postgres.stop()
    try:
        down = api.get("/v1/sandboxes")
        assert down.status == 503 and down.code == "unavailable" and int(down.headers["Retry-After"]) >= 1
        assert str(w.postgres.dir) not in down.raw.decode(), "nothing of the insides is shown"
        made = api.post("/v1/sandboxes", {"template": "seed"}, key="over-it")
        assert made.status == 503 and made.code == "unavailable"
        assert api.get("/healthz").status == 200 and api.get("/readyz").status == 503
        assert api.get("/metrics").status == 503
        for method, path, body, _ in ROUTES:
            assert api.call(method, path, body=body).code == "unavailable", (method, path)
    finally:
        w.postgres.start()
    wait_for(lambda: api.get("/readyz").status == 200, what="readiness")
    again = api.post("/v1/sandboxes", {"template": "seed"}, key="over-it", prefer=20).json
    assert again["operation"]["state"] == "succeeded"
    assert api.get(f"/v1/sandboxes/{before['sandbox']['id']}").json["state"] == "running"
    poll.join()
    assert held[0].status == 200
    connects = control.metric("space_listener_connects_total")
    assert connects >= 2, "the listener found the database again"


def test_connections_cut_under_load(own_world):
    """pg_terminate_backend of all connections while clients work with keys: no failure but 503, no double."""
    w = own_world()
    control = w.replica()
    w.seed()
    w.node()
    stop, results, lock = threading.Event(), [], threading.Lock()

    def client(n):
        api, i = control.admin(), 0
        while not stop.is_set():
            key = f"t{n}-{i}"
            answer = api.post("/v1/sandboxes", {"template": "seed", "name": key}, key=key)
            with lock:
                results.append((key, answer.status))
            if answer.status == 202:
                i += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for _ in range(5):
        time.sleep(0.3)
        w.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
              "AND pid <> pg_backend_pid()")
    time.sleep(0.5)
    stop.set()
    for t in threads:
        t.join()
    assert {s for _, s in results} <= {202, 503, 429}
    rows = {r[0]: r[1] for r in w.sql("SELECT name, count(*) FROM sandboxes GROUP BY name")}
    assert all(rows[k] == "1" for k, s in results if s == 202)
    assert set(rows.values()) == {"1"}
    wait_for(lambda: w.sql("SELECT count(*) FROM operations WHERE state IN ('pending', 'running')") == [["0"]], 60, "the end")


def test_a_lost_notification_only_delays(own_world):
    """Changes made without any notification are found by the periodic looks."""
    w = own_world()
    control = w.replica()
    w.seed()
    api = control.admin()
    made = api.post("/v1/sandboxes", {"template": "seed"}).json
    w.sql("DELETE FROM outbox")
    w.node(start=False)
    wait_for(lambda: api.get(f"/v1/sandboxes/{made['sandbox']['id']}").json["node_id"] == "node-a", 60, "assignment")
    box = made["sandbox"]["id"]
    timer = threading.Timer(0.5, lambda: w.sql(
        f"UPDATE operations SET state = 'succeeded', started_at = now(), finished_at = now() WHERE sandbox_id = '{box}'"))
    timer.start()
    begin = time.monotonic()
    assert api.get(f"/v1/operations/{made['operation_id']}?wait=20").json["state"] == "succeeded"
    assert time.monotonic() - begin < 10


def test_graceful_stop_answers_waits(own_world):
    """SIGTERM: parked waits are answered as things are, requests under way end, exit code 0."""
    w = own_world()
    control = w.replica()
    w.seed()
    api = control.admin()
    operation = api.post("/v1/sandboxes", {"template": "seed"}).json["operation_id"]
    answers = []
    waits = [threading.Thread(target=lambda: answers.append(control.admin().get(f"/v1/operations/{operation}?wait=30")))
             for _ in range(5)]
    for t in waits:
        t.start()
    wait_for(lambda: control.metric("space_requests_parked") == 5)
    begin = time.monotonic()
    assert control.stop() == 0
    for t in waits:
        t.join()
    assert time.monotonic() - begin < 9
    assert [a.status for a in answers] == [200] * 5 and {a.json["state"] for a in answers} == {"pending"}


def test_starts_before_its_database(own_world):
    """The listeners are there, 503 until the schema is; then it goes on by itself."""
    w = own_world()
    w.postgres.stop()
    control = w.replica(start=False)
    try:
        control.start(wait=False)
        api = control.admin()

        def health():
            try:
                return api.get("/healthz").status == 200
            except OSError:
                return False

        wait_for(health)
        assert api.get("/readyz").status == 503
        assert api.get("/v1/sandboxes").code == "unavailable"
    finally:
        w.postgres.start()
    control.wait_ready()
    assert api.get("/v1/sandboxes").status == 200


def test_migrate_only(own_world):
    """Brings the schema up, bootstraps, exits 0; an edited migration and a newer schema are refused."""
    import subprocess
    w = own_world()
    control = w.replica(start=False)
    run = lambda: subprocess.run([*control.arguments(), "--migrate-only"], capture_output=True, text=True,  # noqa: E731
                                 env={"SPACE_CONFIG": "/dev/null"})
    assert run().returncode == 0 and run().returncode == 0
    assert w.sql("SELECT scopes FROM tokens") == [["255"]]
    w.sql("UPDATE schema_migrations SET checksum = 'edited'")
    refused = run()
    assert refused.returncode != 0 and "is not the one that was applied" in refused.stderr
    w.sql("INSERT INTO schema_migrations VALUES (99, 'later', 'x')")
    refused = run()
    assert refused.returncode != 0


def test_arguments():
    """Wrong ones are named, and nothing starts."""
    import subprocess
    from harness import build_file
    control = str(build_file("src/control/space-control"))
    for args, says in ((["--nonsense", "1"], "nonsense"), (["--bootstrap-token-file"], "needs a file"),
                       (["extra"], "no argument"), (["--internal-token-file", "/nonexistent/x", "--database-url", "x"], "nonexistent")):
        done = subprocess.run([control, *args], capture_output=True, text=True, env={"SPACE_CONFIG": "/dev/null"})
        assert done.returncode != 0 and says in done.stderr, (args, done)
    shown = subprocess.run([control, "--help"], capture_output=True, text=True, env={})
    assert shown.returncode == 0 and "--migrate-only" in shown.stdout
