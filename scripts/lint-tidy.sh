#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# clang-tidy over every C file of src/ that is compiled. Owns the tidy folder of the cache: a file whose own text, included headers,
# compile command and .clang-tidy have not changed since it was clean is not looked at again.
# Arguments: files, default all.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

main() {
    local builddir=${LINT_BUILDDIR:-build}
    have clang-tidy || {
        echo "clang-tidy is not installed"
        exit 77
    }
    scripts/build.sh --configure --builddir "$builddir"
    exec "$PYTHON" scripts/tidy.py --builddir "$builddir" "$@"
}

main "$@"
