# SPDX-License-Identifier: Apache-2.0
"""Promise: what the documentation shows works. The blocks of the tutorial and the how-tos are run as they stand; every `space` command and `./do` command shown
anywhere exists."""

import os
import re
import subprocess

import pytest

from lib.system import ROOT

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path, language):
    return re.findall(r"```%s\n(.*?)```" % language, path.read_text(), re.S)


def test_tutorial(system, tmp_path):
    script = "set -euo pipefail\n" + "\n".join(blocks(ROOT / "docs" / "tutorial" / "first-sandbox.md", "sh"))
    env = {**os.environ, "SPACE_API_URL": system.api.url, "SPACE_TOKEN": system.api.token}
    p = subprocess.run(["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, timeout=180)
    out = p.stdout.decode()
    assert p.returncode == 0, out + p.stderr.decode()
    lines = out.splitlines()
    assert lines[0].endswith(": succeeded") and lines[1] == lines[0].split(":")[0] and lines[-1] == "succeeded"
    assert "event: process_started" in out and '"exit_code":3' in out.replace(" ", "")


@pytest.mark.parametrize("page", ["suspend-and-wake", "fork", "pools", "policies"])
def test_howto(system, tmp_path, page):
    script = "set -euo pipefail\n" + "\n".join(blocks(ROOT / "docs" / "howto" / (page + ".md"), "sh"))
    env = {**system.env, "PATH": "%s:%s" % (system.out / "bin", os.environ["PATH"])}
    p = subprocess.run(["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, timeout=240)
    print(p.stdout.decode(), p.stderr.decode())
    assert p.returncode == 0
    expected = {"suspend-and-wake": ["where I was", "suspended"], "fork": ["prepared"], "pools": ["WARM", "START"], "policies": ["idle_pause_after_s"]}
    for text in expected[page]:
        assert text in p.stdout.decode()


def test_shown_space_commands_exist(system):
    known = system.cli("help").stdout.decode()
    names = {line.strip().split("  ")[0] for line in known.splitlines() if line.startswith("  ")}
    shown = set()
    for path in DOCS:
        for line in path.read_text().splitlines():
            for m in re.finditer(r"(?:^|[`\s/])space ((?:template |op |snapshots |pool )?[a-z]+)(?=[\s`]|$)", line):
                if "`" in line or line.startswith(("sudo", "space")):
                    shown.add(m.group(1))
    unknown = {s for s in shown if s not in names} - {"in", "and", "is", "for", "of", "to", "help", "itself"}
    assert len(shown) >= 8 and not unknown, unknown


def test_shown_do_commands_exist():
    usage = subprocess.run([str(ROOT / "do"), "help"], capture_output=True, timeout=30)
    known = (usage.stdout + usage.stderr).decode()
    shown = {m for path in DOCS for m in re.findall(r"\./do ([a-z]+)", path.read_text())}
    missing = {s for s in shown if not re.search(r"\b%s\b" % s, known)}
    assert shown and not missing, missing
