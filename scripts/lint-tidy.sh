#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# clang-tidy over every C file of src/ that is compiled. Owns .cache/tidy/: a file whose own text, included headers,
# compile command and .clang-tidy have not changed since it was clean is not looked at again.
# Arguments: files, default all.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

main() {
    local builddir=${TIDY_BUILDDIR:-build}
    have clang-tidy || {
        echo "clang-tidy is not installed"
        exit 77
    }
    if [ ! -f "$builddir/build.ninja" ]; then
        meson setup "$builddir" --prefix="$ROOT/out" --libexecdir=libexec -Db_lundef=false >/dev/null
    fi
    # Brings compile_commands.json up to date and makes the generated sources.
    ninja -C "$builddir" --quiet build.ninja
    exec "$PYTHON" scripts/tidy.py --builddir "$builddir" "$@"
}

main "$@"
