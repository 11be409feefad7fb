#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rules about the text of files: licence lines, silenced warnings with a reason, nothing of one machine.

- every source file has an SPDX line among its first lines;
- a NOLINT names its check and gives a reason: `NOLINT(check): reason`; the same for shellcheck and pylint;
- no path of a development machine and no package mirror that this machine happens to use;
- a buffer that is freed at the end of its scope has a value from its first line: an early return would free garbage;
- no trailing blanks, no tabs in C, no CR, a newline at the end.
"""
import pathlib
import re
import subprocess
import sys

import csource

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPDX_SUFFIXES = {".c", ".h", ".py", ".sh", ".sql", ".js", ".mjs", ".ts", ".css", ".go", ".build", ".yaml", ".yml"}
SPDX_NAMES = {"do", "run", "meson_options.txt", ".clang-format", ".clang-tidy", "lean.fragment"}
TEXT_SUFFIXES = SPDX_SUFFIXES | {".md", ".txt", ".json", ".html", ".fragment", ".proto", ".toml", ".conf", ""}
BINARY_FOLDERS = ("tests/fuzz/corpus", "tests/fuzz/findings", "tests/unit/data", "tests/data")
NOLINT = re.compile(r"NOLINT(?!BEGIN|END)(?:NEXTLINE)?(?P<rest>.*)")
MACHINE = re.compile(r"/w[o]rk/|/r[o]ot/\.")
BARE_CLEANUP = re.compile(r"_cleanup_buf_ struct buf \w+;")
HOST = re.compile(r"https?://([A-Za-z0-9.-]+)")


def mirror_hosts():
    """Hosts that this machine fetches packages from; a file that names one only works here."""
    texts = []
    for pattern in ("apt/sources.list", "apt/sources.list.d/*", "apt/apt.conf.d/*", "pip.conf", "npmrc"):
        texts += [p.read_text(errors="replace") for p in pathlib.Path("/etc").glob(pattern) if p.is_file()]
    try:
        texts.append(subprocess.run(["npm", "config", "get", "registry"], capture_output=True, text=True, timeout=20,
                                    check=False).stdout)
    except (OSError, subprocess.TimeoutExpired):
        pass
    hosts = {host for text in texts for host in HOST.findall(text)}
    return {host for host in hosts if "." in host}


def check_lines(name, text, hosts, is_c):
    for number, line in enumerate(text.split("\n"), 1):
        silenced = NOLINT.search(line)
        if silenced and not re.match(r"\([\w.,*-]+\): \S", silenced["rest"]) and "check_text" not in name:
            yield f"{name}:{number}: a silenced warning names its check and a reason: NOLINT(check): reason"
        if MACHINE.search(line):
            yield f"{name}:{number}: a path of one machine"
        if any(host in line for host in hosts):
            yield f"{name}:{number}: a package mirror of one machine"
        if line != line.rstrip() and not name.endswith(".md"):
            yield f"{name}:{number}: trailing blanks"
        if is_c and BARE_CLEANUP.search(line):
            yield f"{name}:{number}: a buffer with cleanup and without a value: add = {{0}}"
        if is_c and "\t" in line:
            yield f"{name}:{number}: a tab"


def check_file(path, hosts):
    name = str(path.relative_to(ROOT))
    if path.suffix not in TEXT_SUFFIXES or name.startswith(BINARY_FOLDERS):
        return
    data = path.read_bytes()
    if b"\0" in data:
        return
    text = data.decode(errors="replace")
    needs_spdx = path.suffix in SPDX_SUFFIXES or path.name in SPDX_NAMES
    if needs_spdx and text.strip() and "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.split("\n")[:6]):
        yield f"{name}:1: no SPDX line"
    if text and not text.endswith("\n"):
        yield f"{name}:{text.count(chr(10)) + 1}: no newline at the end"
    yield from check_lines(name, text, hosts, path.suffix in (".c", ".h"))


def main():
    hosts = mirror_hosts()
    files = csource.tracked_files(ROOT)
    findings = [finding for path in files for finding in check_file(path, hosts)]
    for line in findings:
        print(line)
    print(f"text: {len(files)} files, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
