# SPDX-License-Identifier: Apache-2.0
"""Other QEMUs than the host's: a copy that differs in a byte nobody reads, and QEMU 10 out of Debian's backports."""

import os
import pathlib
import shutil
import subprocess

HOST = pathlib.Path("/usr/bin/qemu-system-x86_64")
CACHE = pathlib.Path(os.environ.get("SPACE_CACHE_DIR", "/var/cache/space")) / "qemu-backports"
PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data")
SOURCE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s bookworm-backports main\n"


def renamed(folder):
    """The host's QEMU with a byte more at its end: another engine, the same program. Its path."""
    program = folder / "usr" / "bin" / HOST.name
    program.parent.mkdir(parents=True)
    shutil.copy(HOST, program)
    with open(program, "ab") as f:
        f.write(b"\n")
    for name in ("share", "lib"):
        (folder / "usr" / name).symlink_to("/usr/" + name)
    return program


def _mirror():
    """Where this machine gets bookworm from."""
    said = subprocess.run(["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"],
                          capture_output=True, timeout=60).stdout.decode(errors="replace")
    found = [line.split()[1] for line in said.splitlines() if line.startswith("bookworm ")]
    if not found:
        raise OSError("this machine has no package source of bookworm")
    return found[0]


def _fetch(folder):
    for name in ("lists/partial", "cache/archives/partial", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(SOURCE % _mirror())
    apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", *(x for k, v in {
        "Etc::sourcelist": "sources.list", "Etc::sourceparts": "none", "State::lists": "lists", "Cache": "cache"}.items()
        for x in ("-o", "Dir::%s=%s" % (k, folder / v)))]
    for args in (["update"], ["download", *(p + "/bookworm-backports" for p in PACKAGES)]):
        done = subprocess.run(apt + args, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240)
        if done.returncode:
            raise OSError("apt-get %s: %s" % (args[0], done.stdout.decode(errors="replace").strip().splitlines()[-1:]))
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "root")], check=True)
        package.unlink()


def backports():
    """(path of QEMU 10, None), or (None, why there is none)."""
    program = CACHE / "root" / "usr" / "bin" / HOST.name
    try:
        if not program.exists():
            shutil.rmtree(CACHE, ignore_errors=True)
            CACHE.mkdir(parents=True)
            _fetch(CACHE)
        said = subprocess.run([str(program), "--version"], capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as e:
        shutil.rmtree(CACHE, ignore_errors=True)
        return None, "no QEMU 10 of bookworm-backports: %s" % e
    if said.returncode or b"version 10." not in said.stdout:
        return None, "the QEMU of bookworm-backports does not run here: %s" % (said.stderr or said.stdout).decode(errors="replace").strip()
    return program, None
