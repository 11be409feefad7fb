#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs shellcheck over every shell script of the tree, those without an ending included.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

shell_scripts() {
    local f line
    git ls-files --cached --others --exclude-standard | while read -r f; do
        [ -f "$f" ] || continue
        line=
        IFS= read -r line <"$f" 2>/dev/null || true
        case $f:$line in
        *.sh:* | *:'#!'*bash | *:'#!'*/sh) printf '%s\n' "$f" ;;
        esac
    done
}

main() {
    command -v shellcheck >/dev/null || {
        echo "shellcheck is not installed"
        exit 77
    }
    shell_scripts 2>/dev/null | xargs -r -d '\n' -n 8 -P "$(nproc)" shellcheck --external-sources --format=gcc
}

main "$@"
