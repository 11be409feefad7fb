# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The one table of Debian packages, and how they are installed: only what is missing, named
# before it happens, without recommended extras. Sourced after lib.sh.

# group, package, what for
readonly PACKAGE_TABLE='
build    gcc                 the compiler
build    libc6-dev           C library
build    meson               build system
build    ninja-build         build system
build    pkg-config          finds libraries
build    linux-libc-dev      kernel interfaces
build    libuv1-dev          event loop
build    libssl-dev          TLS, hashes
build    libjansson-dev      JSON
build    libpq-dev           PostgreSQL client
build    libnghttp2-dev      HTTP/2
build    libseccomp-dev      system call filters
build    libcap-ng-dev       capabilities
build    libarchive-dev      unpacking template archives
build    libzstd-dev         compression
build    zlib1g-dev          compression
build    musl-tools          static guest agent
build    python3             generators and checks
build    python3-yaml        reads the OpenAPI contract
runtime  qemu-system-x86     the virtual machine monitor
runtime  btrfs-progs         store with reflink copies
runtime  e2fsprogs           disk images of templates
runtime  postgresql          private database cluster of "space up"
runtime  mmdebstrap          root file system of the seed template
runtime  skopeo              copies OCI images
runtime  umoci               unpacks OCI images
runtime  cpio                looks into guest boot archives
runtime  kmod                module dependencies of the guest kernel
runtime  xz-utils            unpacks modules of the stock kernel
runtime  iproute2            network namespaces
runtime  nftables            packet filter
runtime  ca-certificates     trust roots
test     libcmocka-dev       unit tests
test     python3-pytest      system tests
test     python3-pytest-xdist  tests that wait, beside each other
test     python3-jsonschema  checks answers against the contract
test     python3-yaml        reads the contract
test     podman              comparison in benchmarks
test     runc                comparison in benchmarks
kvm      qemu-system-x86     the emulated machine
kvm      mmdebstrap          its root file system
kvm      e2fsprogs           its disks
kvm      cpio                its initramfs
kvm      kmod                modules of its kernel
fuzz     clang               compiler with libFuzzer
fuzz     libclang-rt-14-dev  sanitizer and fuzzer runtime
lint     clang-format        C style
lint     clang-tidy          static analysis
lint     shellcheck          shell analysis
'

package_groups() { awk 'NF { print $1 }' <<<"$PACKAGE_TABLE" | sort -u; }
packages_of() { awk -v g="$1" '$1 == g { print $2 }' <<<"$PACKAGE_TABLE"; }
list_packages() { awk 'NF' <<<"$PACKAGE_TABLE"; }

is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 -o Dpkg::Options::=--force-confold "$@"
}

# Debian would start a cluster of its own on port 5432; we bring ours.
prevent_main_cluster() {
    local dir=/etc/postgresql-common/createcluster.d
    if [ -e "$dir/space.conf" ]; then return; fi
    say "    keeping postgresql from making a cluster of its own ($dir/space.conf)"
    mkdir -p "$dir"
    printf '%s\n' '# Written before postgresql was installed for space, which runs a private cluster.' \
        'create_main_cluster = false' >"$dir/space.conf"
}

install_packages() {
    local name
    [ "$(id -u)" -eq 0 ] || die "missing packages; as root: apt-get install --no-install-recommends $*"
    say "==> installing: $*"
    for name in "$@"; do
        if [ "$name" = postgresql ]; then prevent_main_cluster; fi
    done
    if ! apt_get install --no-install-recommends "$@" >&2; then
        say "    refreshing the package lists"
        apt_get update >&2
        apt_get install --no-install-recommends "$@" >&2 || die "apt-get could not install: $*"
    fi
}

# ensure_packages GROUP...
ensure_packages() {
    local group name known missing=()
    known=$(package_groups)
    have dpkg-query || {
        say "not a Debian system: expecting the packages of groups $* to be there"
        return 0
    }
    for group in "$@"; do
        grep -qx "$group" <<<"$known" || die "package groups: $(xargs <<<"$known")"
        for name in $(packages_of "$group"); do
            is_installed "$name" || missing+=("$name")
        done
        # The client tests need npm from wherever it comes.
        if [ "$group" = test ] && ! have npm; then missing+=(nodejs npm); fi
    done
    if [ ${#missing[@]} -gt 0 ]; then install_packages "${missing[@]}"; fi
}
