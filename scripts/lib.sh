# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# What every script here shares: messages, timed steps, the state directory. Sourced, with
# ROOT set to the top of the tree.

STATE_DIR=${SPACE_STATE_DIR:-/var/lib/space}
PYTHON=/usr/bin/python3
export STATE_DIR PYTHON

say() { printf '%s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

require_root() {
    [ "$(id -u)" -eq 0 ] || die "this needs root: it makes namespaces, mounts and devices"
}

now_ms() { date +%s%3N; }

seconds_since() {
    local ms=$(($(now_ms) - $1))
    printf '%d.%01d s' $((ms / 1000)) $((ms % 1000 / 100))
}

# step "what happens" COMMAND...: says what starts and how long it took; fails with the command.
step() {
    local what=$1 started
    shift
    started=$(now_ms)
    say "==> $what"
    "$@" || die "$what failed (exit status $?)"
    say "    $what: $(seconds_since "$started")"
}
