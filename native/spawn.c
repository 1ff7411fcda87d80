/* How a child is made where a compiler was there: the C half of node_manager/runtime/spawn.py.
 *
 * A thread of its own calls clone3 with CLONE_VM and CLONE_VFORK. The child borrows the agent's memory until its exec,
 * so that nothing is copied however large the agent is; the kernel stops that thread, and no other, until the child
 * has let go. The agent's loop waits only until the child exists. A child that hangs before its exec (a working
 * directory on a dead server) costs a sleeping thread, until it is killed. Nor does the loop wait for the child's first
 * turn: in a cgroup that is frozen, or may not use the processor for a while, that does not come, and the pid is taken
 * from where the kernel wrote it.
 *
 * CLONE_VFORK is not there for speed: of a child that shares memory without it, the kernel takes the agent for the
 * same program, so that the child's oom_score_adj becomes the agent's, and an OOM kill of the one ends both.
 *
 * The child makes system calls alone, and those that glibc would spread over all threads (setuid) by number.
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#define INTO_CGROUP 0x200000000ULL /* CLONE_INTO_CGROUP, linux/sched.h, kernel 5.7 */
#define FIRST_AFTER_STDIO 3
#define PID_DIGITS 10
#define LOST 127 /* exit status of a child that did not execute its command; nobody reads it */
#define THREAD_STACK (128 * 1024)
#define CHILD_STACK (48 * 1024)
#define LOOK_NS 5000000 /* how often the caller looks for itself whether the child exists; most say so at once */
#define NS_PER_S 1000000000

/* The stages that a child can fail in, as the Python half names them: exported, and compared at import. */
enum stage { SESSION, OUTPUT, LIMITS, OOM, USER, DIRECTORY, DEADLINE, EXEC, INTERNAL, CGROUP, FUSE, STAGES };
static const char *const STAGE_NAMES[STAGES] = {
    "session", "output", "limits", "oom_score_adj", "user", "directory", "deadline", "exec", "internal", "cgroup",
    "fuse",
};

/* The kernel's struct clone_args up to CLONE_ARGS_SIZE_VER2; not every libc's headers have it. */
struct clone_arguments {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

struct plan {
    atomic_int holders; /* the caller and the thread; the last one frees */
    atomic_int told;
    sem_t known; /* `pid` and `pidfd` are, or `error` is */
    int pid, pidfd, error;
    atomic_int made; /* the pid, written by the kernel once the child and `pidfd` exist; 0 where only the child says */

    char **argv, **envp, **candidates;
    char *own_pid; /* where in the environment the child writes its pid; NULL: nowhere */
    const char *directory;
    int output_fd, report_fd, cgroup_fd, fuse_fd;
    int joined; /* it was made in its cgroup: it need not go there */
    int64_t nofile, not_after_ns;
    char oom_score_adj[16];
    int change_user;
    uid_t uid;
    gid_t gid;
    size_t group_count;
    gid_t *groups;
    pid_t parent;
    enum stage stage;
    int tried;
};

/* --- the child ---------------------------------------------------------------------------------------------------- */

static void write_decimal(char *to, unsigned value)
{
    char digits[PID_DIGITS];
    size_t count = 0;
    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    for (size_t i = 0; i < count; i++)
        to[i] = digits[count - 1 - i];
    to[count] = '\0';
}

static int die_with(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL) != 0)
        return -1;
    if (getppid() != parent)
        _exit(LOST);
    return 0;
}

static int join_cgroup(int cgroup_fd)
{
    int fd = openat(cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, "0", 1);
    int error = errno;
    close(fd);
    errno = error;
    return written == 1 ? 0 : -1;
}

/* Standard input from nowhere; output and error to `output_fd`, or nowhere when that is closed. */
static int wire_stdio(int output_fd)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int null_fd = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_AFTER_STDIO);
    if (null_fd < 0)
        return -1;
    if (dup2(output_fd, 1) < 0 && dup2(null_fd, 1) < 0)
        return -1;
    if (dup2(1, 2) < 0 || dup2(null_fd, 0) < 0)
        return -1;
    return fcntl(1, F_SETFD, 0); /* dup2 onto itself keeps close-on-exec */
}

static int set_limit(int64_t nofile)
{
    struct rlimit limit = {(rlim_t)nofile, (rlim_t)nofile};
    return setrlimit(RLIMIT_NOFILE, &limit);
}

static int set_oom_score_adj(const char *text)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return written < 0 ? -1 : 0;
}

/* By number: glibc's functions would have every thread of the agent do the same. */
static int change_user(const struct plan *plan)
{
    if (syscall(SYS_setgroups, plan->group_count, plan->groups) != 0 || syscall(SYS_setgid, plan->gid) != 0 ||
        syscall(SYS_setuid, plan->uid) != 0)
        return -1;
    return die_with(plan->parent); /* the change of the user took it back */
}

struct directory_entry { /* struct linux_dirent64, getdents64(2) */
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

/* For a kernel or a container that refuses close_range. */
static int close_listed(int one, int other)
{
    _Alignas(struct directory_entry) char buffer[4096];
    int listing = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (listing < 0)
        return -1;
    for (;;) {
        long size = syscall(SYS_getdents64, listing, buffer, sizeof buffer);
        if (size <= 0) {
            close(listing);
            return size == 0 ? 0 : -1;
        }
        for (long at = 0; at < size;) {
            const struct directory_entry *entry = (const struct directory_entry *)(buffer + at);
            int number = 0;
            for (const char *digit = entry->name; *digit >= '0' && *digit <= '9'; digit++)
                number = number * 10 + (*digit - '0');
            if (number >= FIRST_AFTER_STDIO && number != one && number != other && number != listing)
                close(number);
            at += entry->length;
        }
    }
}

static int close_range_(int first, unsigned last)
{
    return (unsigned)first > last ? 0 : (int)syscall(SYS_close_range, first, last, 0);
}

/* Close everything behind standard error but these two, which an exec closes. At once, because the child may hang
 * before its exec, and not even SIGKILL may end it: it must keep nothing of the agent's, its lock least of all. */
static int close_others(int one, int other)
{
    int low = one < other ? one : other, high = one < other ? other : one;
    if (low < FIRST_AFTER_STDIO)
        low = FIRST_AFTER_STDIO - 1;
    if (close_range_(FIRST_AFTER_STDIO, (unsigned)low - 1) == 0 && close_range_(low + 1, (unsigned)high - 1) == 0 &&
        close_range_(high + 1, ~0U) == 0)
        return 0;
    return close_listed(one, other);
}

/* Default dispositions and an empty mask: exec would keep what the agent ignores or blocks. */
static int reset_signals(void)
{
    struct {
        void *handler;
        unsigned long rest[8];
    } action; /* larger than any architecture's struct; all zero is SIG_DFL */
    memset(&action, 0, sizeof action);
    for (int number = 1; number <= 64; number++)
        if (number != SIGKILL && number != SIGSTOP)
            syscall(SYS_rt_sigaction, number, &action, NULL, (size_t)8);
    uint64_t none = 0;
    return (int)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, (size_t)8);
}

/* Have the fuse know this process before it becomes the command: it gets a descriptor on it and answers an errno. */
static int enlist(int fuse_fd)
{
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (own < 0)
        return -1;
    char word = 'E';
    struct iovec part = {&word, 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &own, sizeof own);
    if (syscall(SYS_sendmsg, fuse_fd, &message, MSG_NOSIGNAL) < 0)
        return -1;
    close(own);
    int32_t answer = 0;
    long size = syscall(SYS_read, fuse_fd, &answer, sizeof answer);
    if (size < 0)
        return -1;
    errno = size == sizeof answer ? answer : EPIPE;
    return errno == 0 ? 0 : -1;
}

static int late(int64_t not_after_ns)
{
    struct timespec now;
    if (clock_gettime(CLOCK_BOOTTIME, &now) != 0)
        return -1;
    if ((int64_t)now.tv_sec * NS_PER_S + now.tv_nsec < not_after_ns)
        return 0;
    errno = ETIME;
    return -1;
}

/* Try each path as execvp(3) does; the errno that tells most, and whose it is. */
static int execute(struct plan *plan)
{
    int error = ENOENT;
    for (int i = 0; plan->candidates[i] != NULL; i++) {
        execve(plan->candidates[i], plan->argv, plan->envp);
        if (errno == ENOENT || errno == ENOTDIR)
            continue;
        error = errno;
        plan->tried = i;
        if (error != EACCES)
            break;
    }
    errno = error;
    return -1;
}

/* Everything in order; returns with errno and plan->stage set where it fails. */
static void become(struct plan *plan)
{
#define STEP(name, call)                                                                                               \
    plan->stage = name;                                                                                                \
    if ((call) != 0)                                                                                                   \
        return
    STEP(SESSION, die_with(plan->parent));
    STEP(SESSION, setsid() < 0);
    if (plan->cgroup_fd >= 0 && !plan->joined) {
        STEP(CGROUP, join_cgroup(plan->cgroup_fd));
    }
    STEP(OUTPUT, wire_stdio(plan->output_fd));
    /* Before the limit: these need a descriptor, and the parent may have more open than the child may have. */
    STEP(INTERNAL, close_others(plan->report_fd, plan->fuse_fd));
    if (plan->oom_score_adj[0] != '\0') {
        STEP(OOM, set_oom_score_adj(plan->oom_score_adj));
    }
    if (plan->fuse_fd >= 0) {
        STEP(FUSE, enlist(plan->fuse_fd));
    }
    plan->stage = LIMITS;
    umask(022);
    if (plan->nofile >= 0) {
        STEP(LIMITS, set_limit(plan->nofile));
    }
    if (plan->change_user) {
        STEP(USER, change_user(plan));
    }
    STEP(DIRECTORY, chdir(plan->directory));
    STEP(INTERNAL, reset_signals());
    if (plan->own_pid != NULL)
        write_decimal(plan->own_pid, (unsigned)syscall(SYS_getpid));
    if (plan->not_after_ns >= 0) {
        STEP(DEADLINE, late(plan->not_after_ns));
    }
    STEP(EXEC, prctl(PR_SET_PDEATHSIG, 0UL));
    STEP(EXEC, execute(plan));
#undef STEP
}

static void tell(struct plan *plan)
{
    if (atomic_exchange(&plan->told, 1) == 0)
        sem_post(&plan->known);
}

static int child_main(void *argument)
{
    struct plan *plan = argument;
    plan->pid = (int)syscall(SYS_getpid);
    tell(plan);
    errno = EIO;
    become(plan);
    struct __attribute__((packed)) {
        int32_t error;
        uint8_t stage;
        int16_t tried;
    } report = {errno, (uint8_t)plan->stage, (int16_t)plan->tried};
    ssize_t written = write(plan->report_fd, &report, sizeof report);
    (void)written; /* nobody is left to hear it */
    _exit(LOST);
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

/* clone3 onto another stack; `child` never returns. The errno, negative, or the pid. */
static long clone3_onto(struct clone_arguments *arguments, int (*child)(void *), void *argument)
{
#if defined(__x86_64__)
    register long result __asm__("rax") = SYS_clone3;
    register void *first __asm__("rdi") = arguments;
    register size_t second __asm__("rsi") = sizeof *arguments;
    register int (*function)(void *) __asm__("r12") = child;
    register void *data __asm__("r13") = argument;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %[data], %%rdi\n\t"
                     "call *%[function]\n\t"
                     "hlt\n"
                     "1:"
                     : "+r"(result)
                     : "r"(first), "r"(second), [function] "r"(function), [data] "r"(data)
                     : "rcx", "r11", "memory", "cc");
    return result;
#elif defined(__aarch64__)
    register long number __asm__("x8") = SYS_clone3;
    register void *first __asm__("x0") = arguments;
    register size_t second __asm__("x1") = sizeof *arguments;
    register int (*function)(void *) __asm__("x20") = child;
    register void *data __asm__("x21") = argument;
    __asm__ volatile("svc #0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, #0\n\t"
                     "mov x0, %[data]\n\t"
                     "blr %[function]\n\t"
                     "brk #1\n"
                     "1:"
                     : "+r"(first)
                     : "r"(number), "r"(second), [function] "r"(function), [data] "r"(data)
                     : "memory", "cc");
    return (long)first;
#else
    (void)arguments, (void)child, (void)argument;
    return -ENOSYS; /* glibc's clone does it, and the child goes into its cgroup by itself */
#endif
}

static void release(struct plan *plan)
{
    if (atomic_fetch_sub(&plan->holders, 1) == 1) {
        sem_destroy(&plan->known);
        free(plan);
    }
}

static void *spawner(void *argument)
{
    struct plan *plan = argument;
    _Alignas(16) char stack[CHILD_STACK];
    struct clone_arguments arguments = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_PARENT_SETTID |
                 (plan->cgroup_fd >= 0 ? INTO_CGROUP : 0),
        .pidfd = (uint64_t)(uintptr_t)&plan->pidfd,
        .parent_tid = (uint64_t)(uintptr_t)&plan->made,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
        .cgroup = plan->cgroup_fd >= 0 ? (uint64_t)plan->cgroup_fd : 0,
    };
    plan->joined = 1;
    long pid = clone3_onto(&arguments, child_main, plan);
    if (pid < 0 && pid != -EAGAIN && pid != -ENOMEM && pid != -EMFILE && pid != -ENFILE) {
        /* An old kernel, a container that forbids clone3, or a cgroup that cannot be entered this way: the child goes
         * there itself, and tells why where it cannot. */
        plan->joined = 0;
        pid = clone(child_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, plan,
                    &plan->pidfd);
        if (pid < 0)
            pid = -errno;
    }
    if (pid < 0)
        plan->error = (int)-pid;
    else if (atomic_load(&plan->told) == 0)
        plan->pid = (int)pid; /* it was killed before it could say so */
    tell(plan);
    release(plan);
    return NULL;
}

/* Wait until there is a child or an error; the pid. Nobody tells of a child that does not get its first turn: the thread
 * sleeps until the child's exec. `clone` has no place for the pid, but there the child begins in the agent's own group. */
static int wait_for_pid(struct plan *plan)
{
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / NS_PER_S;
        until.tv_nsec %= NS_PER_S;
        if (sem_clockwait(&plan->known, CLOCK_MONOTONIC, &until) == 0)
            return plan->pid;
        int made = atomic_load(&plan->made);
        if (made != 0)
            return made;
    }
}

/* The pid and the pidfd of a new child, or the errno. All signals are blocked on the way: a handler of the agent must
 * not run in the child, whose wake-up descriptor is the agent's own. */
static int start(struct plan *plan, int *pid, int *pidfd)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, THREAD_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&thread, &attributes, spawner, plan);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0) {
        release(plan); /* the thread's part */
    } else {
        *pid = wait_for_pid(plan);
        error = plan->error;
        *pidfd = plan->pidfd;
    }
    release(plan);
    return error;
}

/* --- Python ------------------------------------------------------------------------------------------------------- */

/* Bytes that a tuple of bytes needs as an array of strings; -1 with an exception. */
static Py_ssize_t measure(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple), total = 0;
    if (count < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        char *text;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &text, &size) != 0)
            return -1;
        total += size + 1;
    }
    return total + (count + 1) * (Py_ssize_t)sizeof(char *);
}

/* Copy it there: first the pointers, at `*table`, then the strings, at `*text`. Both move on. */
static char **copy_strings(PyObject *tuple, char ***table, char **text)
{
    char **strings = *table;
    Py_ssize_t count = PyTuple_Size(tuple);
    for (Py_ssize_t i = 0; i < count; i++) {
        char *source = NULL;
        Py_ssize_t size = 0;
        PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &source, &size);
        memcpy(*text, source, (size_t)size);
        (*text)[size] = '\0';
        *(*table)++ = *text;
        *text += size + 1;
    }
    *(*table)++ = NULL;
    return strings;
}

PyDoc_STRVAR(start_doc,
             "start(argv, envp, candidates, directory, own_pid_index, output_fd, report_fd, cgroup_fd, fuse_fd, nofile,"
             " oom_score_adj, account, not_after_ns) -> (pid, pidfd)\n--\n\n"
             "Make a child that becomes the first candidate that can be executed.\n\n"
             "Texts are bytes. `own_pid_index` is the place in envp of a variable NAME=, to which the child adds its "
             "pid; -1: none. `account` is (uid, gid, groups), or None: as the caller. Numbers below zero mean: not "
             "asked for; oom_score_adj is bytes, empty: not asked for. Raises OSError.");

static PyObject *start_method(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *argv, *envp, *candidates, *account;
    const char *directory, *oom;
    Py_ssize_t own_pid_index;
    int output_fd, report_fd, cgroup_fd, fuse_fd;
    long long nofile, not_after_ns;
    if (!PyArg_ParseTuple(args, "O!O!O!yniiiiLyOL:start", &PyTuple_Type, &argv, &PyTuple_Type, &envp, &PyTuple_Type,
                          &candidates, &directory, &own_pid_index, &output_fd, &report_fd, &cgroup_fd, &fuse_fd,
                          &nofile, &oom, &account, &not_after_ns))
        return NULL;
    unsigned uid = 0, gid = 0;
    PyObject *groups = NULL;
    if (account != Py_None && !PyArg_ParseTuple(account, "IIO!:account", &uid, &gid, &PyTuple_Type, &groups))
        return NULL;
    Py_ssize_t group_count = groups == NULL ? 0 : PyTuple_Size(groups);
    Py_ssize_t sizes[3] = {measure(argv), measure(envp), measure(candidates)};
    if (sizes[0] < 0 || sizes[1] < 0 || sizes[2] < 0)
        return NULL;
    if (own_pid_index >= PyTuple_Size(envp) || strlen(oom) >= sizeof((struct plan *)NULL)->oom_score_adj) {
        PyErr_SetString(PyExc_ValueError, "own_pid_index or oom_score_adj is out of range");
        return NULL;
    }

    size_t directory_size = strlen(directory) + 1, own_pid_size = 0;
    if (own_pid_index >= 0)
        own_pid_size = (size_t)PyBytes_Size(PyTuple_GetItem(envp, own_pid_index)) + PID_DIGITS + 1;
    struct plan *plan = calloc(1, sizeof *plan + (size_t)(sizes[0] + sizes[1] + sizes[2]) + directory_size +
                                      (size_t)group_count * sizeof(gid_t) + own_pid_size);
    if (plan == NULL)
        return PyErr_NoMemory();
    char **table = (char **)(plan + 1);
    plan->groups = (gid_t *)(table + PyTuple_Size(argv) + PyTuple_Size(envp) + PyTuple_Size(candidates) + 3);
    char *text = (char *)(plan->groups + group_count);
    plan->argv = copy_strings(argv, &table, &text);
    plan->candidates = copy_strings(candidates, &table, &text);
    plan->envp = copy_strings(envp, &table, &text);
    plan->directory = memcpy(text, directory, directory_size);
    text += directory_size;
    if (own_pid_index >= 0) { /* this one is moved to where there is room behind it */
        size_t size = strlen(plan->envp[own_pid_index]);
        plan->envp[own_pid_index] = memcpy(text, plan->envp[own_pid_index], size + 1);
        plan->own_pid = text + size;
    }
    plan->change_user = groups != NULL;
    plan->uid = uid;
    plan->gid = gid;
    plan->group_count = (size_t)group_count;
    for (Py_ssize_t i = 0; i < group_count; i++)
        plan->groups[i] = (gid_t)PyLong_AsUnsignedLong(PyTuple_GetItem(groups, i));
    if (PyErr_Occurred() != NULL) {
        free(plan);
        return NULL;
    }
    strcpy(plan->oom_score_adj, oom);
    plan->output_fd = output_fd;
    plan->report_fd = report_fd;
    plan->cgroup_fd = cgroup_fd;
    plan->fuse_fd = fuse_fd;
    plan->nofile = nofile;
    plan->not_after_ns = not_after_ns;
    plan->parent = getpid();
    plan->tried = -1;
    plan->pidfd = -1;
    atomic_init(&plan->holders, 2);
    atomic_init(&plan->made, 0);
    sem_init(&plan->known, 0, 0);
    int pid = -1, pidfd = -1;
    int error = start(plan, &pid, &pidfd);
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("(ii)", pid, pidfd);
}

static PyMethodDef methods[] = {{"start", start_method, METH_VARARGS, start_doc}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Children made without a copy of the agent.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    PyObject *stages = PyTuple_New(STAGES);
    if (module == NULL || stages == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < STAGES; i++)
        if (PyTuple_SetItem(stages, i, PyUnicode_FromString(STAGE_NAMES[i])) != 0)
            return NULL;
    if (PyModule_AddObjectRef(module, "STAGES", stages) != 0)
        return NULL;
    return module;
}
