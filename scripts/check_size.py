#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Files and functions stay small. The limits only ever go down.

A function that has to be longer says so at the spot: `LINT: long because ...` in the comment before it.
Arguments: files, default every C and Python file, shell script and SQL file.
"""
import pathlib
import re
import sys

import csource

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE_LINES, FILE_LINES_WARN = 1000, 600
FUNCTION_LINES, FUNCTION_COMPLEXITY = 100, 20
PATTERNS = ("*.c", "*.h", "*.py", "*.sh", "do", "*.sql", "*.js", "*.mjs", "*.css")
EXCUSE = re.compile(r"LINT: long because \w")


def is_excused(lines, first):
    """Looks at the comment right above the line a function starts on."""
    return any(EXCUSE.search(line) for line in lines[max(0, first - 6):first])


def check_functions(name, text):
    lines = text.split("\n")
    for function, first, last, body in csource.functions(csource.strip(text)):
        if is_excused(lines, first):
            continue
        length = last - first + 1
        if length > FUNCTION_LINES:
            yield f"{name}:{first}: {function}() has {length} lines, at most {FUNCTION_LINES}"
        found = csource.complexity(body)
        if found > FUNCTION_COMPLEXITY:
            yield f"{name}:{first}: {function}() has complexity {found}, at most {FUNCTION_COMPLEXITY}"


def main():
    files = [pathlib.Path(a).resolve() for a in sys.argv[1:]] or csource.tracked_files(ROOT, *PATTERNS)
    findings, warnings, functions, c_files = [], [], 0, 0
    for path in files:
        name = path.relative_to(ROOT)
        text = path.read_text(errors="replace")
        lines = text.count("\n")
        if lines > FILE_LINES:
            findings.append(f"{name}:1: {lines} lines, at most {FILE_LINES}")
        elif lines > FILE_LINES_WARN:
            warnings.append(f"{name}:1: note: {lines} lines, better below {FILE_LINES_WARN}")
        if path.suffix in (".c", ".h"):
            c_files += 1
            functions += sum(1 for _ in csource.functions(csource.strip(text)))
            findings.extend(check_functions(name, text))
    for line in warnings + findings:
        print(line)
    print(f"size: {len(files)} files, {functions} functions in {c_files} C files, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
