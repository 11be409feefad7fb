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
openapi      part_openapi      the contract is well-formed and agrees with the code
system       part_system       the real system over its public interfaces
client       part_client       clients in other languages, the command line
fault        part_fault        kill, full disk, broken peer at every step
engine       part_engine       virtual machines below the control plane
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

# Runs the pytest files of a folder.
pytest_folder() {
    local folder=$1
    shift
    "$PYTHON" -m pytest -q --junitxml="$PART_DIR/pytest.xml" -o junit_family=xunit2 "$@" "$folder"
}

need_root() {
    [ "$(id -u)" -eq 0 ] || skip_part "needs root"
}

# A running system: packages, the installed build, a kernel, the seed tree (shared by all tests, read-only).
need_system() {
    need_root
    ensure_packages build runtime test
    scripts/build.sh
    if [ ! -e "$TEST_CACHE/kernels/stock/kernel.json" ]; then kernel/fetch-stock.sh "$TEST_CACHE/kernels/stock"; fi
    if [ ! -e "$TEST_CACHE/seed/manifest.json" ]; then templates/seed/build.sh "$TEST_CACHE/seed"; fi
    export SPACE_TEST_OUT=$ROOT/out SPACE_TEST_KERNELS=$TEST_CACHE/kernels SPACE_TEST_SEED=$TEST_CACHE/seed
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

part_openapi() {
    need_tests tests/openapi
    scripts/build.sh
    pytest_folder tests/openapi
}

part_system() {
    need_tests tests/system
    need_system
    pytest_folder tests/system
}

part_client() {
    need_tests tests/client
    need_system
    pytest_folder tests/client
}

part_fault() {
    need_tests tests/fault
    need_system
    pytest_folder tests/fault
}

part_engine() {
    need_tests tests/engine
    need_system
    pytest_folder tests/engine
}

part_docs() {
    need_tests tests/docs
    pytest_folder tests/docs
}
