#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the root directory tree of the seed template with mmdebstrap, from the package
# sources this host itself is configured with. Owns OUTDIR/rootfs (replaced as a whole,
# only after the new one is complete) and OUTDIR/manifest.json. Knows nothing of disk
# images, kernels or the guest agent: any tree is a template as it is.
#
#   build.sh OUTDIR
#
# Environment: SPACE_SEED_SUITE (Debian release, default bookworm). Runs as root.
set -euo pipefail

readonly PACKAGES=(ca-certificates curl git iproute2 procps python3 sudo)
readonly USER_NAME=user USER_ID=1000 HOST_NAME=sandbox

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suite=${SPACE_SEED_SUITE:-bookworm}
staged=

say() { printf 'seed: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

cleanup() {
    if [ -n "$staged" ]; then rm -rf --one-file-system -- "$staged"; fi
}

install_mmdebstrap() {
    if command -v mmdebstrap >/dev/null; then return; fi
    say "installing: mmdebstrap"
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 \
        install --no-install-recommends mmdebstrap >&2 ||
        die "apt-get could not install mmdebstrap (try apt-get update)"
}

# The host's own Debian sources for one release, as sources.list lines. Whatever else
# the host draws packages from has no business in a template.
host_sources() {
    # shellcheck disable=SC2016 # apt expands these, not the shell
    apt-get indextargets --format '$(ORIGIN)|$(CODENAME)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
        'Created-By: Packages' |
        awk -F'|' -v suite="$suite" \
            '$1 == "Debian" && ($2 == suite || $2 == suite "-updates" || $2 == suite "-security") { print $3 }' |
        sort -u
}

bootstrap() {
    local tree=$1 sources=$2 list
    list=$(IFS=,; printf '%s' "${PACKAGES[*]}")
    printf '%s\n' "$sources" |
        mmdebstrap --mode=root --variant=minbase --format=directory --quiet \
            --include="$list" \
            --dpkgopt='path-exclude=/usr/share/doc/*' \
            --dpkgopt='path-include=/usr/share/doc/*/copyright' \
            --dpkgopt='path-exclude=/usr/share/man/*' \
            --dpkgopt='path-exclude=/usr/share/info/*' \
            --dpkgopt='path-exclude=/usr/share/locale/*' \
            --dpkgopt='path-exclude=/usr/share/lintian/*' \
            "$suite" "$tree" - >&2 || die "mmdebstrap failed"
}

add_user() {
    local tree=$1
    chroot "$tree" useradd --create-home --user-group --uid "$USER_ID" --shell /bin/bash "$USER_NAME"
    printf '%s ALL=(ALL:ALL) NOPASSWD: ALL\n' "$USER_NAME" >"$tree/etc/sudoers.d/$USER_NAME"
    chmod 0440 "$tree/etc/sudoers.d/$USER_NAME"
    chroot "$tree" visudo -cq || die "the sudoers file does not parse"
}

# What tells one sandbox from another belongs to the agent: the machine id is empty and
# resolv.conf an empty plain file, both for it to fill.
set_identity() {
    local tree=$1
    printf '%s\n' "$HOST_NAME" >"$tree/etc/hostname"
    printf '127.0.0.1\tlocalhost %s\n::1\tlocalhost ip6-localhost ip6-loopback\n' "$HOST_NAME" >"$tree/etc/hosts"
    printf 'LANG=C.UTF-8\n' >"$tree/etc/default/locale"
    rm -f "$tree/etc/resolv.conf" "$tree/etc/machine-id" "$tree/var/lib/dbus/machine-id"
    : >"$tree/etc/resolv.conf"
    : >"$tree/etc/machine-id"
    chmod 0644 "$tree/etc/resolv.conf" "$tree/etc/machine-id" "$tree/etc/hosts" "$tree/etc/hostname"
}

# The guest mounts its own over these; what the build left there is not part of a template.
trim() {
    local tree=$1 dir
    for dir in dev proc run sys tmp var/tmp var/lib/apt/lists var/cache/apt; do
        find "$tree/$dir" -xdev -mindepth 1 -delete
    done
    find "$tree/var/log" -xdev -type f -exec truncate -s 0 {} +
    mkdir -p "$tree/var/lib/apt/lists/partial" "$tree/var/cache/apt/archives/partial"
    rm -f "$tree"/var/cache/debconf/*-old "$tree"/var/lib/dpkg/*-old "$tree"/etc/{passwd,group,shadow,gshadow}-
}

check() {
    local tree=$1 name
    for name in bash python3 git curl sudo ps ip; do
        chroot "$tree" sh -c "command -v $name" >/dev/null || die "$name is not in the tree"
    done
    chroot "$tree" runuser -u "$USER_NAME" -- test -w "/home/$USER_NAME" || die "$USER_NAME has no home"
    [ ! -s "$tree/etc/machine-id" ] || die "the tree has a machine id"
    if [ -L "$tree/etc/resolv.conf" ]; then die "resolv.conf is a link"; fi
}

main() {
    local out sources started=$SECONDS
    [ $# -eq 1 ] || die "usage: build.sh OUTDIR"
    [ "$(id -u)" -eq 0 ] || die "has to run as root"
    mkdir -p -- "$1"
    out=$(cd "$1" && pwd)
    install_mmdebstrap
    sources=$(host_sources)
    [ -n "$sources" ] || die "this host's package sources offer no Debian $suite (try apt-get update)"

    trap cleanup EXIT
    trap 'exit 130' INT TERM
    staged=$(mktemp -d "$out/.rootfs.XXXXXX")
    say "making a tree of $suite with ${PACKAGES[*]}"
    bootstrap "$staged" "$sources"
    add_user "$staged"
    set_identity "$staged"
    trim "$staged"
    check "$staged"

    chown root:root "$staged"
    chmod 0755 "$staged"
    rm -rf --one-file-system -- "$out/rootfs"
    mv "$staged" "$out/rootfs"
    staged=
    cp "$here/manifest.json" "$out/manifest.json"
    say "$out/rootfs: $(du -sxm "$out/rootfs" | cut -f1) MiB in $((SECONDS - started)) s"
}

main "$@"
