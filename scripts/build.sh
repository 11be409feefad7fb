#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Configures, compiles and installs. Owns the build directory and what it installs.
#
#   build.sh [--sanitize] [--builddir DIR] [--no-install]
#
# The plain build goes to build/ and is installed into out/; the one with ASan and UBSan goes
# to build-sanitize/ and is installed into build-sanitize/out.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

main() {
    local builddir='' sanitize=none prefix=$ROOT/out install=yes werror=true
    while [ $# -gt 0 ]; do
        case $1 in
        --sanitize) sanitize=address,undefined ;;
        --builddir) builddir=${2:?--builddir needs a directory} && shift ;;
        --no-install) install=no ;;
        *) die "usage: build [--sanitize] [--builddir DIR] [--no-install]" ;;
        esac
        shift
    done
    if [ -z "$builddir" ]; then
        builddir=build
        [ $sanitize = none ] || builddir=build-sanitize
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
    ninja -C "$builddir" --quiet >&2 || die "compiling failed"
    if [ $install = yes ]; then
        meson install -C "$builddir" --no-rebuild --quiet >&2 || die "installing failed"
        say "    installed into ${prefix#"$ROOT"/}"
    fi
}

main "$@"
