# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Guest kernels and the seed root file system: slow to get, the same for every checkout, so kept in
# one cache outside the tree, $SPACE_CACHE_DIR (default /var/cache/space). Sourced after lib.sh.
#
#   kernels/stock  kernels/lean  seed/rootfs  seed/manifest.json

SPACE_CACHE_DIR=${SPACE_CACHE_DIR:-/var/cache/space}
export SPACE_CACHE_DIR

# Runs a command while no other run of these scripts fills the cache.
with_cache_lock() {
    mkdir -p "$SPACE_CACHE_DIR"
    (
        flock 9
        "$@"
    ) 9>"$SPACE_CACHE_DIR/.lock"
}

fetch_stock_kernel() {
    if [ -e "$SPACE_CACHE_DIR/kernels/stock/kernel.json" ]; then return; fi
    step "fetching the stock guest kernel (once)" kernel/fetch-stock.sh "$SPACE_CACHE_DIR/kernels/stock" 9>&-
}

# The tree is made again when its recipe has changed.
build_seed() {
    local dir=$SPACE_CACHE_DIR/seed recipe
    recipe=$(cat templates/seed/build.sh templates/seed/manifest.json | sha256sum | cut -d' ' -f1)
    if [ "$(cat "$dir/recipe" 2>/dev/null)" = "$recipe" ] && [ -d "$dir/rootfs" ]; then return; fi
    # One made by hand, by the same recipe as far as anyone can tell.
    if [ ! -e "$dir/recipe" ] && [ -d "$dir/rootfs" ] && [ -e "$dir/manifest.json" ]; then return; fi
    step "making the seed root file system, a small Debian (once, about two minutes)" templates/seed/build.sh "$dir" 9>&-
    printf '%s\n' "$recipe" >"$dir/recipe"
}

ensure_assets() {
    # A failed step ends only the subshell that holds the lock.
    with_cache_lock fetch_stock_kernel || exit 1
    with_cache_lock build_seed || exit 1
}

# Gives a state directory the kernels that the cache has and it has not.
copy_kernels() {
    local state=$1 profile
    for profile in stock lean; do
        if [ ! -e "$SPACE_CACHE_DIR/kernels/$profile/kernel.json" ]; then continue; fi
        if cmp -s "$SPACE_CACHE_DIR/kernels/$profile/kernel.json" "$state/kernels/$profile/kernel.json"; then continue; fi
        mkdir -p "$state/kernels"
        rm -rf "$state/kernels/$profile.new"
        cp -a "$SPACE_CACHE_DIR/kernels/$profile" "$state/kernels/$profile.new"
        rm -rf "${state:?}/kernels/$profile"
        mv "$state/kernels/$profile.new" "$state/kernels/$profile"
    done
}
