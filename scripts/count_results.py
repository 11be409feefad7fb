#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what a part of the tests left in its folder: prints "passed failed skipped".

Reads every JUnit file (*.xml, from meson or pytest) and a file `counts` with the three numbers.
A suite that ended early (meson says so by an error of the suite itself) counts as a failure.
"""
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count_case(case):
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return (0, 1, 0)
    if "skipped" in kinds:
        return (0, 0, 1)
    return (1, 0, 0)


def count_suite(suite):
    total = [0, 0, 0]
    for case in suite.iter("testcase"):
        total = [a + b for a, b in zip(total, count_case(case))]
    declared = int(suite.get("failures") or 0) + int(suite.get("errors") or 0)
    total[1] += max(0, declared - total[1])
    return total


def count_folder(folder):
    total = [0, 0, 0]
    for path in sorted(folder.glob("*.xml")):
        try:
            root = ElementTree.parse(path).getroot()
        except ElementTree.ParseError:
            counts = [[0, 1, 0]]
        else:
            suites = [root] if root.tag == "testsuite" else root.findall("testsuite")
            counts = [count_suite(suite) for suite in suites]
        for one in counts:
            total = [a + b for a, b in zip(total, one)]
    counts_file = folder / "counts"
    if counts_file.exists():
        total = [a + int(b) for a, b in zip(total, counts_file.read_text().split())]
    return total


def main():
    print(*count_folder(pathlib.Path(sys.argv[1])))


if __name__ == "__main__":
    main()
