# SPDX-License-Identifier: Apache-2.0
"""Fixtures. One PostgreSQL for the whole run; a database, a replica and a node for each test module or test that asks."""
import itertools
import shutil
import tempfile

import pytest

from fake_node import FakeNode
from harness import Control, Postgres

DIGEST = "a" * 64
counter = itertools.count(1)


@pytest.fixture(scope="session")
def postgres():
    cluster = Postgres()
    yield cluster
    cluster.remove()


class World:
    """A database with its replicas and nodes."""

    def __init__(self, postgres, **options):
        self.postgres = postgres
        self.database = f"test_{next(counter)}"
        postgres.create(self.database)
        self.dir = tempfile.mkdtemp(prefix="space-control-test-")
        self.replicas, self.nodes = [], []
        self.options = options

    def replica(self, start=True, **options):
        first = self.replicas[0] if self.replicas else None
        control = Control(self.postgres, self.database, self.dir, admin_token=first.admin_token if first else None,
                          name=f"control{len(self.replicas)}", **{**self.options, **options})
        self.replicas.append(control)
        return control.start() if start else control

    def node(self, start=True, **options):
        first = self.replicas[0]
        node = FakeNode([c.internal_port for c in self.replicas], first.internal_token, **options)
        self.nodes.append(node)
        return node.start() if start else node.register()

    def sql(self, statement):
        return self.postgres.sql(self.database, statement)

    def seed(self, client=None, **more):
        client = client or self.replicas[0].admin()
        answer = client.post("/v1/templates", {"name": "seed", "tag": "latest", "digest": DIGEST, "size_bytes": 1000,
                                               "manifest": {"format": 1}, **more})
        assert answer.status in (200, 201), answer
        return answer.json

    def close(self):
        for node in self.nodes:
            node._stop.set()
        codes = [c.stop() for c in self.replicas]
        for node in self.nodes:
            node.stop()
        logs = "".join(c.log.read_text() for c in self.replicas if c.log.exists())
        shutil.rmtree(self.dir, ignore_errors=True)
        for word in ("ThreadSanitizer", "AddressSanitizer", "LeakSanitizer", "runtime error:"):
            assert word not in logs, logs[logs.index(word) - 200:][:6000]
        assert all(code in (None, 0) for code in codes), (codes, logs[-3000:])
        faults = [line for line in logs.splitlines() if '"event":"request_failed"' in line and '"level":"error"' in line]
        assert not faults, faults


@pytest.fixture(scope="module")
def world(postgres):
    """One replica with a template and a node that obeys at once; shared by the tests of a module."""
    w = World(postgres)
    w.replica()
    w.seed(shared=True)
    w.node()
    yield w
    w.close()


@pytest.fixture
def own_world(postgres):
    """Nothing yet: the test starts replicas and nodes itself."""
    worlds = []

    def make(**options):
        worlds.append(World(postgres, **options))
        return worlds[-1]

    yield make
    for w in worlds:
        w.close()


@pytest.fixture
def api(world):
    return world.replicas[0].admin()


@pytest.fixture
def running(api):
    """Makes sandboxes that run."""
    def make(**fields):
        answer = api.post("/v1/sandboxes", {"template": "seed:latest", **fields}, prefer=20)
        assert answer.status == 202, answer
        assert answer.json["sandbox"]["state"] == "running", answer
        return answer.json["sandbox"]
    return make


def pytest_sessionfinish(session):
    """SPACE_SHOW_MISSING=1 prints what of the document was never seen; SPACE_SPEC_SEEN is a folder for what was seen, with workers or
    several runs (test_zz_spec adds it up)."""
    import os
    from harness import SPEC
    if os.environ.get("SPACE_SPEC_SEEN"):
        SPEC.save(os.environ["SPACE_SPEC_SEEN"])
    if os.environ.get("SPACE_SHOW_MISSING"):
        print("\nnever seen:", *SPEC.missing(), sep="\n  ")
