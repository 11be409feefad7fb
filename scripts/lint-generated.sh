#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The pages that are printed from tables in the code are what the code prints. With LINT_FIX=yes they
# are written anew. Builds the one program that prints them.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

# what space-describe is asked for, and the page
readonly PAGES='
limits         docs/reference/limits.md
errors         docs/reference/errors.md
configuration  docs/reference/configuration.md
states         spec/states.md
'

main() {
    local builddir=${LINT_BUILDDIR:-build} topic page bad=0
    scripts/build.sh --configure --builddir "$builddir"
    ninja -C "$builddir" --quiet src/model/space-describe >/dev/null
    while read -r topic page; do
        if [ -z "$topic" ] || "$builddir/src/model/space-describe" "$topic" | cmp -s - "$page"; then continue; fi
        if [ "${LINT_FIX:-no}" = yes ]; then
            mkdir -p "$(dirname "$page")"
            "$builddir/src/model/space-describe" "$topic" >"$page"
            printf 'wrote %s\n' "$page"
        else
            printf '%s:1: is not what the code prints (./do lint --fix generated)\n' "$page"
            bad=1
        fi
    done <<<"$PAGES"
    return $bad
}

main "$@"
