/* What both examples need of a loop: signals as a descriptor, numbers of the environment, one line of log. */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

/* As the reference components end: node_manager/reference/loop.py. */
#define EXIT_UNAVAILABLE 71
#define EXIT_FENCED 75
#define EXIT_CONFIG 78

static volatile sig_atomic_t told_to_stop, told_to_stand_down, told_to_stand;
static int signal_pipe[2] = {-1, -1};

static void on_signal(int number)
{
    int saved = errno;

    if (number == SIGUSR1)
        told_to_stand_down = 1;
    else if (number == SIGUSR2)
        told_to_stand = 1;
    else
        told_to_stop = 1;
    while (write(signal_pipe[1], "", 1) < 0 && errno == EINTR) {
    }
    errno = saved;
}

/* Make signals end a wait: signal_pipe[0] becomes readable. */
static int catch_signals(const int *numbers, int count)
{
    struct sigaction action;
    int i;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    if (pipe(signal_pipe) != 0)
        return 0;
    for (i = 0; i < 2; i++)
        if (fcntl(signal_pipe[i], F_SETFL, O_NONBLOCK) != 0 || fcntl(signal_pipe[i], F_SETFD, FD_CLOEXEC) != 0)
            return 0;
    for (i = 0; i < count; i++)
        if (sigaction(numbers[i], &action, NULL) != 0)
            return 0;
    return 1;
}

static void empty_signal_pipe(void)
{
    char scratch[64];

    while (read(signal_pipe[0], scratch, sizeof scratch) > 0) {
    }
}

static int wait_ms(int64_t from_ns, int64_t until_ns, int at_most_ms)
{
    int64_t ms = until_ns > from_ns ? (until_ns - from_ns + NS_PER_MS - 1) / NS_PER_MS : 0;

    return ms < at_most_ms ? (int)ms : at_most_ms;
}

#endif
