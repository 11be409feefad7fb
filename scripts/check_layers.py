#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A folder of src/ includes only itself and those above it in src/meson.build; programs do not include each other.

Exceptions are rows of ALLOWED, each with its reason.
"""
import pathlib
import re
import sys

import csource

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PROGRAMS = ("guest", "broker", "vm", "node", "gateway", "control", "egress", "keyholder", "shim", "cli")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')

# (folder that includes, header): why. A header here is a contract between two programs and pulls in no code.
ALLOWED = {
    ("broker", "vm/vm_config.h"): "the broker checks the configuration it starts a space-vm with",
    ("node", "vm/vm_config.h"): "the node writes that configuration into its request",
}


def layer_order():
    """The folders in the order of src/meson.build."""
    text = (SRC / "meson.build").read_text()
    return re.findall(r"^subdir\('([\w/]+)'\)", text, re.MULTILINE)


def problem(folder, header, order):
    """Why a file of this folder may not include this header, or None."""
    target = header.split("/", 1)[0]
    if "/" not in header:
        return f'"{header}": write the folder too, as "{folder}/{header}"'
    if not (SRC / header).is_file():
        return None if target not in order else f'"{header}" does not exist'
    if target == folder or (folder, header) in ALLOWED:
        return None
    if target not in order:
        return f'"{header}": {target} is no folder of src/meson.build'
    if target in PROGRAMS:
        return f'"{header}": a program is not included by others'
    if order.index(target) > order.index(folder):
        return f'"{header}": {target} is below {folder}'
    return None


def check_file(path, order):
    folder = path.relative_to(SRC).parts[0]
    if folder not in order:
        yield f"{path.relative_to(ROOT)}:1: {folder} is no folder of src/meson.build"
        return
    for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
        match = INCLUDE.match(line)
        why = match and problem(folder, match.group(1), order)
        if why:
            yield f"{path.relative_to(ROOT)}:{number}: {why}"


def main():
    order = layer_order()
    files = csource.tracked_files(ROOT, "src/*.c", "src/*.h")
    findings = [finding for path in files for finding in check_file(path, order)]
    for line in findings:
        print(line)
    print(f"layers: {len(files)} files in {len(order)} folders, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
