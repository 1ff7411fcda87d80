/* xce-fuse: kills a leased component when its lease has run out, whatever has become of the agent.
 *
 * usage: xce-fuse COMPONENT NONCE, its standard output a listening SEQPACKET socket.
 *
 * The agent says until when (ARM, RENEW) and gets an answer; everything else happens here: a timer on CLOCK_BOOTTIME,
 * and SIGKILL. What it guards is a cgroup, or, where there is none, a process that enlisted itself before its exec and
 * whatever carries its markers. A fuse that has blown keeps what it guards empty, until it is armed anew. It obeys the
 * newest connection of a process of its own user and nobody else. node_manager/runtime/fuse.py is the other side;
 * docs/decisions/0010-fuse.md has the reasons.
 *
 * It allocates nothing after its start and asks the kernel for memory that stays, a real-time priority and to be
 * spared by the OOM killer; what of that it got, its answers say.
 */

#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#define LISTENER 1
#define NS 1000000000LL
#define LOOK_AGAIN_MS 20      /* while something lives that should not; doubled from look to look */
#define LOOK_AT_LEAST_MS 320  /* what survives SIGKILL (uninterruptible sleep) can last */
#define FIRST_WORD_MS 10000   /* for an agent that died before it connected */
#define CLEAN_LOOKS 2         /* a process may fork and exit behind a single look at the process table */
#define MAX_ENVIRON (64 * 1024)

enum kind { ARM_GROUP = 1, ARM_LINK, RENEW, RELEASE, ASK, RETIRE, LISTEN };
enum mark { BLOWN = 1, LOCKED = 2, REAL_TIME = 4, OOM_SPARED = 8, OCCUPIED = 16 };

struct order {
    uint32_t kind;
    uint32_t whole_tree; /* of ARM_LINK: not the enlisted process alone */
    uint64_t generation;
    int64_t deadline_ns;
};

struct answer {
    int32_t error; /* an errno; 0: done */
    uint32_t kind;
    uint64_t generation;
    int64_t deadline_ns;
    uint32_t marks;
    int32_t pid;
};

static const char *component, *nonce;
static uint32_t whole_tree;
static uint32_t marks;       /* LOCKED, REAL_TIME, OOM_SPARED */
static int control = -1;     /* the agent */
static int link_fd = -1;     /* to the child that is to enlist itself */
static int timer = -1;
static enum { NOTHING, GROUP, PROCESS } guarded;
static int kill_fd = -1, events_fd = -1; /* of the guarded cgroup; closed when that is gone */
static int main_pidfd = -1;  /* of the guarded process */
static uint64_t generation;
static int64_t deadline_ns;  /* 0: not armed */
static int blown, clean_looks;

static void replace_fd(int *place, int fd)
{
    if (*place >= 0)
        close(*place);
    *place = fd;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * NS + now.tv_nsec;
}

static int set_timer(int64_t at_ns)
{
    struct itimerspec at = {{0, 0}, {at_ns / NS, at_ns % NS}};
    return timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static int ended(int pidfd)
{
    struct pollfd look = {pidfd, POLLIN, 0};
    return poll(&look, 1, 0) > 0;
}

static int send_signal(int pidfd, int number)
{
    return (int)syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
}

/* Whether anything lives in the guarded cgroup; one that is gone is empty, and not to be polled any more. */
static int populated(void)
{
    char text[256];
    ssize_t size = events_fd < 0 ? 0 : pread(events_fd, text, sizeof text - 1, 0);
    if (size <= 0) {
        replace_fd(&events_fd, -1);
        replace_fd(&kill_fd, -1);
        return 0;
    }
    text[size] = '\0';
    return strstr(text, "populated 1") != NULL;
}

static int occupied(void)
{
    return guarded == GROUP ? populated() : main_pidfd >= 0 && !ended(main_pidfd);
}

/* --- without a cgroup: everything that carries the markers -------------------------------------------------------- */

static char environ_text[MAX_ENVIRON];

static int read_of(int pid, const char *name, char *into, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t size = read(fd, into, room - 1);
    close(fd);
    if (size < 0)
        return -1;
    into[size] = '\0';
    return (int)size;
}

struct look {
    char state;
    int session;
    unsigned long long start_ticks;
};

static int look_at(int pid, struct look *found)
{
    char text[1024];
    if (read_of(pid, "stat", text, sizeof text) <= 0)
        return -1;
    const char *rest = strrchr(text, ')'); /* the name before it may hold anything */
    if (rest == NULL)
        return -1;
    int fields = sscanf(rest, ") %c %*d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        &found->state, &found->session, &found->start_ticks);
    return fields == 3 ? 0 : -1;
}

/* Whether the environment that it was started with names this component of this host, and no later generation. */
static int marked(int pid)
{
    int size = read_of(pid, "environ", environ_text, sizeof environ_text), found = 0;
    for (const char *at = environ_text; at < environ_text + size; at += strlen(at) + 1) {
        if (strncmp(at, "XCE_COMPONENT=", 14) == 0 && strcmp(at + 14, component) == 0)
            found |= 1;
        if (strncmp(at, "XCE_NODE_NONCE=", 15) == 0 && strcmp(at + 15, nonce) == 0)
            found |= 2;
        if (strncmp(at, "XCE_GENERATION=", 15) == 0 && strtoull(at + 15, NULL, 10) <= generation)
            found |= 4;
    }
    return found == 7;
}

/* SIGKILL the very process that was seen, if it is still that one. */
static void kill_exactly(int pid, const struct look *seen)
{
    struct look again;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        return;
    if (look_at(pid, &again) == 0 && again.start_ticks == seen->start_ticks)
        send_signal(pidfd, SIGKILL);
    close(pidfd);
}

static int main_pid(void)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", main_pidfd);
    int fd = open(path, O_RDONLY | O_CLOEXEC), pid = 0;
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size > 0) {
        text[size] = '\0';
        const char *line = strstr(text, "\nPid:");
        if (line != NULL)
            sscanf(line, "\nPid: %d", &pid);
    }
    return pid;
}

/* SIGKILL this process if it belongs to the component and lives. Whether it did. */
static int sweep_one(int pid, int session)
{
    struct look seen;
    if (pid <= 1 || pid == getpid() || look_at(pid, &seen) != 0 || strchr("ZXx", seen.state) != NULL)
        return 0;
    if (!(session > 0 && seen.session == session) && !marked(pid))
        return 0;
    kill_exactly(pid, &seen);
    return 1;
}

struct directory_entry { /* struct linux_dirent64, getdents64(2) */
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

/* SIGKILL everything that belongs to the component. How many there were; 1 where it cannot look. */
static int sweep(void)
{
    static _Alignas(struct directory_entry) char buffer[32 * 1024];
    /* The session's number means ours as long as its leader has not been reaped. */
    int session = main_pidfd >= 0 && send_signal(main_pidfd, 0) == 0 ? main_pid() : 0, found = 0;
    int table = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (table < 0)
        return 1;
    for (long size; (size = syscall(SYS_getdents64, table, buffer, sizeof buffer)) > 0;) {
        for (long at = 0; at < size;) {
            const struct directory_entry *entry = (const struct directory_entry *)(buffer + at);
            if (isdigit((unsigned char)entry->name[0]))
                found += sweep_one(atoi(entry->name), session);
            at += entry->length;
        }
    }
    close(table);
    return found;
}

/* --- blowing ------------------------------------------------------------------------------------------------------ */

/* SIGKILL what is there. Whether to look again soon. */
static int keep_empty(void)
{
    if (guarded == NOTHING)
        return 0;
    if (guarded == GROUP) {
        if (!populated())
            return 0;
        ssize_t written = pwrite(kill_fd, "1", 1, 0);
        (void)written; /* the group is gone, or it is tried again */
        return 1;
    }
    if (main_pidfd >= 0 && !ended(main_pidfd)) {
        send_signal(main_pidfd, SIGKILL);
        clean_looks = 0;
    }
    if (!whole_tree)
        return main_pidfd >= 0 && !ended(main_pidfd);
    if (clean_looks < CLEAN_LOOKS)
        clean_looks = sweep() == 0 ? clean_looks + 1 : 0;
    return clean_looks < CLEAN_LOOKS;
}

static void blow(void)
{
    blown = 1;
    clean_looks = 0;
    replace_fd(&link_fd, -1); /* whoever waits there for an answer gets none */
}

/* --- what the agent says ------------------------------------------------------------------------------------------ */

static int arm(const struct order *order, int fd)
{
    if (fd < 0)
        return EBADF;
    if (order->deadline_ns <= now_ns()) {
        close(fd);
        return ETIME;
    }
    if (occupied()) { /* never take away what is guarded */
        close(fd);
        return EBUSY;
    }
    int new_kill = -1, new_events = -1;
    if (order->kind == ARM_GROUP) {
        new_kill = openat(fd, "cgroup.kill", O_WRONLY | O_CLOEXEC);
        new_events = openat(fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
        close(fd);
        fd = -1;
    }
    int able = order->kind == ARM_LINK || (new_kill >= 0 && new_events >= 0);
    if (!able || set_timer(order->deadline_ns) != 0) {
        replace_fd(&new_kill, -1);
        replace_fd(&new_events, -1);
        replace_fd(&fd, -1);
        return able ? EINVAL : EOPNOTSUPP;
    }
    guarded = order->kind == ARM_GROUP ? GROUP : PROCESS;
    replace_fd(&kill_fd, new_kill);
    replace_fd(&events_fd, new_events);
    replace_fd(&link_fd, fd);
    replace_fd(&main_pidfd, -1);
    whole_tree = order->whole_tree;
    generation = order->generation;
    deadline_ns = order->deadline_ns;
    blown = 0;
    return 0;
}

static int renew(const struct order *order)
{
    if (order->generation != generation || deadline_ns == 0)
        return ESTALE;
    if (blown)
        return ETIME;
    if (order->deadline_ns <= deadline_ns)
        return 0; /* an older word */
    if (set_timer(order->deadline_ns) != 0)
        return EINVAL;
    deadline_ns = order->deadline_ns;
    return 0;
}

static int release(const struct order *order)
{
    if (order->generation != generation)
        return ESTALE;
    if (blown)
        return ETIME;
    deadline_ns = 0;
    return set_timer(0) == 0 ? 0 : EINVAL;
}

/* Somebody removed the path: agents connect to this socket from now on. */
static int listen_at(int fd)
{
    int listening = 0;
    socklen_t size = sizeof listening;
    if (fd < 0)
        return EBADF;
    int flags = fcntl(fd, F_GETFL), error = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || !listening)
        error = EINVAL;
    else if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || dup2(fd, LISTENER) < 0)
        error = errno;
    close(fd);
    return error;
}

/* One record and the descriptor that came with it (-1: none). Its size; 0: closed; -1: nothing now. */
static ssize_t take(int from, void *into, size_t room, int *fd)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } space;
    struct iovec part = {into, room};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    *fd = -1;
    ssize_t size = recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0)
        return errno == EAGAIN || errno == EINTR ? -1 : 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int got;
            memcpy(&got, CMSG_DATA(header) + i * sizeof got, sizeof got);
            replace_fd(fd, got);
        }
    }
    return size;
}

static void hear(void)
{
    struct order order;
    int fd;
    ssize_t size = take(control, &order, sizeof order, &fd);
    if (size < 0)
        return;
    if (size == 0) {
        replace_fd(&control, -1);
        return;
    }
    struct answer answer = {.error = EINVAL, .pid = getpid()};
    int retire = 0;
    if (size == sizeof order) {
        answer.kind = order.kind;
        switch (order.kind) {
        case ARM_GROUP:
        case ARM_LINK:
            answer.error = arm(&order, fd);
            fd = -1;
            break;
        case RENEW:
            answer.error = renew(&order);
            break;
        case RELEASE:
            answer.error = release(&order);
            break;
        case ASK:
            answer.error = 0;
            break;
        case LISTEN:
            answer.error = listen_at(fd);
            fd = -1;
            break;
        case RETIRE:
            retire = !occupied();
            answer.error = retire ? 0 : EBUSY;
            break;
        default:
            break;
        }
    }
    if (fd >= 0)
        close(fd);
    answer.generation = generation;
    answer.deadline_ns = deadline_ns;
    answer.marks = marks | (blown ? BLOWN : 0) | (occupied() ? OCCUPIED : 0);
    send(control, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (retire)
        exit(0);
}

/* The newest connection counts: what an agent that is gone had still said is not heard. */
static void greet(void)
{
    int fd = accept4(LISTENER, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid()) {
        close(fd);
        return;
    }
    replace_fd(&control, fd);
}

/* The child is about to become the command: from now on it can be killed. */
static void enlist(void)
{
    char word;
    int fd;
    ssize_t size = take(link_fd, &word, sizeof word, &fd);
    if (size < 0)
        return;
    if (size == 1 && fd >= 0 && !blown && !(main_pidfd >= 0 && !ended(main_pidfd))) {
        replace_fd(&main_pidfd, fd);
        int32_t answer = 0;
        send(link_fd, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL);
        fd = -1;
    }
    if (fd >= 0)
        close(fd);
    replace_fd(&link_fd, -1);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void ask_for_favours(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, "-1000", 5) == 5)
            marks |= OOM_SPARED;
        close(fd);
    }
    struct sched_param priority = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority) == 0)
        marks |= REAL_TIME;
    else
        (void)!setpriority(PRIO_PROCESS, 0, -20);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) == 0)
        marks |= LOCKED;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs("usage: xce-fuse COMPONENT NONCE, its standard output a listening SEQPACKET socket\n", stderr);
        return 2;
    }
    component = argv[1];
    nonce = argv[2];
    timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    int flags = fcntl(LISTENER, F_GETFL);
    if (timer < 0 || flags < 0 || fcntl(LISTENER, F_SETFL, flags | O_NONBLOCK) != 0)
        return 1;
    ask_for_favours();
    int met = 0; /* an agent has connected */
    int wait_ms = LOOK_AGAIN_MS;
    for (;;) {
        int again = blown && keep_empty();
        wait_ms = !again ? LOOK_AGAIN_MS : wait_ms < LOOK_AT_LEAST_MS ? wait_ms * 2 : wait_ms;
        /* Nobody can put anything there any more: children that have not executed their command die with the agent. */
        if (met && control < 0 && !again && (blown || deadline_ns == 0) && !occupied())
            return 0;
        struct pollfd watched[] = {
            {LISTENER, POLLIN, 0},
            {control, POLLIN, 0},
            {timer, POLLIN, 0},
            {link_fd, POLLIN, 0},
            {blown ? events_fd : -1, POLLPRI, 0},
        };
        int ready = poll(watched, sizeof watched / sizeof *watched, again ? wait_ms : met ? -1 : FIRST_WORD_MS);
        if (ready == 0 && !met)
            return 1;
        if (watched[2].revents != 0) {
            uint64_t expirations;
            ssize_t size = read(timer, &expirations, sizeof expirations);
            (void)size; /* the clock itself is asked below */
        }
        /* The deadline comes first: no word that came later moves it. */
        if (!blown && deadline_ns != 0 && now_ns() >= deadline_ns) {
            blow();
            continue;
        }
        if (watched[0].revents != 0) {
            greet();
            met = met || control >= 0;
            continue; /* the older connection's descriptor may be another's by now */
        }
        if (watched[1].revents != 0)
            hear();
        else if (watched[3].revents != 0)
            enlist();
    }
}
