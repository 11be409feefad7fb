/* SPDX-License-Identifier: Apache-2.0 */
/* The job's side of starting a jailed space-vm: fork, listen to what the children report, release or kill. */
#include "broker/vm_child.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "broker/vm_child_proto.h"
#include "host/jail.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

void vm_child_init(struct vm_child *child) {
    *child = (struct vm_child){.pidfd = -1, .sync = -1};
}

static int make_sync(int ret[2], struct sp_error *err) {
    const int on = 1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret) < 0)
        return sp_error_errno(err, errno, "socketpair", "start of a VM");
    /* The sender's credentials tell the stub's pid as this process sees it. */
    if (setsockopt(ret[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0) {
        int e = errno;
        ret[0] = close_fd(ret[0]);
        ret[1] = close_fd(ret[1]);
        return sp_error_errno(err, e, "setsockopt", "SO_PASSCRED");
    }
    return 0;
}

int vm_child_fork(const struct vm_child_plan *plan, struct vm_child *ret, struct sp_error *err) {
    const struct jail_clone how = {
        .namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET,
        .cgroup_fd = plan->cgroup->clone_fd,
    };
    int sync[2];
    pid_t pid;
    int r = make_sync(sync, err);

    if (r < 0)
        return r;
    pid = jail_fork(&how);
    if (pid == 0) {
        (void)close(sync[0]);
        vm_child_main(plan, sync[1]);
    }
    sync[1] = close_fd(sync[1]);
    if (pid < 0) {
        (void)close(sync[0]);
        return sp_error_errno(err, -pid, "clone3", "a process in new namespaces");
    }
    vm_child_init(ret);
    ret->pid = pid;
    ret->sync = sync[0];
    ret->program = plan->program;
    ret->pidfd = pidfd_open(pid, 0);
    if (ret->pidfd < 0) {
        r = sp_error_errno(err, errno, "pidfd_open", "space-vm");
        vm_child_kill(ret);
        return r;
    }
    return 0;
}

/* 1: a message, 0: end of file, negative: failure. */
static int receive(struct vm_child *child, struct deadline deadline, struct vm_child_message *ret, pid_t *ret_sender,
                   struct sp_error *err) {
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(struct ucred))];
    } control = {0};
    struct iovec iov = {.iov_base = ret, .iov_len = sizeof(*ret)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof(control.room)};
    struct pollfd p = {.fd = child->sync, .events = POLLIN};
    struct cmsghdr *c;
    ssize_t n;

    do
        n = poll(&p, 1, deadline_poll_ms(deadline));
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return sp_error_set(err, SP_E_TIMEOUT, "the jail of space-vm was not ready in time");
    n = recvmsg(child->sync, &msg, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno != ECONNRESET)
        return sp_error_errno(err, errno, "recvmsg", "start of a VM");
    if (n <= 0)
        return 0;
    if (n != (ssize_t)sizeof(*ret))
        return sp_error_set(err, SP_E_INTERNAL, "a jailed child sent %zd bytes", n);
    c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
        struct ucred cred;
        memcpy(&cred, CMSG_DATA(c), sizeof(cred));
        *ret_sender = cred.pid;
    }
    return 1;
}

/* What a child reported, taken over. */
static int reported(const struct vm_child_message *message, struct sp_error *err) {
    if (err)
        *err = message->error;
    return message->error.code == SP_OK ? -(int)SP_E_INTERNAL : -(int)message->error.code;
}

int vm_child_wait_ready(struct vm_child *child, struct deadline deadline, struct sp_error *err) {
    bool vm = false, stub = false;

    while (!vm || !stub) {
        struct vm_child_message message = {0};
        pid_t sender = 0;
        int r = receive(child, deadline, &message, &sender, err);
        if (r < 0)
            return r;
        if (r == 0)
            return sp_error_set(err, SP_E_VMM, "the jailed process died while it was set up");
        if (message.kind == CHILD_FAILED)
            return reported(&message, err);
        vm = vm || message.kind == CHILD_VM_READY;
        stub = stub || message.kind == CHILD_STUB_READY;
        if (message.kind == CHILD_STUB_READY)
            child->vmm_pid = sender;
    }
    return 0;
}

/* The kernel sets a process's program before it closes descriptors in an exec, and takes it away before it closes them
 * at the end of the process. */
static bool runs_program(pid_t pid, int program) {
    char path[64];
    struct stat have, want;
    (void)text_printf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    return stat(path, &have) == 0 && fstat(program, &want) == 0 && have.st_dev == want.st_dev &&
           have.st_ino == want.st_ino;
}

int vm_child_release(struct vm_child *child, struct deadline deadline, struct sp_error *err) {
    struct vm_child_message message = {0};
    pid_t sender = 0;
    int r;

    if (send(child->sync, "g", 1, MSG_NOSIGNAL) != 1)
        return sp_error_errno(err, errno, "send", "the jailed process is gone");
    r = receive(child, deadline, &message, &sender, err); /* exec closes the other end */
    if (r < 0)
        return r;
    if (r > 0)
        return reported(&message, err);
    /* End of file also comes when it died instead; what it runs now tells the two apart. */
    if (!runs_program(child->pid, child->program))
        return sp_error_set(err, SP_E_VMM, "space-vm died before it ran");
    return 0;
}

void vm_child_kill(struct vm_child *child) {
    if (child->pid > 0) {
        (void)kill(child->pid, SIGKILL); /* our own child, not reaped yet: the pid is still its */
        while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    child->pid = 0;
    vm_child_leave(child);
}

void vm_child_leave(struct vm_child *child) {
    child->pidfd = close_fd(child->pidfd);
    child->sync = close_fd(child->sync);
}
