#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Takes the distribution's stock cloud kernel out of its package, without installing it.
# Owns OUTDIR: vmlinuz, modules/ (the few modules the guest needs, uncompressed),
# modules.order.txt (their file names, dependencies first), kernel.json, and the stamp
# that says which package it came from; up-to-date output is left alone.
#
#   fetch-stock.sh OUTDIR
#
# Environment: SPACE_STOCK_PACKAGE (default linux-image-cloud-amd64, or a concrete
# linux-image-VERSION package), TMPDIR (needs about 200 MB).
set -euo pipefail

# What the guest cannot do without. Dependencies are computed; what is built into the
# kernel is left out. crc32c-generic is what ext4 asks the crypto layer for by name,
# and inside the guest nobody answers such a request: it has to be there before.
readonly WANTED=(
    virtio virtio-ring virtio-mmio
    virtio-blk virtio-net virtio-console virtio-rng
    crc32c-generic ext4 overlay
)

PATH=$PATH:/usr/sbin:/sbin
package=${SPACE_STOCK_PACKAGE:-linux-image-cloud-amd64}
work=
declare -A dependencies=() builtin_modules=() visited=()
load_order=()

say() { printf 'fetch-stock: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

cleanup() {
    if [ -n "$work" ]; then rm -rf -- "$work"; fi
}

require() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || die "$tool is missing"
    done
}

# The meta package depends on exactly one image package; a concrete one is itself.
concrete_package() {
    local name
    name=$(LC_ALL=C apt-cache depends --important "$1" 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
    printf '%s\n' "${name:-$1}"
}

candidate_version() {
    LC_ALL=C apt-cache policy "$1" | sed -n 's/^ *Candidate: //p'
}

# apt fetches as its own user: the directory has to be that user's, or apt warns
# and downloads as root.
download() {
    local name=$1 dir=$2
    mkdir "$dir"
    if [ "$(id -u)" -eq 0 ] && id -u _apt >/dev/null 2>&1; then
        chmod 0711 "$work"
        chown _apt "$dir"
    fi
    (cd "$dir" && apt-get -q download "$name" >&2) ||
        die "apt-get could not download $name (try apt-get update)"
}

module_name() {
    local name=${1##*/}
    name=${name%%.ko*}
    printf '%s\n' "${name//_/-}"
}

# Fills `dependencies` (name -> path followed by the paths it needs) and `builtin_modules`.
read_module_tables() {
    local tree=$1 line path
    while IFS= read -r line; do
        path=${line%%:*}
        dependencies[$(module_name "$path")]="$path${line#*:}"
    done <"$tree/modules.dep"
    while IFS= read -r path; do
        builtin_modules[$(module_name "$path")]=yes
    done <"$tree/modules.builtin"
}

# Appends a module's path to the load order, after everything it depends on.
visit() {
    local name=$1 entry path paths
    if [ -n "${visited[$name]:-}" ]; then return; fi
    visited[$name]=yes
    entry=${dependencies[$name]:-}
    if [ -z "$entry" ]; then
        [ -n "${builtin_modules[$name]:-}" ] || die "this kernel has no module $name"
        say "$name is built in"
        return
    fi
    read -ra paths <<<"$entry"
    for path in "${paths[@]:1}"; do visit "$(module_name "$path")"; done
    load_order+=("${paths[0]}")
}

copy_module() {
    local from=$1 to=$2
    case $from in
    *.ko) cp "$from" "$to" ;;
    *.ko.xz) xz -dc "$from" >"$to" ;;
    *.ko.zst) zstd -qdc "$from" >"$to" ;;
    *.ko.gz) gzip -dc "$from" >"$to" ;;
    *) die "unknown module compression: $from" ;;
    esac
}

# What a module softly depends on is loaded by modprobe, which the guest has not:
# each one must be built in or provided by a module we ship.
check_soft_dependencies() {
    local dir=$1 aliases file wanted
    aliases=$(for file in "$dir"/*.ko; do module_name "$file"; modinfo -F alias "$file"; done | tr _ -)
    for file in "$dir"/*.ko; do
        for wanted in $(modinfo -F softdep "$file" | sed -n 's/.*pre: *//; s/post:.*//; p' | tr _ -); do
            if [ -n "${builtin_modules[$wanted]:-}" ]; then continue; fi
            grep -qxF -- "$wanted" <<<"$aliases" ||
                die "$(module_name "$file") wants $wanted first and nothing here provides it"
        done
    done
}

collect_modules() {
    local tree=$1 out=$2 name path file
    for name in "${WANTED[@]}"; do visit "$name"; done
    mkdir -p "$out/modules"
    : >"$out/modules.order.txt"
    for path in "${load_order[@]}"; do
        file=${path##*/}
        file=${file%%.ko*}.ko
        copy_module "$tree/$path" "$out/modules/$file"
        printf '%s\n' "$file" >>"$out/modules.order.txt"
    done
    check_soft_dependencies "$out/modules"
}

# Finds the one directory of modules; merged-/usr packages moved it.
module_tree() {
    local root=$1 tree
    for tree in "$root"/lib/modules/* "$root"/usr/lib/modules/*; do
        if [ -f "$tree/modules.builtin" ]; then printf '%s\n' "$tree"; return; fi
    done
    return 1
}

extract() {
    local root=$1 staged=$2 version=$3 tree release prefix sha
    tree=$(module_tree "$root") || die "the package holds no modules"
    release=${tree##*/}
    prefix=${tree%/lib/modules/*}
    depmod -b "$prefix" "$release"
    read_module_tables "$tree"
    mkdir "$staged"
    collect_modules "$tree" "$staged"
    cp "$root/boot/vmlinuz-$release" "$staged/vmlinuz"
    chmod 0644 "$staged/vmlinuz" "$staged"/modules/*
    sha=$(sha256sum "$staged/vmlinuz" | cut -d' ' -f1)
    printf '{"profile":"stock","version":"%s","sha256":"%s","acpi":true}\n' "$version" "$sha" >"$staged/kernel.json"
    say "Linux $release ($version), ${#load_order[@]} modules, sha256 $sha"
}

publish() {
    local staged=$1 out=$2 source=$3
    rm -rf -- "$out/source" "$out/modules"
    mv "$staged/modules" "$out/modules"
    mv "$staged/modules.order.txt" "$staged/vmlinuz" "$staged/kernel.json" "$out/"
    printf '%s\n' "$source" >"$out/source"
}

up_to_date() {
    local out=$1 source=$2 recorded
    [ -f "$out/source" ] && [ -f "$out/kernel.json" ] && [ -f "$out/vmlinuz" ] || return 1
    [ "$(cat "$out/source")" = "$source" ] || return 1
    recorded=$(sed -n 's/.*"sha256":"\([0-9a-f]*\)".*/\1/p' "$out/kernel.json")
    [ "$recorded" = "$(sha256sum "$out/vmlinuz" | cut -d' ' -f1)" ]
}

main() {
    local out image version source
    [ $# -eq 1 ] || die "usage: fetch-stock.sh OUTDIR"
    mkdir -p -- "$1"
    out=$(cd "$1" && pwd)
    require apt-get apt-cache dpkg-deb depmod modinfo xz
    image=$(concrete_package "$package")
    version=$(candidate_version "$image")
    case $version in
    '' | '(none)') die "the package sources know no $package (try apt-get update)" ;;
    esac
    source="$image $version ${WANTED[*]}"
    if up_to_date "$out" "$source"; then
        say "$out is up to date ($image $version)"
        return
    fi

    trap cleanup EXIT
    trap 'exit 130' INT TERM
    work=$(mktemp -d "${TMPDIR:-/var/tmp}/space-stock.XXXXXX")
    say "downloading $image $version"
    download "$image=$version" "$work/download"
    dpkg-deb -x "$work"/download/*.deb "$work/root"
    extract "$work/root" "$work/staged" "$version"
    publish "$work/staged" "$out" "$source"
}

main "$@"
