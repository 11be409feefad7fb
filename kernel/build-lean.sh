#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the lean guest kernel from the distribution's source package and lean.fragment.
# Owns OUTDIR: vmlinux (stripped, PVH entry), kernel.json, config, and the stamp that
# says which inputs it was made from; up-to-date output is left alone. The build tree
# is temporary. Does not install anything but build tools and the source package.
#
#   build-lean.sh [--config-only] OUTDIR
#
# Environment: SPACE_KERNEL_SOURCE (source package, default linux-source-6.12),
# SPACE_KERNEL_JOBS (default: all processors), TMPDIR (needs about 3 GB).
set -euo pipefail

# Raise when this recipe changes the result in a way the inputs do not show.
readonly RECIPE=1

# The one change to the source. Without an ACPI timer the kernel counts PIT ticks to check
# the local APIC timer it has just calibrated against the TSC. Under an emulator on a busy
# host that check fails at random, and the guest runs at 250 ticks a second for good. A TSC
# declared reliable (`tsc=reliable`) is the better clock of the two: skip the check.
readonly SOURCE_PATCH='
--- a/arch/x86/kernel/apic/apic.c
+++ b/arch/x86/kernel/apic/apic.c
@@ -916,7 +916,8 @@
 	 * timer based calibration, if a global clockevent device is
 	 * available.
 	 */
-	if (!pm_referenced && global_clock_event) {
+	if (!pm_referenced && global_clock_event &&
+	    !(tsc_khz && tsc_clocksource_reliable)) {
 		apic_pr_verbose("... verify APIC timer\n");

 		/*
'

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fragment=$here/lean.fragment
package=${SPACE_KERNEL_SOURCE:-linux-source-6.12}
jobs=${SPACE_KERNEL_JOBS:-$(nproc)}
config_only=no
work=

say() { printf 'build-lean: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

cleanup() {
    if [ -n "$work" ]; then rm -rf -- "$work"; fi
}

installed_version() {
    dpkg-query -W -f='${db:Status-Status} ${Version}' "$1" 2>/dev/null | sed -n 's/^installed //p'
}

# Installs what is missing of the named packages; says what before it does.
install_packages() {
    local missing=() name
    for name in "$@"; do
        if [ -z "$(installed_version "$name")" ]; then missing+=("$name"); fi
    done
    if [ ${#missing[@]} -eq 0 ]; then return; fi
    say "installing: ${missing[*]}"
    [ "$(id -u)" -eq 0 ] || die "missing packages and not root; install them: ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 \
        install --no-install-recommends "${missing[@]}" >&2 ||
        die "apt-get could not install ${missing[*]} (try apt-get update)"
}

# One line that changes whenever the kernel has to be built again.
inputs_hash() {
    { printf '%s\n' "$RECIPE" "$package" "$(installed_version "$package")" "$SOURCE_PATCH"; cat "$fragment"; } |
        sha256sum | cut -d' ' -f1
}

up_to_date() {
    local out=$1 inputs=$2 recorded actual
    [ -f "$out/vmlinux" ] && [ -f "$out/kernel.json" ] && [ -f "$out/inputs.sha256" ] || return 1
    [ "$(cat "$out/inputs.sha256")" = "$inputs" ] || return 1
    recorded=$(sed -n 's/.*"sha256":"\([0-9a-f]*\)".*/\1/p' "$out/kernel.json")
    actual=$(sha256sum "$out/vmlinux" | cut -d' ' -f1)
    [ "$recorded" = "$actual" ]
}

unpack_source() {
    local tarball=/usr/src/$package.tar.xz
    [ -f "$tarball" ] || die "$package has no $tarball"
    say "unpacking $package $(installed_version "$package")"
    mkdir "$work/source" "$work/build"
    tar -C "$work/source" --strip-components=1 -xf "$tarball"
    patch -d "$work/source" -p1 --quiet --fuzz=1 <<<"$SOURCE_PATCH" >&2 || die "the source patch does not apply"
    # The same inputs give the same bytes, whoever builds them and when.
    KBUILD_BUILD_TIMESTAMP=$(date -u -r "$tarball")
    export KBUILD_BUILD_TIMESTAMP KBUILD_BUILD_USER=space KBUILD_BUILD_HOST=space
}

kmake() { make -C "$work/source" O="$work/build" "$@"; }

configure() {
    say "configuring"
    kmake -s tinyconfig
    (cd "$work/build" && "$work/source/scripts/kconfig/merge_config.sh" -m .config "$fragment" >/dev/null)
    kmake -s olddefconfig
}

# Prints every line of the fragment the configuration does not hold. A symbol asked
# to be `n` may also be unknown or invisible: it is off either way.
fragment_losses() {
    local config=$1 line name
    while IFS= read -r line; do
        case $line in
        CONFIG_*=n)
            name=${line%=n}
            if grep -q "^$name=" "$config"; then printf '%s (is %s)\n' "$line" "$(grep "^$name=" "$config")"; fi
            ;;
        CONFIG_*=*)
            if ! grep -qxF -- "$line" "$config"; then
                name=${line%%=*}
                printf '%s (is %s)\n' "$line" "$(grep "^$name=" "$config" || echo 'not set')"
            fi
            ;;
        '' | '#'*) ;;
        *) printf '%s (not understood)\n' "$line" ;;
        esac
    done <"$fragment"
}

check_configuration() {
    local losses
    losses=$(fragment_losses "$work/build/.config")
    if [ -z "$losses" ]; then return; fi
    printf '%s\n' "$losses" | sed 's/^/  /' >&2
    die "the configuration lost the lines of lean.fragment above"
}

compile() {
    local log=$1 started=$SECONDS
    say "compiling with $jobs jobs, log in $log"
    if ! nice -n 19 make -C "$work/source" O="$work/build" -j"$jobs" vmlinux >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        die "the build failed"
    fi
    say "compiled in $((SECONDS - started)) s"
}

has_pvh_entry() {
    # ELF note type 18 of owner "Xen" holds the 32-bit entry point.
    readelf -n "$1" 2>/dev/null | grep -q '0x00000012'
}

# Everything is staged beside its place and renamed, kernel.json last but the stamp.
publish() {
    local out=$1 inputs=$2 version sha
    version=$(kmake -s --no-print-directory kernelversion)
    strip -s -o "$out/vmlinux.new" "$work/build/vmlinux"
    has_pvh_entry "$out/vmlinux.new" || die "vmlinux has no PVH entry note"
    sha=$(sha256sum "$out/vmlinux.new" | cut -d' ' -f1)
    rm -f "$out/inputs.sha256"
    cp "$work/build/.config" "$out/config"
    mv "$out/vmlinux.new" "$out/vmlinux"
    printf '{"profile":"lean","version":"%s","sha256":"%s","acpi":false}\n' "$version" "$sha" >"$out/kernel.json.new"
    mv "$out/kernel.json.new" "$out/kernel.json"
    printf '%s\n' "$inputs" >"$out/inputs.sha256"
    chmod 0644 "$out/vmlinux"
    say "$out/vmlinux: Linux $version, $(stat -c %s "$out/vmlinux") bytes, sha256 $sha"
}

main() {
    local out inputs
    if [ "${1:-}" = --config-only ]; then config_only=yes; shift; fi
    [ $# -eq 1 ] || die "usage: build-lean.sh [--config-only] OUTDIR"
    mkdir -p -- "$1"
    out=$(cd "$1" && pwd)
    [ "$(uname -m)" = x86_64 ] || die "the lean kernel is built on x86_64 only"

    install_packages "$package"
    inputs=$(inputs_hash)
    if [ "$config_only" = no ] && up_to_date "$out" "$inputs"; then
        say "$out is up to date"
        return
    fi
    install_packages gcc make flex bison bc libelf-dev libssl-dev xz-utils cpio kmod patch binutils

    trap cleanup EXIT
    trap 'exit 130' INT TERM
    work=$(mktemp -d "${TMPDIR:-/var/tmp}/space-kernel.XXXXXX")
    unpack_source
    configure
    check_configuration
    if [ "$config_only" = yes ]; then
        cp "$work/build/.config" "$out/config"
        say "configuration in $out/config holds every line of lean.fragment"
        return
    fi
    compile "$out/build.log"
    publish "$out" "$inputs"
}

main "$@"
