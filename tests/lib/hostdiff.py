# SPDX-License-Identifier: Apache-2.0
"""What of ours is on this host, by class of resource, and what one moment has that another had not.

    before = snapshot(state_dir)
    ...
    assert not diff(before, snapshot(state_dir))

Two ways to look. With uid_base only what carries that installation's uids or lies below state_dir counts: for tests that run beside
other work. Without it the whole host counts, but for files, which are always those below state_dir.

Things are named so that a restart of a daemon is no difference: a process is its name and uid, not its pid; a second one of the same
name is "... #2". Logs, the database and configuration are not looked at. Run as a program it prints a snapshot, or the difference
between two: hostdiff.py STATE_DIR [--uid-base N] [--save FILE | --against FILE]"""

import argparse
import collections
import functools
import ctypes
import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import threading

UIDS = 8192
OURS = re.compile(r"^(space|qemu-system)")
SKIPPED_DIRS = {"db", "log", "etc", "kernels", "__pycache__"}
CLASSES = ("processes", "netns", "taps", "mounts", "loops", "cgroups", "unix_sockets", "listeners", "files", "nft", "shm")
ENGINE = re.compile(r"/engines/[0-9a-f]{64}(/|$)")  # made before the first VM, and kept: not one that is only half there
CLONE_NEWNET = 0x40000000


class Scope:
    def __init__(self, state_dir, uid_base):
        self.state_dir = os.path.realpath(state_dir)
        self.uid_base = uid_base

    def uid(self, uid):
        if self.uid_base is None:
            return 65536 < uid < 4294900000
        return self.uid_base <= uid < self.uid_base + UIDS

    def path(self, path):
        return path == self.state_dir or path.startswith(self.state_dir + "/")

    def text(self, text):
        return self.state_dir in text

    @property
    def whole(self):
        return self.uid_base is None


def read(path):
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""


def counted(names):
    """The second and further ones of a name get a number."""
    seen, out = collections.Counter(), set()
    for name in sorted(names):
        seen[name] += 1
        out.add(name if seen[name] == 1 else "%s #%d" % (name, seen[name]))
    return out


class Process:
    """Of most there is little to know, and they are many: the rest is read when it is asked for."""

    def __init__(self, pid):
        self.pid = pid
        found = re.match(r"Name:\t(.*)\n(?:.*\n)*?State:\t(\S).*\n(?:.*\n)*?Uid:\t(\d+)", read("/proc/%d/status" % pid))
        if not found:
            raise ProcessLookupError
        self.comm, self.state, self.uid = found.group(1), found.group(2), int(found.group(3))

    @functools.cached_property
    def cmdline(self):
        return read("/proc/%d/cmdline" % self.pid).replace("\0", " ")

    @functools.cached_property
    def netns(self):
        try:
            return os.stat("/proc/%d/ns/net" % self.pid).st_ino
        except OSError:
            return None

    def links(self):
        try:
            for fd in os.listdir("/proc/%d/fd" % self.pid):
                try:
                    yield os.readlink("/proc/%d/fd/%s" % (self.pid, fd))
                except OSError:
                    pass
        except OSError:
            pass


def processes():
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                yield Process(int(name))
            except OSError:
                pass


def is_ours(p, scope):
    if scope.uid(p.uid) or scope.text(p.cmdline):
        return True
    return scope.whole and bool(OURS.match(p.comm))


def list_processes(scope, all_processes):
    return counted("%s uid %d%s" % (p.comm, p.uid, " (zombie)" if p.state == "Z" else "")
                   for p in all_processes if is_ours(p, scope))


def nsfs_mounts():
    for line in read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("nsfs "):
            yield left.split()[4], left.split()[3]


def list_netns(scope, all_processes):
    """Namespaces other than the host's: those of processes, those that a descriptor or a mount keeps."""
    host = os.stat("/proc/self/ns/net").st_ino
    found = []
    by_inode = collections.defaultdict(list)
    for p in all_processes:
        if (scope.whole or is_ours(p, scope)) and p.netns and p.netns != host:
            by_inode[p.netns].append(p)
    for members in by_inode.values():
        found.append("of %s uid %d" % (members[0].comm, members[0].uid))
    for p in all_processes:
        if scope.whole or is_ours(p, scope):
            found += ["descriptor in %s" % p.comm for link in p.links()
                      if link.startswith("net:[") and link != "net:[%d]" % host]
    found += ["mounted on %s" % at for at, what in nsfs_mounts() if what.startswith("net:") and (scope.whole or scope.path(at))]
    return counted(found)


def interfaces_of(path):
    """Interfaces in a network namespace, looked at from a thread that enters it and ends there."""
    names = []

    def enter():
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            return
        try:
            if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET) == 0:
                names.extend(line.split(":")[0].strip() for line in read("/proc/thread-self/net/dev").splitlines()[2:])
        finally:
            os.close(fd)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return names


def list_taps(scope, all_processes):
    """Open tap descriptors, and interfaces named like a tap in any namespace a process is in."""
    found = []
    seen = set()
    for p in all_processes:
        if not scope.whole and not is_ours(p, scope):
            continue
        found += ["descriptor in %s uid %d" % (p.comm, p.uid) for link in p.links() if link.endswith("/net/tun")]
        if p.netns and p.netns not in seen:
            seen.add(p.netns)
            where = "the host" if p.netns == os.stat("/proc/self/ns/net").st_ino else "the namespace of %s" % p.comm
            found += ["%s in %s" % (i, where) for i in interfaces_of("/proc/%d/ns/net" % p.pid) if re.match("(tap|tun|space)", i)]
    if os.stat("/proc/self/ns/net").st_ino not in seen:
        found += ["%s in the host" % i for i in interfaces_of("/proc/self/ns/net") if re.match("(tap|tun|space)", i)]
    return counted(found)


def list_mounts(scope):
    found = []
    for line in read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        at, kind = left.split()[4], right.split()[0]
        if scope.whole or scope.path(at):
            found.append("%s on %s" % (kind, at))
    return counted(found)


def list_loops(scope):
    found = []
    for p in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        backing = read(p).strip()
        if backing and (scope.whole or scope.path(backing.replace(" (deleted)", ""))):
            found.append(backing)
    return counted(found)


def list_cgroups(scope):
    found = []
    want = "space-" if scope.whole else "space-%d" % scope.uid_base
    for line in read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] not in ("cgroup", "cgroup2"):
            continue
        root = pathlib.Path(left.split()[4])
        for group in root.glob("space-*"):
            if group.name == want or scope.whole:
                found += [top for top, _, _ in os.walk(group)]  # which minds no group that goes away meanwhile
    return set(found)


def list_unix_sockets(scope):
    found = []
    for line in read("/proc/net/unix").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and scope.path(fields[7]) and int(fields[3], 16) & 0x10000:  # listening
            found.append(fields[7])
    return set(found)


def list_listeners(scope):
    found = []
    for table in ("tcp", "tcp6"):
        for line in read("/proc/net/" + table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and scope.uid(int(fields[7])):
                found.append("%s port %d uid %s" % (table, int(fields[1].rpartition(":")[2], 16), fields[7]))
    return counted(found)


def list_files(scope):
    found = []
    for top, dirs, files in os.walk(scope.state_dir):
        dirs[:] = [d for d in dirs if d not in SKIPPED_DIRS]
        for name in dirs + files:
            path = os.path.join(top, name)
            try:
                kind = stat.S_IFMT(os.lstat(path).st_mode)
            except OSError:
                continue
            if not name.endswith((".pid", ".log")) and not ENGINE.search(path):
                found.append(os.path.relpath(path, scope.state_dir) + {stat.S_IFDIR: "/", stat.S_IFSOCK: "="}.get(kind, ""))
    return set(found)


def list_nft(scope):
    if not scope.whole:
        return set()
    try:
        out = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return set(out.stdout.splitlines())


def list_shm(scope):
    found = []
    for p in pathlib.Path("/dev/shm").glob("*"):
        try:
            if scope.uid(p.lstat().st_uid):
                found.append(p.name)
        except OSError:
            pass
    return set(found)


def spares(state_dir, everyone):
    """{id: uid} of the machines that stand by (node-protocol.md): those that live. A dead one is a leftover like any other."""
    found = {}
    for record in list(pathlib.Path(state_dir).glob("store/sandboxes/spr_*/vm.json")) + \
            list(pathlib.Path(state_dir).glob("*/store/sandboxes/spr_*/vm.json")):
        try:
            uid = json.loads(record.read_text())["uid"]
        except (OSError, ValueError, KeyError):
            continue
        if any(p.uid == uid and p.comm == "space-vm" for p in everyone):
            found[record.parent.name] = uid
    return found


def snapshot(state_dir, uid_base=None, standing_by=False):
    """{class: set of names}. With standing_by, machines that live and belong to nobody yet are left out: how many there are is the node's
    affair and changes by itself."""
    scope = Scope(str(state_dir), uid_base)
    everyone = list(processes())
    left_out = spares(state_dir, everyone) if standing_by else {}
    everyone = [p for p in everyone if p.uid not in left_out.values()]
    seen = {"processes": list_processes(scope, everyone), "netns": list_netns(scope, everyone), "taps": list_taps(scope, everyone),
            "mounts": list_mounts(scope), "loops": list_loops(scope), "cgroups": list_cgroups(scope),
            "unix_sockets": list_unix_sockets(scope), "listeners": list_listeners(scope), "files": list_files(scope),
            "nft": list_nft(scope), "shm": list_shm(scope)}
    return {c: {n for n in names if not any(i in n for i in left_out)} for c, names in seen.items()}


def diff(before, after, ignore=()):
    """{class: what is new}, empty when nothing is. What has gone is no leak."""
    new = {c: sorted(after[c] - before[c]) for c in CLASSES if c not in ignore}
    return {c: names for c, names in new.items() if names}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("state_dir")
    parser.add_argument("--uid-base", type=int)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--save")
    group.add_argument("--against")
    args = parser.parse_args()
    now = snapshot(args.state_dir, args.uid_base)
    plain = {c: sorted(names) for c, names in now.items()}
    if args.save:
        pathlib.Path(args.save).write_text(json.dumps(plain, indent=1))
        return 0
    if args.against:
        old = {c: set(names) for c, names in json.loads(pathlib.Path(args.against).read_text()).items()}
        plain = diff(old, now)
    print(json.dumps(plain, indent=1))
    return 1 if args.against and plain else 0


if __name__ == "__main__":
    sys.exit(main())
