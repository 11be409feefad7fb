#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What this machine has and lacks, before anything is built. Changes nothing. The installed
# `space doctor` looks closer at what running needs.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/packages.sh
source scripts/packages.sh

problems=0

good() { printf '  ok       %-22s %s\n' "$1" "$2"; }
note() { printf '  note     %-22s %s\n' "$1" "$2"; }
lack() {
    printf '  missing  %-22s %s\n' "$1" "$2"
    problems=$((problems + 1))
}

check_packages() {
    local group name missing
    for group in $(package_groups); do
        missing=
        for name in $(packages_of "$group"); do
            is_installed "$name" || missing+=" $name"
        done
        if [ -z "$missing" ]; then
            good "packages: $group" "all installed"
        else
            note "packages: $group" "will be installed when needed:$missing"
        fi
    done
}

check_devices() {
    if [ -r /dev/kvm ] && [ -w /dev/kvm ]; then
        good /dev/kvm "hardware virtualization"
    else
        note /dev/kvm "not usable: guests are emulated, five to seven times slower"
    fi
    if [ -c /dev/net/tun ]; then good /dev/net/tun "tap devices"; else lack /dev/net/tun "sandboxes get no network"; fi
    if [ -c /dev/loop-control ]; then
        good /dev/loop-control "loop devices"
    else
        note /dev/loop-control "the state directory must have reflink copies itself"
    fi
}

check_kernel() {
    local fs
    good kernel "$(uname -r), $(uname -m)"
    [ "$(uname -m)" = x86_64 ] || lack architecture "only x86_64 is supported"
    fs=$(grep -cw btrfs /proc/filesystems || true)
    if [ "$fs" -gt 0 ]; then good btrfs "known to the kernel"; else note btrfs "not loaded yet, or not there"; fi
    if [ -e /sys/fs/cgroup/cgroup.controllers ] && grep -qw memory /sys/fs/cgroup/cgroup.controllers; then
        good cgroups "version 2"
    elif [ -d /sys/fs/cgroup/memory ]; then
        good cgroups "version 1"
    else
        note cgroups "no memory controller: sandboxes run without a host-side limit"
    fi
}

check_room() {
    local memory disk dir=$STATE_DIR
    memory=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
    while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
    disk=$(df -Pm "$dir" | awk 'NR == 2 { print $4 }')
    if [ "$memory" -ge 4096 ]; then good memory "$memory MiB available"; else lack memory "$memory MiB available, 4096 wanted"; fi
    if [ "$disk" -ge 10240 ]; then good disk "$disk MiB free below $dir"; else lack disk "$disk MiB free below $dir, 10240 wanted"; fi
    good processors "$(nproc)"
}

main() {
    if [ "$(id -u)" -eq 0 ]; then good user root; else lack user "not root: building works, running does not"; fi
    check_kernel
    check_devices
    check_room
    check_packages
    if [ -x out/bin/space ]; then
        printf '\nspace doctor:\n'
        out/bin/space --state-dir "$STATE_DIR" doctor || problems=$((problems + 1))
    fi
    [ "$problems" -eq 0 ] || die "$problems problem(s)"
}

main "$@"
