#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs parts of the tests and counts. Owns .cache/test/, where each part leaves its log and
# results. The very last line of output is `N passed, N failed, N skipped`; the exit status is 0
# only when nothing failed. A part that cannot run counts as one skipped, with its reason.
#
#   test.sh [--list] [full] [PART...]
#
# Environment for the tests: SPACE_TEST_SIZE (small, or full), and where things are: SPACE_TEST_OUT (the
# installation), SPACE_BUILD_DIR, SPACE_CACHE_DIR (kernels and root file systems).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/packages.sh
source scripts/packages.sh
# shellcheck source=scripts/assets.sh
source scripts/assets.sh
# shellcheck source=scripts/test-parts.sh
source scripts/test-parts.sh

readonly RESULTS=$ROOT/.cache/test
export SPACE_TEST_OUT=$ROOT/out SPACE_BUILD_DIR=$ROOT/build SPACE_BUILD=$ROOT/build
export PYTHONPATH=$ROOT/tests PYTHONDONTWRITEBYTECODE=1
# ASan's report is the point of a sanitized run; UBSan has to end the program to be one.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}

total_passed=0 total_failed=0 total_skipped=0
summary=()

part_names() { awk 'NF { print $1 }' <<<"$TEST_PARTS"; }
part_function() { awk -v p="$1" '$1 == p { print $2 }' <<<"$TEST_PARTS"; }

# Adds up what the part left; a part that failed without saying how is one failure.
count_part() {
    local name=$1 status=$2 took=$3 passed=0 failed=0 skipped=0 reason=''
    if [ -f "$PART_DIR/skip-reason" ]; then
        skipped=1
        reason=$(head -n 1 "$PART_DIR/skip-reason")
    else
        read -r passed failed skipped < <("$PYTHON" scripts/count_results.py "$PART_DIR")
        if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
            failed=1
            reason="ended with status $status"
        elif [ $((passed + failed + skipped)) -eq 0 ]; then
            failed=1
            reason="left no results"
        fi
    fi
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failed))
    total_skipped=$((total_skipped + skipped))
    summary+=("$(printf '%-12s %7d %7d %8d %9s  %s' "$name" "$passed" "$failed" "$skipped" "$took" "$reason")")
}

run_part() {
    local name=$1 function status=0 started
    function=$(part_function "$name")
    PART_DIR=$RESULTS/$name
    export PART_DIR
    rm -rf "$PART_DIR"
    mkdir -p "$PART_DIR"
    printf '\n=== %s (size %s)\n' "$name" "$SPACE_TEST_SIZE"
    started=$(now_ms)
    # A subshell without the caller's -e context, so that the first failing command ends the part.
    set +e
    (
        set -e
        "$function"
    ) 2>&1 | tee "$PART_DIR/log"
    status=${PIPESTATUS[0]}
    set -e
    if [ -f "$PART_DIR/skip-reason" ]; then printf 'skipped: %s\n' "$(head -n 1 "$PART_DIR/skip-reason")"; fi
    count_part "$name" "$status" "$(seconds_since "$started")"
}

main() {
    local parts=() argument
    export SPACE_TEST_SIZE=${SPACE_TEST_SIZE:-small}
    for argument in "$@"; do
        case $argument in
        --list)
            awk 'NF' <<<"$TEST_PARTS"
            return 0
            ;;
        full) SPACE_TEST_SIZE=full ;;
        *)
            [ -n "$(part_function "$argument")" ] || die "no part $argument; there are: $(part_names | xargs)"
            parts+=("$argument")
            ;;
        esac
    done
    PARTS_NAMED=no
    [ ${#parts[@]} -eq 0 ] || PARTS_NAMED=yes
    export PARTS_NAMED
    [ ${#parts[@]} -gt 0 ] || mapfile -t parts < <(part_names)

    for argument in "${parts[@]}"; do run_part "$argument"; done

    printf '\n%-12s %7s %7s %8s %9s\n' part passed failed skipped time
    printf '%s\n' "${summary[@]}"
    printf '\n%d passed, %d failed, %d skipped\n' "$total_passed" "$total_failed" "$total_skipped"
    [ "$total_failed" -eq 0 ]
}

main "$@"
