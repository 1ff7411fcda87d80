/* The supervised program of every measurement.
 *
 * usage: probe LOG NAME [-p PIDFILE] [-d] [-l MILLISECONDS]
 * Without arguments, as a run file of runit and s6: LOG is $PEERS_LOG, MILLISECONDS $PEERS_LIFE_MS, NAME the name of
 * the working directory.
 *
 * Its first act is to read CLOCK_MONOTONIC; then one write(2) appends "<ns> <pid> <ppid> <name> start" to LOG. It ends
 * on SIGTERM with status 0. -d: it detaches by two forks and writes PIDFILE, as monit wants it. -l: it ends by itself
 * after that time with status 1, and appends "<ns> <pid> <ppid> <name> end" right before.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void on_term(int number)
{
    (void)number;
    _exit(0);
}

static void note(const char *log, long long at_ns, const char *name, const char *what)
{
    char line[256];
    int size = snprintf(line, sizeof line, "%lld %d %d %s %s\n", at_ns, (int)getpid(), (int)getppid(), name, what);
    int fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);

    if (fd < 0 || write(fd, line, (size_t)size) != size)
        _exit(111);
    close(fd);
}

static void write_pid(const char *path)
{
    char text[32];
    int size = snprintf(text, sizeof text, "%d\n", (int)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (fd < 0 || write(fd, text, (size_t)size) != size)
        _exit(112);
    close(fd);
}

int main(int argc, char **argv)
{
    long long begun_ns = now_ns();
    const char *log = NULL, *name = NULL, *pidfile = NULL, *life = NULL;
    struct sigaction action;
    int detach = 0;
    char directory[4096];

    if (argc >= 3) {
        log = argv[1];
        name = argv[2];
        for (int i = 3; i < argc; i++) {
            if (!strcmp(argv[i], "-d"))
                detach = 1;
            else if (!strcmp(argv[i], "-p") && i + 1 < argc)
                pidfile = argv[++i];
            else if (!strcmp(argv[i], "-l") && i + 1 < argc)
                life = argv[++i];
        }
    } else {
        log = getenv("PEERS_LOG");
        life = getenv("PEERS_LIFE_MS");
        if (!log || !getcwd(directory, sizeof directory))
            return 110;
        name = strrchr(directory, '/') + 1;
    }
    if (detach) {
        if (fork() > 0)
            _exit(0);
        setsid();
        if (fork() > 0)
            _exit(0);
        begun_ns = now_ns();
    }
    memset(&action, 0, sizeof action);
    action.sa_handler = on_term;
    sigaction(SIGTERM, &action, NULL);
    if (pidfile)
        write_pid(pidfile);
    note(log, begun_ns, name, "start");
    if (!life)
        for (;;)
            pause();
    long ms = atol(life);
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&rest, NULL);
    note(log, now_ns(), name, "end");
    return 1;
}
