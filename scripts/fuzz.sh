#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the fuzz targets with clang and runs each for a while, as many at once as there are
# processors. Owns build-fuzz/ and .cache/fuzz/ (the corpus that grows, and logs). An input that breaks a
# target lands in tests/fuzz/findings/<target>/, where every later test run replays it.
#
#   fuzz.sh [SECONDS] [TARGET...]
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

readonly BUILD=$ROOT/build-fuzz CACHE=$ROOT/.cache/fuzz

configure() {
    if [ -f "$BUILD/build.ninja" ]; then return; fi
    say "==> configuring build-fuzz"
    rm -rf "$BUILD"
    CC=clang meson setup "$BUILD" -Dwerror=false -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false \
        -Dc_args=-fsanitize=fuzzer-no-link >"$CACHE/configure.log" 2>&1 || {
        tail -n 20 "$CACHE/configure.log" >&2
        die "meson setup failed"
    }
}

all_targets() {
    ninja -C "$BUILD" -t targets all | sed -n 's|^tests/fuzz/fuzz_\([a-z0-9_]*\): .*LINKER$|\1|p' | sort -u
}

# Runs in a process of its own (xargs below).
run_target() {
    local name=$1 seconds=$2 corpus=tests/fuzz/corpus/$1 findings=tests/fuzz/findings/$1 grown=$CACHE/$1
    local log=$CACHE/$1.log status=0 before after
    mkdir -p "$grown" "$findings"
    before=$(find "$findings" -type f | wc -l)
    "$BUILD/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$findings/" "$grown" "$corpus" >"$log" 2>&1 || status=$?
    after=$(find "$findings" -type f | wc -l)
    rmdir "$findings" 2>/dev/null || true
    printf '%-20s %12s executions  %6s inputs  %d new findings\n' "$name" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$(find "$grown" -type f | wc -l)" $((after - before))
    if [ "$status" -ne 0 ] || [ "$after" -ne "$before" ]; then
        grep -E -A12 '^==[0-9]+==|broken promise|runtime error' "$log" | head -n 30 || tail -n 5 "$log"
        return 1
    fi
}

main() {
    local seconds=60 targets=() name
    if [[ ${1:-} =~ ^[0-9]+$ ]]; then
        seconds=$1
        shift
    fi
    mkdir -p "$CACHE"
    configure
    mapfile -t targets < <(all_targets)
    if [ $# -gt 0 ]; then targets=("$@"); fi
    for name in "${targets[@]}"; do [ -d "tests/fuzz/corpus/$name" ] || die "target $name has no corpus"; done
    say "==> building ${#targets[@]} targets"
    ninja -C "$BUILD" --quiet "${targets[@]/#/tests/fuzz/fuzz_}" >&2 || die "compiling failed"
    say "==> $seconds seconds each, $(nproc) at once"
    if printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} "$0" --target {} "$seconds"; then
        printf '%d targets, no findings\n' ${#targets[@]}
    else
        die "some targets have findings; logs are in .cache/fuzz"
    fi
}

case ${1:-} in
--target) run_target "$2" "$3" ;;
*) main "$@" ;;
esac
