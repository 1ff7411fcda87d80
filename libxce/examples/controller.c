/*
 * A controller that does nothing but lead: it stands for a lease and states controller.primary, keeping every promise of
 * an authority. Usage: controller LEASE-FILE, or controller etcd:HOST:PORT[,HOST:PORT...] with numeric addresses
 *
 *   XCE_REF_LEASE_S      length of the lease in seconds, 10; renewed five times in it
 *   XCE_REF_HOLDER       name under which it stands, "c-controller"
 *   XCE_REF_STATE        with etcd: directory for what its next process has to know; needed
 *   XCE_REF_ETCD_PREFIX  with etcd: what the keys begin with, "/xce"
 *
 * SIGTERM ends it, SIGUSR1 makes it step down, SIGUSR2 stand again. It can compete with `xce-reference controller`.
 */
#define _POSIX_C_SOURCE 200809L

#include "common.h"
#include "election.h"
#include "etcdlease.h"
#include "filelease.h"
#include "slot.h"
#include "xce.h"

#include <poll.h>
#include <sys/stat.h>

#define LEAVE_NS NS_PER_S /* how long it waits at its end to hear that its scheduler is stopped */
#define DEPENDANT "scheduler"
#define ETCD "etcd:"
#define FACT "controller.primary"

/* The way to giving the lease back early, after stepping down: say standby; wait for the dependant's stop; give it back. */
enum watch { NONE, SAYING, WAITING, RELEASING };

struct controller {
    xce_heartbeat *hb;
    struct election election;
    enum watch watch;
    int64_t leave_ns;
};

/* Say standby and stop renewing. Nobody waits for anybody, and the record is left alone. */
static void step_down(struct controller *c)
{
    if (c->election.stance == PRIMARY)
        c->watch = SAYING;
    election_step_down(&c->election);
}

/*
 * Give the lease back early, by the one rule that allows it: the dependant was reported stopped after standby was said.
 * "After" needs a change seen since: a `stopped` that was there before may be older than a start that is under way.
 * The first thing in a turn: standby that this turn says goes out at its end, and not then where the agent does not read.
 */
static void watch_dependant(struct controller *c)
{
    struct xce_component dependant;
    int told;

    if (c->watch == NONE || c->watch == RELEASING)
        return;
    told = xce_component(c->hb, DEPENDANT, &dependant) && xce_heartbeat_connected(c->hb);
    if (!told || c->election.willing)
        c->watch = NONE;
    else if (c->watch == SAYING && xce_heartbeat_sent(c->hb))
        c->watch = dependant.state == XCE_STOPPED || dependant.state >= XCE_EXITED ? NONE : WAITING;
    else if (c->watch == WAITING && dependant.state == XCE_STOPPED) {
        c->watch = RELEASING;
        election_release(&c->election);
    }
}

/* Whether the store has given the lease back. */
static void watch_release(struct controller *c)
{
    if (c->watch != RELEASING || c->election.question == QUESTION_RELEASE)
        return;
    c->watch = NONE;
    if (c->election.released)
        fprintf(stderr, "controller: lease given back early: %s is reported stopped\n", DEPENDANT);
}

static void state(struct controller *c)
{
    static const char *const words[] = {"unread", "standby", "primary"};
    const struct election *e = &c->election;
    char text[XCE_MAX_STATUS];

    snprintf(text, sizeof text, "%s, term %lld%s%s", words[e->stance], (long long)e->term, *e->trouble ? "; " : "", e->trouble);
    xce_set_status(c->hb, text);
    if (e->stance == UNREAD)
        return;
    xce_state_leadership(c->hb, e->stance == PRIMARY, e->term, e->valid_until_ns);
    xce_set_ready(c->hb, 1);
}

static void heed_signals(struct controller *c)
{
    empty_signal_pipe();
    if (told_to_stand_down) {
        told_to_stand_down = 0;
        step_down(c);
    }
    if (told_to_stand && c->leave_ns == 0) {
        told_to_stand = 0;
        election_stand(&c->election);
    }
    if (told_to_stop && c->leave_ns == 0) {
        c->leave_ns = xce_boottime_ns() + LEAVE_NS;
        xce_set_stopping(c->hb);
        step_down(c);
    }
}

static void run(struct controller *c)
{
    struct lease *lease = c->election.lease;

    for (;;) {
        struct pollfd wait[3] = {{signal_pipe[0], POLLIN, 0}, {0, POLLIN, 0}, {0, 0, 0}};
        int64_t now, next;
        int heard;

        watch_dependant(c);
        heed_signals(c);
        election_poll(&c->election);
        watch_release(c);
        state(c);
        heard = xce_heartbeat_poll(c->hb);
        now = xce_boottime_ns();
        next = election_next_ns(&c->election);
        if (c->leave_ns != 0) {
            if (c->watch == NONE || now >= c->leave_ns)
                return; /* a lease that it held ends by itself, if it was not given back */
            next = c->leave_ns < next ? c->leave_ns : next;
        }
        if (heard > 0 || (c->watch == SAYING && (xce_heartbeat_sent(c->hb) || !xce_heartbeat_connected(c->hb))))
            next = now; /* to look at the dependant, or to learn that nobody tells of it */
        wait[1].fd = xce_heartbeat_fd(c->hb);
        wait[2].fd = lease->kind->fd(lease, &wait[2].events);
        poll(wait, 3, wait_ms(now, next, xce_heartbeat_next_ms(c->hb)));
    }
}

static int complain(const char *what, int refused)
{
    fprintf(stderr, "controller: cannot stand for %s: %s\n", what, strerror(-refused));
    return refused == -EINVAL ? EXIT_CONFIG : EXIT_UNAVAILABLE;
}

/* The lease of this name, in etcd or in a file, and the place in its election; else an exit status. */
static int stand(struct election *election, const char *where, const char *holder, int64_t lease_ns)
{
    static struct etcdlease etcd;
    static struct filelease file;
    static struct slot slot;
    const char *state = getenv("XCE_REF_STATE"), *prefix = getenv("XCE_REF_ETCD_PREFIX");
    char boot_id[64] = "", path[256], name[ETCD_MAX_NAME], identity[ETCD_MAX_IDENTITY];
    int in_etcd = strncmp(where, ETCD, strlen(ETCD)) == 0, refused;
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "r");

    if (boot == NULL || fgets(boot_id, sizeof boot_id, boot) == NULL)
        return complain(where, -EIO);
    fclose(boot);
    boot_id[strcspn(boot_id, "\n")] = '\0';
    if (in_etcd && (state == NULL || *state == '\0')) {
        fprintf(stderr, "controller: XCE_REF_STATE is not set: name a directory that this user may write\n");
        return EXIT_CONFIG;
    }
    if (snprintf(path, sizeof path, in_etcd ? "%s/" FACT ".etcd" : "%s", in_etcd ? state : where) >= (int)sizeof path)
        return complain(where, -ENAMETOOLONG);
    if (in_etcd)
        mkdir(state, 0750);
    refused = slot_open(&slot, path, holder);
    if (refused)
        return complain(path, refused);
    prefix = prefix && *prefix ? prefix : "/xce";
    if (in_etcd) {
        int n = (int)strlen(prefix);

        while (n > 0 && prefix[n - 1] == '/')
            n--;
        snprintf(identity, sizeof identity, "%s/%.*s", slot.identity, 40, boot_id); /* after a boot it is another holder */
        if (snprintf(name, sizeof name, "%.*s/%s", n, prefix, FACT) >= (int)sizeof name)
            return complain(where, -ENAMETOOLONG);
        refused = etcdlease_open(&etcd, where + strlen(ETCD), name, holder, identity, lease_ns);
        election_open(election, &etcd.base, &slot, lease_ns);
    } else {
        refused = filelease_open(&file, path, holder, boot_id);
        election_open(election, &file.base, &slot, lease_ns);
    }
    return refused ? complain(where, refused) : 0;
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
    const char *holder = getenv("XCE_REF_HOLDER"), *length = getenv("XCE_REF_LEASE_S");
    double lease_s = length ? strtod(length, NULL) : 10.0;
    static struct controller c;
    int status;

    if (argc != 2 || !(lease_s >= 0.1 && lease_s <= 3600)) {
        fprintf(stderr, "usage: controller LEASE-FILE | etcd:HOST:PORT[,HOST:PORT...], with XCE_REF_LEASE_S from 0.1 to 3600\n");
        return EXIT_CONFIG;
    }
    status = stand(&c.election, argv[1], holder && *holder ? holder : "c-controller", (int64_t)(lease_s * 1e9));
    if (status)
        return status;
    c.hb = xce_heartbeat_open(NULL, 1000, NULL);
    if (c.hb == NULL || !catch_signals(signals, 4)) {
        perror("controller");
        return EXIT_UNAVAILABLE;
    }
    run(&c);
    xce_heartbeat_close(c.hb);
    return 0;
}
