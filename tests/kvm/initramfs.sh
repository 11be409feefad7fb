#!/bin/busybox sh
# shellcheck shell=dash
# SPDX-License-Identifier: Apache-2.0
#
# The first program of the emulated machine: loads what the disks need, mounts the root file system and
# this tree's files, and goes on with the init that is among them.
set -eu
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r module; do insmod "/modules/$module"; done </modules/order
mount -t ext4 -o noatime /dev/vda /new
mount -t ext4 -o ro /dev/vdb /new/mnt
mount --move /dev /new/dev
mount --move /proc /new/proc
mount --move /sys /new/sys
exec switch_root /new /mnt/tests/kvm/init.sh
