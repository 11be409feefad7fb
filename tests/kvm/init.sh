#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Process 1 of the emulated machine, from the disk with this tree's files (/mnt): makes a host of it, runs the
# tests in tests/kvm/inner, leaves their results as a tar archive on the disk for that, and powers off.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
readonly RESULTS=/run/results DEADLINE_S=${deadline_s:-480} # the kernel gives its command line's name=value as environment

mount -t tmpfs -o mode=0755 run /run
mkdir -p /dev/pts /dev/shm /run/lock "$RESULTS"
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
modprobe -a kvm-amd btrfs loop tun
ip link set lo up
read -r uptime _ </proc/uptime
echo "kvm: Linux $(uname -r), $(grep -c '^processor' /proc/cpuinfo) processor(s), with svm $(grep -c '^flags.* svm' /proc/cpuinfo)," \
    "$(ls /dev/kvm 2>&1), up in $uptime s"

cd /mnt || exit 1
export SPACE_TEST_OUT=/mnt/out SPACE_CACHE_DIR=/mnt/cache PYTHONPATH=/mnt/tests PYTHONDONTWRITEBYTECODE=1
timeout --signal=INT --kill-after=20 "$DEADLINE_S" /usr/bin/python3 -m pytest -v --color=no -p no:cacheprovider --durations=0 \
    --junitxml="$RESULTS/pytest.xml" -o junit_family=xunit2 tests/kvm/inner </dev/null
echo "kvm: tests ended with status $?"
dmesg >"$RESULTS/dmesg.txt"
tar -cf /dev/vdc -C "$RESULTS" .
exec busybox poweroff -f
