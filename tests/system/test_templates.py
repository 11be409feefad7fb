# SPDX-License-Identifier: Apache-2.0
"""Promise: templates come from a directory, a tar or an OCI layout; hostile archives are refused and leave nothing; a template in use
stays; a probe and a start command decide when a template is ready."""

import io
import json
import os
import subprocess
import tarfile

import pytest

from lib.system import CACHE


def small_root(tmp_path):
    """A root file system of two files: busybox-like, from the seed's own static parts is not there, so a copy of what sh needs."""
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", str(CACHE / "seed" / "rootfs"), str(root)], check=True)
    return root


@pytest.fixture(scope="module")
def seed_tar(tmp_path_factory):
    path = tmp_path_factory.mktemp("tar") / "seed.tar"
    subprocess.run(["tar", "-C", str(CACHE / "seed" / "rootfs"), "-cf", str(path), "."], check=True)
    return path


def write_tar(path, entries):
    with tarfile.open(path, "w") as t:
        for info, data in entries:
            info.size = len(data) if data is not None else 0
            t.addfile(info, io.BytesIO(data) if data is not None else None)


def entry(name, kind=tarfile.REGTYPE, link="", data=b""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o755
    return info, data if kind == tarfile.REGTYPE else None


def leftovers(system):
    return [p.name for p in (system.state / "store" / "templates").iterdir() if p.name.startswith(".")]


def test_from_tar_runs_and_is_content_addressed(system, api, seed_tar):
    p = system.cli("template", "build", "fromtar:v1", "--from-tar", str(seed_tar), timeout=600)
    digest = p.stdout.decode().strip().split("@")[1].split()[0]
    manifest = (system.state / "store" / "templates" / digest / "manifest.json").read_bytes()
    import hashlib
    assert hashlib.sha256(manifest).hexdigest() == digest
    disk = system.state / "store" / "templates" / digest / "disk.img"
    assert (os.stat(disk).st_mode & 0o777, os.stat(disk).st_uid) == (0o444, 0)
    sid = api.create("fromtar:v1")
    assert bytes(api.run(sid, ["id", "-un"]).stdout) == b"root\n"  # no manifest given: the defaults
    assert bytes(api.run(sid, ["stat", "-c", "%U", "/home/user"]).stdout) == b"user\n"  # owners are kept
    a = api.call("DELETE", "/v1/templates/fromtar")
    assert a.status == 409 and a.json["code"] == "in_use"
    api.delete(sid)
    system.cli("template", "rm", "fromtar")
    assert api.call("GET", "/v1/templates/fromtar").status == 404
    assert leftovers(system) == []


def test_from_oci(system, api, tmp_path, seed_tar):
    layout, bundle = tmp_path / "oci", tmp_path / "bundle"
    run = lambda *a: subprocess.run(a, check=True, capture_output=True)  # noqa: E731
    run("umoci", "init", "--layout", str(layout))
    run("umoci", "new", "--image", "%s:latest" % layout)
    run("umoci", "unpack", "--image", "%s:latest" % layout, str(bundle))
    run("tar", "-C", str(bundle / "rootfs"), "-xf", str(seed_tar))
    run("umoci", "repack", "--image", "%s:latest" % layout, str(bundle))
    run("umoci", "config", "--image", "%s:latest" % layout, "--config.env", "FLAVOUR=oci", "--config.workingdir", "/srv",
        "--config.user", "1000")
    system.cli("template", "build", "fromoci:latest", "--from-oci", "%s:latest" % layout, timeout=600)
    sid = api.create("fromoci:latest")
    r = api.run(sid, ["sh", "-c", "echo $FLAVOUR; pwd; id -u"])
    assert bytes(r.stdout) == b"oci\n/srv\n1000\n", r
    api.delete(sid)


HOSTILE = {
    "absolute": [entry("/etc/passwd", data=b"x")],
    "dotdot": [entry("../../evil", data=b"x")],
    "dotdot inside": [entry("a/../../evil", data=b"x")],
    "through a link": [entry("d", tarfile.SYMTYPE, "/tmp"), entry("d/evil", data=b"x")],
    "through a relative link": [entry("d", tarfile.SYMTYPE, "../../../.."), entry("d/evil", data=b"x")],
    "hard link outside": [entry("h", tarfile.LNKTYPE, "../../../etc/shadow")],
    "long name": [entry("a/" * 300 + "x", data=b"x")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tar_is_refused(system, tmp_path, name):
    path = tmp_path / "hostile.tar"
    write_tar(path, HOSTILE[name])
    p = system.cli("template", "build", "hostile:x", "--from-tar", str(path), check=False, timeout=120)
    assert p.returncode != 0 and p.stderr.startswith(b"space: ") or b"space: " in p.stderr, p
    assert leftovers(system) == []
    assert not os.path.exists("/tmp/evil") and not os.path.exists("/evil")


def test_device_nodes_are_left_out(system, tmp_path):
    path = tmp_path / "dev.tar"
    dev = tarfile.TarInfo("dev/sda")
    dev.type, dev.devmajor, dev.devminor = tarfile.BLKTYPE, 8, 0
    fifo = tarfile.TarInfo("fifo")
    fifo.type = tarfile.FIFOTYPE
    write_tar(path, [(dev, None), (fifo, None), entry("ok", data=b"fine")])
    p = system.cli("template", "build", "devices:x", "--from-tar", str(path), "--disk-mib", "64", timeout=120)
    assert b"left out 2" in p.stderr
    system.cli("template", "rm", "devices")


def test_bombs_end_at_the_limit(system, tmp_path):
    bomb = tmp_path / "bomb.tar.gz"
    with tarfile.open(bomb, "w:gz", compresslevel=9) as t:
        info = tarfile.TarInfo("zeros")
        info.size = 512 << 20
        t.addfile(info, _Zeros(info.size))
    p = system.cli("template", "build", "bomb:x", "--from-tar", str(bomb), "--disk-mib", "64", check=False, timeout=300)
    assert p.returncode != 0 and b"64 MiB" in p.stderr or b"does not fit" in p.stderr, p
    many = tmp_path / "many.tar"
    write_tar(many, [entry("f%d" % i) for i in range(40000)])
    p = system.cli("template", "build", "bomb:y", "--from-tar", str(many), "--disk-mib", "64", check=False, timeout=300)
    assert p.returncode != 0 and b"does not fit" in p.stderr, p
    not_tar = tmp_path / "x.tar"
    not_tar.write_bytes(os.urandom(4096))
    p = system.cli("template", "build", "bomb:z", "--from-tar", str(not_tar), check=False, timeout=120)
    assert p.returncode != 0 and b"tar" in p.stderr, p
    assert leftovers(system) == []


class _Zeros(io.RawIOBase):
    def __init__(self, n):
        self.left = n

    def read(self, n=-1):
        n = self.left if n < 0 else min(n, self.left)
        self.left -= n
        return bytes(n)


@pytest.mark.parametrize("manifest,field", [
    ('{"user": 5}', "user"), ('{"workdir": "rel"}', "workdir"), ('{"colour": 1}', "colour"), ('{"env": {"A B": "x"}}', "env"),
    ('{"start_command": []}', "start_command"), ('{"readiness_probe": {"command": ["x"], "timeout_s": 0}}', "timeout_s"), ("[", "JSON"),
])
def test_bad_manifest_names_the_field(system, tmp_path, manifest, field):
    path, tar = tmp_path / "m.json", tmp_path / "t.tar"
    path.write_text(manifest)
    write_tar(tar, [entry("ok", data=b"fine")])
    p = system.cli("template", "build", "bad:x", "--from-tar", str(tar), "--manifest", str(path), "--disk-mib", "64", check=False)
    assert p.returncode != 0 and field.encode().lower() in p.stderr.lower(), p.stderr
    assert leftovers(system) == []


def probe_template(system, tmp_path, name, manifest):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(manifest))
    system.cli("template", "build", name, "--from-dir", str(CACHE / "seed" / "rootfs"), "--manifest", str(path), timeout=600)


def test_start_command_and_probe(system, api, tmp_path):
    probe_template(system, tmp_path, "served:latest", {
        "user": "user", "workdir": "/home/user",
        "start_command": ["sh", "-c", "sleep 1; echo started > /tmp/ready; exec sleep 100000"],
        "readiness_probe": {"command": ["test", "-f", "/tmp/ready"], "timeout_s": 60}})
    sid = api.create("served:latest")
    r = api.run(sid, ["sh", "-c", "cat /tmp/ready; pgrep -xc sleep"])
    assert r.stdout.split() == [b"started", b"1"], r
    api.delete(sid)


def test_probe_that_never_passes(system, api, tmp_path):
    probe_template(system, tmp_path, "never:latest", {"readiness_probe": {"command": ["false"], "timeout_s": 2}})
    r = api.ok("POST", "/v1/sandboxes", {"template": "never:latest", "resources": {"memory_mib": 256}})
    op = api.wait(r["operation_id"])
    assert op["state"] == "failed" and op["error"]["code"] == "probe_failed", op
    assert api.sandbox(r["sandbox"]["id"])["state"] == "failed"
    api.delete(r["sandbox"]["id"])


def test_content_gone_from_the_node(system, api):
    digest = "0" * 64
    api.ok("POST", "/v1/templates", {"name": "ghost", "tag": "latest", "digest": digest, "size_bytes": 1, "manifest": {}})
    r = api.ok("POST", "/v1/sandboxes", {"template": "ghost:latest"})
    op = api.wait(r["operation_id"])
    assert op["state"] == "failed" and op["error"]["code"] == "template_missing", op
    api.delete(r["sandbox"]["id"])
    api.ok("DELETE", "/v1/templates/ghost")


def test_tags(system, api):
    digest = api.ok("GET", "/v1/templates/seed/tags/latest")["digest"]
    system.cli("template", "tag", "seed:stable", digest)
    assert api.ok("GET", "/v1/templates/seed/tags/stable")["digest"] == digest
    system.cli("template", "rm", "seed:stable")
    assert api.call("GET", "/v1/templates/seed/tags/stable").status == 404
