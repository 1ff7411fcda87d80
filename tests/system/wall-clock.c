/* A wall clock that a test sets: in programs that preload this, CLOCK_REALTIME is ahead of the host's by as many seconds
 * as the file /run/wall-clock says. No other clock is touched: libfaketime 0.9.10 also moves absolute timers of
 * CLOCK_BOOTTIME, which no step of a wall clock does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void)
{
    char text[24] = "";
    int fd = open("/run/wall-clock", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, text, sizeof text - 1) < 0)
            text[0] = '\0';
        close(fd);
    }
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *to)
{
    int result = (int)syscall(SYS_clock_gettime, clock, to);
    if (result == 0 && clock == CLOCK_REALTIME)
        to->tv_sec += ahead();
    return result;
}

int gettimeofday(struct timeval *restrict to, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to != NULL)
        *to = now.tv_sec;
    return now.tv_sec;
}
