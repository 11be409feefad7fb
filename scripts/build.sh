#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Configures, compiles and installs. Owns the build directory and what it installs.
#
#   build.sh [--sanitize[=thread]] [--builddir DIR] [--no-install | --configure]
#
# The plain build goes to build/ and is installed into out/; the one with ASan and UBSan goes
# to build-sanitize/ and is installed into build-sanitize/out, the one with TSan likewise (build-thread/).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

# Runs ninja; shows what it said only when that is worth reading.
run_ninja() {
    local builddir=$1 out status=0
    shift
    out=$(ninja -C "$builddir" --quiet "$@" 2>&1) || status=$?
    if [ $status -ne 0 ]; then
        printf '%s\n' "$out" | tail -n 60 >&2
        die "ninja failed in $builddir"
    fi
    printf '%s\n' "$out" | grep -E -A6 'warning:' >&2 || true
}

main() {
    local builddir='' sanitize=none prefix=$ROOT/out install=yes werror=true only_configure=no
    while [ $# -gt 0 ]; do
        case $1 in
        --sanitize) sanitize=address,undefined ;;
        --sanitize=thread) sanitize=thread ;;
        --builddir) builddir=${2:?--builddir needs a directory} && shift ;;
        --no-install) install=no ;;
        --configure) only_configure=yes ;;
        *) die "usage: build [--sanitize] [--builddir DIR] [--no-install | --configure]" ;;
        esac
        shift
    done
    if [ -z "$builddir" ]; then
        builddir=build
        if [ $sanitize = thread ]; then
            builddir=build-thread
        elif [ $sanitize != none ]; then
            builddir=build-sanitize
        fi
    fi
    if [ $sanitize != none ]; then
        prefix=$(realpath -m "$builddir")/out
        werror=false # gcc warns wrongly under sanitizers
    fi

    if [ ! -f "$builddir/build.ninja" ]; then
        say "    configuring $builddir"
        rm -rf "$builddir/meson-private" # of a configuration that failed half way
        meson setup "$builddir" --prefix="$prefix" --libexecdir=libexec -Db_sanitize=$sanitize -Db_lundef=false \
            -Dwerror=$werror \
            >"$builddir.log" 2>&1 || {
            tail -n 30 "$builddir.log" >&2
            rm -f "$builddir.log"
            die "meson setup failed"
        }
        rm -f "$builddir.log"
    fi
    run_ninja "$builddir" build.ninja # configures again when a meson.build has changed
    if [ $only_configure = yes ]; then return; fi
    run_ninja "$builddir"
    if [ $install = yes ]; then
        meson install -C "$builddir" --no-rebuild --quiet >&2 || die "installing failed"
        say "    installed into ${prefix#"$ROOT"/}"
    fi
}

main "$@"
