/*
 * The example's lease in etcd at a test's command. Usage: leasedriver ENDPOINTS NAME HOLDER IDENTITY LEASE_MS
 *
 * A line of standard input is an order: `look`, `acquire LENGTH_MS NEW`, `release TERM`, `clock NS` (its clock jumps by so
 * much). Standard output has each answer: `held TERM UNTIL_NS`, `taken TERM UNTIL_NS` (-1: not known), `free TERM`,
 * `unknown WHY`, and `clock NS`, the new time, after a jump. The end of standard input is the end.
 */
#define _POSIX_C_SOURCE 200809L

#include "etcdlease.h"
#include "xce.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int64_t jumped_ns;
static struct etcdlease etcd;
static struct lease *lease = &etcd.base;

int64_t xce_boottime_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + jumped_ns;
}

static void obey(const char *order)
{
    char *rest;
    long long number = strtoll(order + strcspn(order, " "), &rest, 10);

    if (strncmp(order, "look", 4) == 0) {
        lease->kind->look(lease);
    } else if (strncmp(order, "acquire", 7) == 0) {
        lease->kind->acquire(lease, number * 1000000, strtol(rest, NULL, 10) != 0);
    } else if (strncmp(order, "release", 7) == 0) {
        lease->kind->release(lease, number);
    } else if (strncmp(order, "clock", 5) == 0) {
        jumped_ns += number;
        printf("clock %lld\n", (long long)xce_boottime_ns());
    } else {
        exit(2);
    }
}

/* Obey every whole line that has come; 0: the end. */
static int listen_to_orders(void)
{
    static char input[4096];
    static size_t n;
    ssize_t more = read(0, input + n, sizeof input - 1 - n);
    char *stop;

    if (more < 0)
        return 1;
    n += (size_t)more;
    input[n] = '\0';
    while ((stop = strchr(input, '\n')) != NULL) {
        *stop = '\0';
        obey(input);
        n -= (size_t)(stop + 1 - input);
        memmove(input, stop + 1, n + 1);
    }
    return more > 0;
}

static void tell(void)
{
    long long until_ns;

    switch (lease->kind->answer(lease)) {
    case LEASE_HELD:
        printf("held %lld %lld\n", (long long)lease->term, (long long)lease->valid_until_ns);
        break;
    case LEASE_TAKEN:
        until_ns = lease->valid_until_ns == LEASE_NEVER_NS ? -1 : (long long)lease->valid_until_ns;
        printf("taken %lld %lld\n", (long long)lease->term, until_ns);
        break;
    case LEASE_FREE:
        printf("free %lld\n", (long long)lease->term);
        break;
    case LEASE_UNKNOWN:
        printf("unknown %s\n", lease->trouble);
        break;
    case LEASE_PENDING:
        break;
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct pollfd wait[2] = {{0, POLLIN, 0}, {-1, 0, 0}};

    if (argc != 6
        || etcdlease_open(&etcd, argv[1], argv[2], argv[3], argv[4], strtoll(argv[5], NULL, 10) * INT64_C(1000000)) != 0)
        return 78;
    fcntl(0, F_SETFL, O_NONBLOCK);
    while (listen_to_orders()) {
        int64_t left_ns;

        tell();
        left_ns = lease->kind->next_ns(lease) - xce_boottime_ns();
        wait[1].fd = lease->kind->fd(lease, &wait[1].events);
        poll(wait, 2, left_ns < 0 ? 0 : left_ns < 1000000000 ? (int)(left_ns / 1000000) + 1 : 1000);
    }
    etcdlease_close(&etcd);
    return 0;
}
