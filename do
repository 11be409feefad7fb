#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The one entry point: everything a person or CI does with this tree is a command here.
# This file only reads the command line; the work is in scripts/. Run it without
# arguments for the list.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export ROOT
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/packages.sh
source scripts/packages.sh
# shellcheck source=scripts/assets.sh
source scripts/assets.sh

usage() {
    cat <<'END'
usage: ./do COMMAND

  demo                  install what is missing, build, start the system, run a command in a fresh VM, clean up
  up | down             start the system on this machine and leave it running | stop it
  build [--sanitize] [--builddir DIR]
                        compile, and install into ./out (a sanitized build: into its build directory)
  test [PART... | full] every part at a sample size; parts by name; or everything at acceptance size
  test --list           the parts
  lint [--fix] [CHECK...]
                        style, static analysis, sizes, layers, text rules; --fix formats the C files
  fuzz [SECONDS] [TARGET...]
                        run the fuzzers, 60 seconds a target
  bench NAME [--json FILE]
                        run a benchmark of tests/bench
  kernel [stock|lean]   fetch the stock guest kernel or build the lean one (20 CPU minutes) into the cache
  doctor                what this machine has and lacks
  packages [GROUP]      install a group of packages, or list the groups

State is in $SPACE_STATE_DIR (default /var/lib/space); kernels and root file systems that are slow to get in
$SPACE_CACHE_DIR (default /var/cache/space). Anything installed is named first.
END
}

cmd_build() {
    ensure_packages build
    scripts/build.sh "$@"
}

# Everything `space up` needs, in order; each step does nothing when it is done already.
prepare_system() {
    require_root
    ensure_packages build runtime
    step "building" scripts/build.sh
    ensure_assets
    copy_kernels "$STATE_DIR"
}

cmd_up() {
    prepare_system
    step "starting the system" out/bin/space --state-dir "$STATE_DIR" up "$@"
}

cmd_down() {
    require_root
    [ -x out/bin/space ] || die "nothing is built here"
    out/bin/space --state-dir "$STATE_DIR" down "$@"
}

cmd_test() {
    ensure_packages build test
    exec scripts/test.sh "$@"
}

cmd_lint() {
    ensure_packages build lint
    exec scripts/lint.sh "$@"
}

cmd_fuzz() {
    ensure_packages build fuzz
    exec scripts/fuzz.sh "$@"
}

cmd_bench() {
    local name=${1:-}
    if [ -z "$name" ] || [ ! -f "tests/bench/$name.py" ]; then
        die "benchmarks: $(find tests/bench -maxdepth 1 -name '[a-z]*.py' -printf '%f\n' 2>/dev/null | sed 's/\.py$//' | sort | xargs)"
    fi
    shift
    ensure_packages build runtime test
    scripts/build.sh
    ensure_assets
    export PYTHONPATH=$ROOT/tests PYTHONDONTWRITEBYTECODE=1
    exec /usr/bin/python3 "tests/bench/$name.py" "$@"
}

cmd_kernel() {
    case ${1:-lean} in
    stock) kernel/fetch-stock.sh "$SPACE_CACHE_DIR/kernels/stock" ;;
    lean) kernel/build-lean.sh "$SPACE_CACHE_DIR/kernels/lean" ;;
    *) die "kernel profiles: stock lean" ;;
    esac
}

cmd_packages() {
    if [ $# -eq 0 ]; then list_packages; else ensure_packages "$@"; fi
}

main() {
    local command=${1:-help}
    [ $# -eq 0 ] || shift
    case $command in
    build | up | down | test | lint | fuzz | bench | kernel | packages) "cmd_$command" "$@" ;;
    demo)
        prepare_system # no && behind it: that would switch errexit off inside
        exec scripts/demo.sh "$@"
        ;;
    doctor) exec scripts/doctor.sh "$@" ;;
    help | -h | --help) usage ;;
    *)
        usage >&2
        die "no command $command"
        ;;
    esac
}

main "$@"
