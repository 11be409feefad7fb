#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Boots the emulated machine with SVM in which the system runs on KVM, shows its console, and fetches the results.

    machine.py IMAGE_DIR RESULTS_DIR

IMAGE_DIR is what scripts/kvm-image.sh made. RESULTS_DIR gets console.log, pytest.xml and the logs of the system. No network, no
KVM of this host, nothing shared with it: three disks go in (the root file system, its changes thrown away; this tree's files;
room for the results)."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(os.environ.get("SPACE_TEST_OUT", ROOT / "out"))
CACHE = pathlib.Path(os.environ.get("SPACE_CACHE_DIR", "/var/cache/space"))
QEMU = "/usr/bin/qemu-system-x86_64"
DEADLINE_S, INNER_DEADLINE_S = 1200, 1080  # a busy host is four times slower than an idle one
# With a second one, a processor of a QEMU before 8.1 may go on forever with a translation of code that the other was just writing
# (docs/decisions/0013): Linux rewrites its code while it runs, and the first memory control group does it where every
# allocation passes. Two on one thread in turn: seen once, on a busy host, a guest within fell silent; one does as well.
PROCESSORS = 1
# A processor that hangs all the same ends the machine, with what it did on the console.
KERNEL = "console=ttyS0 loglevel=3 panic=-1 softlockup_panic=1 watchdog_thresh=60 mitigations=off deadline_s=%d" % INNER_DEADLINE_S
RESULTS_MIB, MEMORY_MIB = 64, 3072


def stage(source, target):
    """With owners and modes; hard links where they go, copies elsewhere."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["cp", "-al", source, target], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", source, target], stdin=subprocess.DEVNULL, check=True)


def make_files_disk(work):
    """What the machine gets of this tree and of the cache."""
    tree, disk = work / "tree", work / "files.ext4"
    stage(OUT, tree / "out")
    for part in ("tests/lib", "tests/kvm", "templates"):
        stage(ROOT / part, tree / part)
    stage(CACHE / "seed" / "rootfs", tree / "cache" / "seed" / "rootfs")
    for profile in ("stock", "lean"):
        if (CACHE / "kernels" / profile / "kernel.json").exists():
            stage(CACHE / "kernels" / profile, tree / "cache" / "kernels" / profile)
    size = int(subprocess.run(["du", "-sm", tree], check=True, capture_output=True, text=True).stdout.split()[0])
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-i", "8192", "-d", tree, disk,
                    "%dM" % (size * 5 // 4 + 64)], check=True, stdin=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return disk


def command(image, files, results, console):
    def disk(path, *more):
        return ["-drive", ",".join(["if=virtio,format=raw,file=%s" % path, *more])]

    return [
        QEMU, "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "EPYC,+svm,+npt", "-smp", str(PROCESSORS), "-m", str(MEMORY_MIB),
        "-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot", "-serial", "file:%s" % console,
        "-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initramfs"),
        "-append", KERNEL,
        *disk(image / "root.ext4", "snapshot=on"), *disk(files, "readonly=on"), *disk(results, "cache=unsafe"),
    ]


def watch(process, console, deadline):
    """Shows what the machine writes until it ends; False when it had to be ended."""
    with open(console, "rb") as f:
        while True:
            ended = process.poll() is not None
            for line in f.readlines():
                sys.stdout.write(line.decode(errors="replace").replace("\r", ""))
            sys.stdout.flush()
            if ended:
                return True
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                return False
            time.sleep(0.2)


def fetch_results(disk, target):
    try:
        with tarfile.open(disk, "r:") as archive:
            archive.extractall(target)
    except tarfile.TarError as e:
        print("the machine left no results: %s" % e)


def run(image, target, work):
    began = time.monotonic()
    files, results, console = make_files_disk(work), work / "results", target / "console.log"
    results.touch()
    os.truncate(results, RESULTS_MIB << 20)
    console.touch()
    print("kvm: an emulated machine (%s, EPYC with svm and npt, %d processor, %d MiB) on this host%s; files ready in %.1f s" % (
        pathlib.Path(QEMU).name, PROCESSORS, MEMORY_MIB, ", whose own /dev/kvm is not used" if os.path.exists("/dev/kvm") else "",
        time.monotonic() - began), flush=True)
    with open(target / "qemu.log", "wb") as log:
        process = subprocess.Popen(command(image, files, results, console), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env={**os.environ, "TMPDIR": str(work)})
    try:
        finished = watch(process, console, began + DEADLINE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    print("kvm: the machine %s after %.0f s" % ("ended" if finished else "was ended, not ready,", time.monotonic() - began))
    print((target / "qemu.log").read_text(errors="replace"), end="")
    fetch_results(results, target)
    return finished and (target / "pytest.xml").exists()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("image", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".run.", dir=args.image) as work:
        sys.exit(0 if run(args.image.resolve(), args.results.resolve(), pathlib.Path(work).resolve()) else 1)


if __name__ == "__main__":
    main()
