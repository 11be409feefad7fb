#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The demonstration: a template, a VM of its own for one command, then the same step by step,
# and everything that was started is stopped. `./do demo` has built and installed before.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

SEED=${SPACE_CACHE_DIR:-/var/cache/space}/seed
started_here=no
sandbox=

space() { out/bin/space --state-dir "$STATE_DIR" "$@"; }

# Words as one would type them.
quoted() {
    local word
    for word in "$@"; do
        if [[ $word =~ ^[A-Za-z0-9_./:=@%+-]+$ ]]; then printf ' %s' "$word"; else printf ' %s' "${word@Q}"; fi
    done
}

# Shows a command, runs it, and says how long it took.
show() {
    local started
    started=$(now_ms)
    printf '\n$ space%s\n' "$(quoted "$@")"
    space "$@" || die "space $1 failed (exit status $?)"
    say "    ($(seconds_since "$started"))"
}

cleanup() {
    local status=$?
    trap - EXIT
    if [ -n "$sandbox" ]; then space rm "$sandbox" >/dev/null 2>&1 || true; fi
    if [ $started_here = yes ]; then
        say ""
        say "==> stopping the system again (space down)"
        space down >&2 || {
            say "space down failed; logs are in $STATE_DIR/log"
            status=1
        }
    fi
    exit $status
}

is_running() { space ls >/dev/null 2>&1; }

start_system() {
    if is_running; then
        say "==> the system is running already; it will be left running"
        return
    fi
    started_here=yes
    step "starting the system: database, broker, node, control, gateway" space up
}

make_seed_template() {
    if space template get seed >/dev/null 2>&1; then return; fi
    step "building template seed:latest" space template build seed:latest --from-dir "$SEED/rootfs" --manifest "$SEED/manifest.json"
}

main() {
    local started
    started=$(now_ms)
    trap cleanup EXIT
    trap 'exit 130' INT TERM
    start_system
    make_seed_template

    say ""
    say "==> one command in a virtual machine of its own. The first one boots the template; later ones start from its snapshot."
    show run seed:latest -- python3 -c 'print(6*7)'
    # shellcheck disable=SC2016 # the guest's shell expands it
    show run seed:latest -- sh -c 'echo "kernel $(uname -r), $(nproc) cpu, $(id -un)@$(hostname)"'

    say ""
    say "==> the same step by step: a sandbox that stays, with files that stay in it"
    sandbox=$(space create seed:latest --name demo)
    printf '\n$ space create seed:latest --name demo\n%s\n' "$sandbox"
    show exec "$sandbox" -- sh -c 'echo "written inside" > note.txt'
    show exec "$sandbox" -- cat note.txt
    show ls
    show rm "$sandbox"
    sandbox=
    say ""
    say "==> done in $(seconds_since "$started"). To keep it running: ./do up, then out/bin/space help"
}

main "$@"
