#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes what the emulated machine of `./do test kvm` boots: a Debian root file system with everything
# the system needs, Debian's stock cloud kernel and an initramfs that finds the disk. Owns OUTDIR:
# root.ext4, vmlinuz, initramfs, and the stamp `inputs` that says what they were made from. Output that
# is up to date is left alone, and no network is needed then. Nothing of this tree is on the disk.
#
#   kvm-image.sh OUTDIR
#
# Status 77, with the reason on stdout: not to be had here.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/packages.sh
source scripts/packages.sh

PATH=$PATH:/usr/sbin:/sbin
readonly DISK_MIB=8192 # sparse: about 900 MiB of it are written
readonly ROOM_MIB=4096 # while it is made: the packages, the tree, the image
readonly KERNEL_PACKAGE=linux-image-cloud-amd64
# Of the packages a host needs, those that only build templates.
readonly LEFT_OUT='mmdebstrap skopeo umoci cpio xz-utils'
readonly TEST_PACKAGES=(python3 python3-pytest kmod busybox-static)
readonly BOOT_MODULES=(virtio_pci virtio_blk crc32c_generic ext4)
readonly OUT=${SPACE_TEST_OUT:-$ROOT/out}
work=

unavailable() {
    printf '%s\n' "$*"
    exit 77
}

cleanup() {
    if [ -n "$work" ]; then rm -rf --one-file-system -- "$work"; fi
}

# The release of this host: what is installed in out/ is linked against its libraries.
release() {
    # shellcheck disable=SC1091 # not part of this tree
    (. /etc/os-release && [ "${ID:-}" = debian ] && printf '%s\n' "${VERSION_CODENAME:-}")
}

host_sources() {
    # shellcheck disable=SC2016 # apt expands these, not the shell
    apt-get indextargets --format '$(ORIGIN)|$(CODENAME)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
        'Created-By: Packages' |
        awk -F'|' -v suite="$1" \
            '$1 == "Debian" && ($2 == suite || $2 == suite "-updates" || $2 == suite "-security") { print $3 }' |
        sort -u
}

# The libraries that the installed programs load. (ldd fails for a static one.)
libraries() {
    { find "$OUT/bin" "$OUT/libexec" -type f -perm /111 -exec ldd {} + 2>/dev/null || true; } |
        awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u
}

# Their packages. dpkg knows some by their path of before /usr was merged, and asking once is slow enough.
library_packages() {
    local files=()
    mapfile -t files < <(libraries)
    { dpkg-query -S "${files[@]}" "${files[@]/#/\/usr}" 2>/dev/null || true; } | sed 's/:.*//' | sort -u
}

wanted_packages() {
    local name
    for name in $(packages_of runtime); do
        case " $LEFT_OUT " in *" $name "*) ;; *) printf '%s\n' "$name" ;; esac
    done
    printf '%s\n' "${TEST_PACKAGES[@]}"
}

# PostgreSQL must not make a cluster of its own; documentation and languages would be half of the tree.
bootstrap() {
    local suite=$1 tree=$2 packages=$3
    # shellcheck disable=SC2016 # mmdebstrap gives $1
    mmdebstrap --mode=root --variant=minbase --format=directory --quiet --include="${packages//$'\n'/,}" \
        --essential-hook='mkdir -p "$1/etc/postgresql-common/createcluster.d"' \
        --essential-hook='echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.d/space.conf"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        "$suite" "$tree" - >&2
}

# The package is unpacked, not installed: nothing has to boot by it.
add_kernel() {
    local tree=$1 image
    image=$(LC_ALL=C apt-cache depends --important "$KERNEL_PACKAGE" | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p')
    mkdir "$work/download"
    if id -u _apt >/dev/null 2>&1; then
        chmod 0711 "$work"
        chown _apt "$work/download"
    fi
    (cd "$work/download" && apt-get -q download "${image:-$KERNEL_PACKAGE}" >&2)
    dpkg-deb --fsys-tarfile "$work"/download/*.deb | tar -x -C "$work" ./boot ./lib/modules
    mv "$work"/boot/vmlinuz-* "$work/vmlinuz"
    mv "$work/lib/modules" "$tree/usr/lib/modules"
    depmod -b "$tree" "$(ls "$tree/usr/lib/modules")"
}

# busybox, the modules of the disk in the order they load, and a script.
make_initramfs() {
    local tree=$1 version file initramfs=$work/initramfs.d
    version=$(ls "$tree/usr/lib/modules")
    mkdir -p "$initramfs"/{bin,modules,proc,sys,dev,new}
    cp "$tree/bin/busybox" "$initramfs/bin/busybox"
    modprobe -d "$tree" -S "$version" --show-depends --all "${BOOT_MODULES[@]}" |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/order"
    while read -r file; do
        cp "$file" "$initramfs/modules/"
        printf '%s\n' "${file##*/}" >>"$initramfs/modules/order"
    done <"$work/order"
    install -m 0755 tests/kvm/initramfs.sh "$initramfs/init"
    (cd "$initramfs" && find . | LC_ALL=C sort | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs"
}

inputs() {
    cat "${BASH_SOURCE[0]}" tests/kvm/initramfs.sh | sha256sum
    printf '%s\n' "$1"
    wanted_packages
    libraries
}

make_all() {
    local suite=$1 out=$2 packages sources
    packages=$({ wanted_packages && library_packages; } | sort -u)
    sources=$(host_sources "$suite")
    [ -n "$sources" ] || unavailable "the package sources of this host offer no Debian $suite"
    bootstrap "$suite" "$work/tree" "$packages" <<<"$sources" || unavailable "the packages of the machine cannot be had"
    add_kernel "$work/tree" || unavailable "the package $KERNEL_PACKAGE cannot be had"
    rm -rf "$work"/tree/var/cache/apt/* "$work"/tree/var/lib/apt/lists/*
    printf 'kvm\n' >"$work/tree/etc/hostname"
    make_initramfs "$work/tree"
    mke2fs -q -F -t ext4 -L kvm -O ^has_journal -m 0 -d "$work/tree" "$work/root.ext4" ${DISK_MIB}M >&2
    mv "$work/root.ext4" "$work/vmlinuz" "$work/initramfs" "$out/"
}

main() {
    local out suite now
    [ $# -eq 1 ] || die "usage: kvm-image.sh OUTDIR"
    mkdir -p -- "$1"
    out=$(cd "$1" && pwd)
    suite=$(release) || unavailable "needs Debian: the machine runs the programs built here"
    now=$(inputs "$suite")
    if [ "$(cat "$out/inputs" 2>/dev/null)" = "$now" ]; then return; fi

    [ "$(df --output=avail -m "$out" | tail -n 1)" -ge $ROOM_MIB ] || unavailable "less than $ROOM_MIB MiB free in $out"
    trap cleanup EXIT
    trap 'exit 130' INT TERM
    rm -f "$out/inputs"
    work=$(mktemp -d "$out/.work.XXXXXX")
    say "==> making the disk of the emulated machine (once, about three minutes)"
    make_all "$suite" "$out"
    printf '%s\n' "$now" >"$out/inputs"
}

main "$@"
