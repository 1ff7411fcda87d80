/* The least that supervising can cost: start N probes, wait for any child's end, start it again at once.
 * usage: floor fork|vfork COUNT NAME_FORMAT PROBE LOG [ARGUMENT...]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static volatile sig_atomic_t stopping;
static int with_vfork;

static void on_term(int number)
{
    (void)number;
    stopping = 1;
}

static pid_t start(char **command, char *name)
{
    char *arguments[16] = {command[0], command[1], name};
    pid_t pid;

    for (int i = 2; command[i] && i < 13; i++)
        arguments[i + 1] = command[i];
    pid = with_vfork ? vfork() : fork();
    if (pid == 0) {
        execve(arguments[0], arguments, environ);
        _exit(127);
    }
    return pid;
}

int main(int argc, char **argv)
{
    struct sigaction action;
    int count;

    if (argc < 6)
        return 100;
    with_vfork = !strcmp(argv[1], "vfork");
    count = atoi(argv[2]);
    pid_t *pids = calloc((size_t)count, sizeof *pids);
    char(*names)[32] = calloc((size_t)count, sizeof *names);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_term;
    sigaction(SIGTERM, &action, NULL);
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], argv[3], i);
        pids[i] = start(argv + 4, names[i]);
    }
    while (!stopping) {
        siginfo_t info;

        if (waitid(P_ALL, 0, &info, WEXITED) < 0) {
            if (errno == EINTR)
                continue;
            break;
        }
        for (int i = 0; i < count; i++)
            if (pids[i] == info.si_pid && !stopping) {
                pids[i] = start(argv + 4, names[i]);
                break;
            }
    }
    for (int i = 0; i < count; i++)
        kill(pids[i], SIGTERM);
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    return 0;
}
