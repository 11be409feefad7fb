# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The parts of the test run: a table, and a function for each. Sourced by test.sh. A function
# leaves its results in $PART_DIR as JUnit files (*.xml) or as a file `counts` ("passed failed
# skipped"); its own exit status only matters when it left neither. skip_part REASON ends it.

# name, function, what it covers
# shellcheck disable=SC2034 # read by test.sh
readonly TEST_PARTS='
lint         part_lint         style, static analysis, sizes, layers, text rules
unit         part_unit         every module by itself
sanitize     part_sanitize     the unit tests under address and undefined behaviour sanitizers
fuzz-replay  part_fuzz_replay  the corpus of every fuzz target, mutated, under the sanitizers
threads      part_threads      the unit tests under the thread sanitizer (at full size only)
openapi      part_openapi      the contract is well-formed and agrees with the code
client       part_client       clients in other languages, against servers that misbehave
control      part_control      the control plane on a real database, with nodes played by the test
node         part_node         the node program, its peers played by the test
gateway      part_gateway      the data plane, guests played by the test
guest        part_guest        the guest agent in a virtual machine
broker       part_broker       the privileged broker and its jails
engine       part_engine       virtual machines below the control plane
system       part_system       the real system over its public interfaces
fault        part_fault        kill, full disk, broken peer at every step
kvm          part_kvm          the real system on KVM, in an emulated machine that has it
docs         part_docs         every command the documentation shows
'

skip_part() {
    printf '%s\n' "$*" >"$PART_DIR/skip-reason"
    exit 0
}

# Runs one suite of a build; meson writes the JUnit file.
meson_suite() {
    local builddir=$1 suite=$2 status=0
    shift 2
    meson test -C "$builddir" --no-rebuild --suite "$suite" --print-errorlogs "$@" || status=$?
    cp "$builddir/meson-logs/testlog.junit.xml" "$PART_DIR/$suite.xml"
    return $status
}

need_tests() {
    compgen -G "$1/test_*.py" >/dev/null || skip_part "$1 has no tests"
}

# run_pytest NAME ARGUMENT...: leaves NAME.xml.
run_pytest() {
    local name=$1
    shift
    "$PYTHON" -m pytest -q -p no:cacheprovider --junitxml="$PART_DIR/$name.xml" -o junit_family=xunit2 "$@"
}

# Runs the pytest files of a folder.
pytest_folder() { run_pytest pytest "$1"; }

# pytest_workers COUNT DIST FOLDER...: by several processes at once. For tests that mostly wait and share nothing: every worker has uids,
# ports and state directories of its own (PYTEST_XDIST_WORKER). DIST as pytest-xdist has it: load (single tests, to whoever is free), or
# loadfile (files stay together, with what their tests share). A test that has to have the machine for itself is marked `alone`: those come
# after the others, one by one.
pytest_workers() {
    local count=$1 dist=$2 status=0
    shift 2
    run_pytest pytest -m 'not alone' -n "$count" --dist "$dist" "$@" || status=$?
    run_pytest alone -m alone "$@" || [ $? -eq 5 ] || status=1 # 5: there are none
    return $status
}

need_root() {
    [ "$(id -u)" -eq 0 ] || skip_part "needs root"
}

# What a running system takes: packages, the installed build, a kernel, the seed tree.
need_system() {
    need_root
    ensure_packages build runtime test
    scripts/build.sh
    ensure_assets
}

part_lint() {
    ensure_packages lint
    scripts/lint.sh --counts "$PART_DIR/counts"
}

part_unit() {
    scripts/build.sh
    meson_suite build unit
}

part_sanitize() {
    scripts/build.sh --sanitize --no-install
    meson_suite build-sanitize unit --timeout-multiplier 4
}

part_fuzz_replay() {
    scripts/build.sh --sanitize --no-install
    meson_suite build-sanitize fuzz --timeout-multiplier 4
}

part_threads() {
    [ "$SPACE_TEST_SIZE" = full ] || skip_part "only at full size"
    scripts/build.sh --sanitize=thread --no-install
    meson_suite build-thread unit --timeout-multiplier 4
}

part_openapi() {
    need_tests tests/openapi
    scripts/build.sh
    pytest_folder tests/openapi
}

part_client() {
    need_tests tests/client
    pytest_folder tests/client
}

system_part() {
    need_tests "tests/$1"
    need_system
    pytest_folder "tests/$1"
}

# Whether every route and code was seen is asked at the end, of what all workers saw.
part_control() {
    need_tests tests/control
    need_system
    local status=0
    export SPACE_SPEC_SEEN=$PART_DIR/seen
    mkdir -p "$SPACE_SPEC_SEEN"
    pytest_workers 3 loadfile tests/control --ignore tests/control/test_zz_spec.py || status=$?
    run_pytest spec tests/control/test_zz_spec.py || status=$?
    return $status
}

# One program between stand-ins of its neighbours: the sanitizers watch it.
sanitized_part() {
    need_tests "tests/$1"
    scripts/build.sh --sanitize --no-install
    export SPACE_BUILD_DIR=$PWD/build-sanitize
}

part_node() {
    sanitized_part node
    pytest_workers 4 load tests/node
}

part_gateway() {
    sanitized_part gateway
    pytest_folder tests/gateway
}

part_guest() { system_part guest; }

part_broker() {
    need_tests tests/broker
    need_system
    pytest_workers 4 load tests/broker
}

part_engine() { system_part engine; }

# Virtual machines take the processors: two at most beside each other, a whole installation each.
part_system() {
    need_tests tests/system
    need_system
    pytest_workers 2 loadfile tests/system
}

# By name the matrix is every point with kill and a full disk; in a run of everything, a sample.
part_fault() {
    if [ "$PARTS_NAMED" = yes ] && [ "$SPACE_TEST_SIZE" = small ]; then export SPACE_FAULT_CELLS=${SPACE_FAULT_CELLS:-points}; fi
    system_part fault
}

part_docs() { system_part docs; }

# Skipped where the machine cannot be made; the script's last words on stdout are the reason.
part_kvm() {
    local reason status=0
    # Minutes of an emulated machine: by name, or with everything at full size.
    [ "$SPACE_TEST_SIZE" = full ] || [ "$PARTS_NAMED" = yes ] || skip_part "only at full size, or by name: ./do test kvm"
    need_system
    (ensure_packages kvm) || skip_part "the packages to make an emulated machine cannot be had"
    reason=$(with_cache_lock scripts/kvm-image.sh "$SPACE_CACHE_DIR/kvm") || status=$?
    [ $status -ne 77 ] || skip_part "$reason"
    [ $status -eq 0 ] || die "scripts/kvm-image.sh failed (exit status $status)"
    "$PYTHON" tests/kvm/machine.py "$SPACE_CACHE_DIR/kvm" "$PART_DIR"
}
