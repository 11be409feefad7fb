#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns migrations/NNNN_name.sql into the C table store_migrations: embed_migrations.py OUTPUT FILE..."""
import hashlib
import os
import sys


def literal(text):
    lines = []
    for line in text.splitlines(keepends=True):
        escaped = line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append('     "' + escaped + '"')
    return "\n".join(lines)


def main():
    output, files = sys.argv[1], sorted(sys.argv[2:], key=os.path.basename)
    rows = []
    for number, path in enumerate(files, 1):
        name = os.path.basename(path)
        if int(name.split("_")[0]) != number:
            sys.exit(f"{name}: the next migration has number {number:04}")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        checksum = hashlib.sha256(text.encode()).hexdigest()
        rows.append(f'    {{{number}, "{name}", "{checksum}",\n{literal(text)}}},')
    with open(output, "w", encoding="utf-8") as f:
        f.write('#include "store/migrate.h"\n\nconst struct migration store_migrations[] = {\n')
        f.write("\n".join(rows))
        f.write(f"\n}};\nconst size_t store_migrations_count = {len(rows)};\n")


main()
