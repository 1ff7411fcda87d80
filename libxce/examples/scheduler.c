/*
 * A scheduler loop: bounded waits, a heartbeat when idle, and no work outside its lease. Usage: scheduler LOG-FILE
 *
 * Its work is a line {"term", "boottime_ns", "valid_until_ns", "pid"} appended to the log every few milliseconds: proof,
 * for a test, of who was at work when. It looks at its lease before each line; once that is over it ends with status 75.
 */
#define _POSIX_C_SOURCE 200809L

#include "common.h"
#include "xce.h"

#include <poll.h>

#define WORK_NS (5 * NS_PER_MS)

/* One piece of work; 0: the lease is over, or the log cannot be written. */
static int work(const xce_heartbeat *hb, int log)
{
    char line[160];
    int n;

    if (!xce_lease_valid(hb))
        return 0;
    n = snprintf(line, sizeof line, "{\"term\": %lld, \"boottime_ns\": %lld, \"valid_until_ns\": %lld, \"pid\": %ld}\n",
                 (long long)xce_lease_term(hb), (long long)xce_boottime_ns(), (long long)xce_lease_valid_until_ns(hb),
                 (long)getpid());
    return write(log, line, (size_t)n) == n;
}

static int run(xce_heartbeat *hb, int log)
{
    int64_t next_ns = 0, done = 0;

    xce_set_ready(hb, 1);
    while (!told_to_stop) {
        struct pollfd wait[2] = {{signal_pipe[0], POLLIN, 0}, {0, POLLIN, 0}};
        int64_t now = xce_boottime_ns();

        if (now >= next_ns) {
            if (!work(hb, log))
                return EXIT_FENCED;
            next_ns = now + WORK_NS;
            xce_set_progress(hb, ++done / 200); /* a change is a record: once in a second is enough */
        }
        xce_heartbeat_poll(hb);
        wait[1].fd = xce_heartbeat_fd(hb);
        poll(wait, 2, wait_ms(xce_boottime_ns(), next_ns, xce_heartbeat_next_ms(hb)));
        empty_signal_pipe();
    }
    xce_set_ready(hb, 0);
    xce_set_stopping(hb);
    xce_heartbeat_poll(hb);
    return 0;
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGTERM, SIGINT};
    xce_heartbeat *hb;
    int log, status;

    if (argc != 2) {
        fprintf(stderr, "usage: scheduler LOG-FILE\n");
        return EXIT_CONFIG;
    }
    log = open(argv[1], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    hb = xce_heartbeat_open(NULL, 1000, NULL);
    if (log < 0 || hb == NULL || !catch_signals(signals, 2)) {
        perror("scheduler");
        return EXIT_UNAVAILABLE;
    }
    if (xce_fence(hb, "controller.primary") != 0) {
        fprintf(stderr, "scheduler: cannot start without XCE_TERM and XCE_LEASE_VALID_UNTIL_NS, which the node manager gives\n");
        return EXIT_CONFIG;
    }
    status = run(hb, log);
    xce_heartbeat_close(hb);
    return status;
}
