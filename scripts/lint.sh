#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every check over the tree and counts. A check prints its findings one a line as
# `file:line: what` and ends with status 1 when there are any. Limits only ever go down.
#
#   lint.sh [--fix] [--counts FILE] [CHECK...]
#
# --fix lets a check that can repair things do so (format). --counts writes "passed failed skipped".
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

# name, command; LINT_FIX (yes or no) and LINT_BUILDDIR (default build) are in the environment
readonly CHECKS='
format   scripts/lint-format.sh
size     /usr/bin/python3 scripts/check_size.py
layers   /usr/bin/python3 scripts/check_layers.py
text     /usr/bin/python3 scripts/check_text.py
shell    scripts/lint-shell.sh
generated scripts/lint-generated.sh
tidy     scripts/lint-tidy.sh
'

check_names() { awk 'NF { print $1 }' <<<"$CHECKS"; }
check_command() { awk -v c="$1" '$1 == c { $1 = ""; print substr($0, 2) }' <<<"$CHECKS"; }

passed=0 failed=0 skipped=0

run_check() {
    local name=$1 command status=0 started
    read -ra command <<<"$(check_command "$name")"
    started=$(now_ms)
    "${command[@]}" || status=$?
    case $status in
    0) passed=$((passed + 1)) && printf 'ok       %-9s (%s)\n' "$name" "$(seconds_since "$started")" ;;
    77) skipped=$((skipped + 1)) && printf 'skipped  %-9s\n' "$name" ;;
    *) failed=$((failed + 1)) && printf 'FAILED   %-9s (%s)\n' "$name" "$(seconds_since "$started")" ;;
    esac
}

main() {
    local checks=() counts='' name
    export LINT_FIX=no
    while [ $# -gt 0 ]; do
        case $1 in
        --fix) LINT_FIX=yes ;;
        --counts) counts=${2:?--counts needs a file} && shift ;;
        *)
            [ -n "$(check_command "$1")" ] || die "no check $1; there are: $(check_names | xargs)"
            checks+=("$1")
            ;;
        esac
        shift
    done
    [ ${#checks[@]} -gt 0 ] || mapfile -t checks < <(check_names)
    for name in "${checks[@]}"; do run_check "$name"; done
    if [ -n "$counts" ]; then printf '%d %d %d\n' $passed $failed $skipped >"$counts"; fi
    printf 'lint: %d passed, %d failed, %d skipped\n' $passed $failed $skipped
    [ $failed -eq 0 ]
}

main "$@"
