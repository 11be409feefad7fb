#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the compile commands of a build, as many at once as there are processors.

What was clean is remembered under a hash of everything the result depends on: in $SPACE_CACHE_DIR/tidy, which all checkouts
of a machine share, else in .cache/tidy. A warning is a failure; a file clang cannot parse is one too.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = pathlib.Path(os.environ.get("SPACE_CACHE_DIR", "/var/cache/space"))
CACHE = (SHARED if os.access(SHARED, os.W_OK) else ROOT / ".cache") / "tidy"
VERSION = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=False).stdout
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
FINDING = re.compile(r"^(?P<path>[^ :]+):(?P<line>\d+):\d+: (?P<kind>warning|error): (?P<text>.*)$")
TIDY = ["clang-tidy", "--quiet", "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Qunused-arguments"]


def closure(path, seen):
    """The file and every header of this tree that it includes, however deep."""
    if path in seen or not path.is_file():
        return
    seen.add(path)
    for name in INCLUDE.findall(path.read_text(errors="replace")):
        for base in (path.parent, ROOT / "src", ROOT / "tests" / "unit", ROOT / "tests" / "fuzz"):
            if (base / name).is_file():
                closure((base / name).resolve(), seen)
                break


def fingerprint(path, command):
    digest = hashlib.sha256(VERSION)
    files = set()
    closure(path, files)
    files |= {ROOT / ".clang-tidy", ROOT / "src" / "base" / "banned.h"}
    for name in sorted(files):
        digest.update(str(name.relative_to(ROOT)).encode() + b"\0" + name.read_bytes() + b"\0")
    digest.update(command.replace(str(ROOT), "").encode())
    return digest.hexdigest()


def findings_of(output, builddir):
    found = []
    for line in output.splitlines():
        match = FINDING.match(line)
        if match:
            path = os.path.relpath(os.path.join(builddir, match["path"]), ROOT)
            found.append(f"{path}:{match['line']}: {match['text']}")
    return found


def check(entry, builddir):
    path = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
    stamp = CACHE / fingerprint(path, entry["command"])
    if stamp.exists():
        return path, [], True
    done = subprocess.run(TIDY + ["-p", str(builddir), str(path)], capture_output=True, text=True, check=False)
    found = findings_of(done.stdout + done.stderr, builddir)
    if done.returncode != 0 and not found:
        found = [f"{path.relative_to(ROOT)}:1: clang-tidy failed: {done.stderr.strip()[-300:]}"]
    if not found:
        stamp.touch()
    return path, found, False


def select(entries, files):
    """One entry for each source of src/ (a file may be compiled into several programs). Tests are left out: they are
    compiled with every warning and run under sanitizers."""
    wanted = {pathlib.Path(name).resolve() for name in files}
    chosen = {}
    for entry in entries:
        path = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        in_tree = path.is_relative_to(ROOT / "src")
        if in_tree and path.suffix == ".c" and path.is_file() and (not wanted or path in wanted):
            chosen.setdefault(path, entry)
    return [chosen[path] for path in sorted(chosen)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--builddir", default="build")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    builddir = (ROOT / args.builddir).resolve()
    CACHE.mkdir(parents=True, exist_ok=True)
    entries = select(json.loads((builddir / "compile_commands.json").read_text()), args.files)
    findings, cached = set(), 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for _, found, was_cached in pool.map(lambda e: check(e, builddir), entries):
            findings.update(found)
            cached += was_cached
    for line in sorted(findings):
        print(line)
    print(f"tidy: {len(entries)} files, {cached} unchanged since they were clean, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
