#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# C sources look as .clang-format says. With LINT_FIX=yes they are changed, otherwise the first
# difference of each file is shown. Arguments: files, default all.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

main() {
    local files=("$@") bad
    command -v clang-format >/dev/null || {
        echo "clang-format is not installed"
        exit 77
    }
    if [ ${#files[@]} -eq 0 ]; then
        mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.c' '*.h' | while read -r f; do
            if [ -f "$f" ]; then printf '%s\n' "$f"; fi
        done)
    fi
    [ ${#files[@]} -gt 0 ] || exit 0
    if [ "${LINT_FIX:-no}" = yes ]; then
        clang-format -i "${files[@]}"
        exit 0
    fi
    bad=$(printf '%s\0' "${files[@]}" | xargs -0 -n 64 clang-format --dry-run --ferror-limit=1 2>&1 |
        sed -n 's/^\([^ ]*:[0-9]*\):[0-9]*: .*Wclang-format-violations.*/\1: not formatted (.\/do lint --fix format)/p' |
        sort -u)
    if [ -n "$bad" ]; then
        printf '%s\n' "$bad"
        exit 1
    fi
}

main "$@"
