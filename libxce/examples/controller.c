/*
 * A controller that does nothing but lead: it stands for a lease in a file and states controller.primary, keeping every
 * promise of an authority. Usage: controller LEASE-FILE
 *
 *   XCE_REF_LEASE_S  length of the lease in seconds, 10; renewed five times in it
 *   XCE_REF_HOLDER   name under which it stands, "c-controller"
 *
 * SIGTERM ends it, SIGUSR1 makes it step down, SIGUSR2 stand again. It can compete with `xce-reference controller`.
 */
#define _POSIX_C_SOURCE 200809L

#include "common.h"
#include "filelease.h"
#include "xce.h"

#include <poll.h>

#define RENEWALS_PER_LEASE 5
#define RATE_MARGIN_DIVISOR 1000 /* clock rates differ by less than one in a thousand */
#define RETRY_DIVISOR 4          /* tries per renewal interval while the store does not answer */
#define MIN_RETRY_NS (20 * NS_PER_MS)
#define LEAVE_NS NS_PER_S /* how long it waits at its end to hear that its scheduler is stopped */
#define DEPENDANT "scheduler"

enum stance { UNREAD, STANDBY, PRIMARY }; /* UNREAD: nothing may be said */
/* The way to giving the lease back early, after stepping down: standby is being said; look; wait for the stop. */
enum watch { NONE, SAYING, LOOKING, WAITING };

struct controller {
    xce_heartbeat *hb;
    struct filelease lease;
    int64_t lease_ns;
    enum stance stance;
    enum watch watch;
    int willing, new_term;
    int64_t term, valid_until_ns, next_ns, leave_ns;
};

static void follow(struct controller *c)
{
    c->stance = STANDBY;
    if (c->lease.term > c->term)
        c->term = c->lease.term;
}

static void hold(struct controller *c, int64_t now)
{
    if (c->lease.term < c->term) { /* the store went back: whatever it says, nothing is led under an old term */
        c->stance = STANDBY;
        return;
    }
    c->new_term = 0;
    c->term = c->lease.term;
    c->valid_until_ns = c->lease.valid_until_ns - c->lease_ns / RATE_MARGIN_DIVISOR;
    c->stance = now < c->valid_until_ns ? PRIMARY : STANDBY;
}

/* Notice the end of the lease, then read or renew it where that is due. */
static void elect(struct controller *c)
{
    int64_t now = xce_boottime_ns(), renew_ns = c->lease_ns / RENEWALS_PER_LEASE, retry_ns = renew_ns / RETRY_DIVISOR;
    enum filelease_answer answer;

    if (c->stance == PRIMARY && now >= c->valid_until_ns) {
        c->stance = STANDBY;
        c->next_ns = now;
    }
    if (now < c->next_ns)
        return;
    answer = c->willing ? filelease_acquire(&c->lease, c->lease_ns, c->new_term) : filelease_look(&c->lease);
    now = xce_boottime_ns();
    c->next_ns = now + renew_ns;
    switch (answer) {
    case FILELEASE_HELD:
        hold(c, now);
        break;
    case FILELEASE_TAKEN:
        follow(c);
        if (c->willing && c->lease.valid_until_ns < c->next_ns)
            c->next_ns = c->lease.valid_until_ns > now + MIN_RETRY_NS ? c->lease.valid_until_ns : now + MIN_RETRY_NS;
        break;
    case FILELEASE_FREE:
        follow(c);
        break;
    default: /* what was stated holds until its own end; nothing new is stated */
        c->next_ns = now + (retry_ns > MIN_RETRY_NS ? retry_ns : MIN_RETRY_NS);
    }
}

/* Say standby and stop renewing. Nobody waits for anybody, and the record is left alone. */
static void step_down(struct controller *c)
{
    c->willing = 0;
    if (c->stance == PRIMARY) {
        c->stance = STANDBY;
        c->watch = SAYING;
    }
}

/*
 * Give the lease back early, by the one rule that allows it: the dependant was reported stopped after standby was said.
 * "After" needs a change seen since: a `stopped` that was there before may be older than a start that is under way.
 */
static void watch_dependant(struct controller *c)
{
    struct xce_component dependant;
    int told;

    if (c->watch == SAYING)
        c->watch = LOOKING; /* standby went out at the end of the last turn */
    else if (c->watch == NONE)
        return;
    told = xce_component(c->hb, DEPENDANT, &dependant) && xce_heartbeat_connected(c->hb);
    if (!told || c->willing)
        c->watch = NONE;
    else if (c->watch == LOOKING)
        c->watch = dependant.state == XCE_STOPPED || dependant.state >= XCE_EXITED ? NONE : WAITING;
    else if (dependant.state == XCE_STOPPED) {
        c->watch = NONE;
        if (filelease_release(&c->lease, c->term))
            fprintf(stderr, "controller: lease given back early: %s is reported stopped\n", DEPENDANT);
    }
}

static void state(struct controller *c)
{
    char text[80];

    if (c->stance == UNREAD)
        return;
    xce_state_leadership(c->hb, c->stance == PRIMARY, c->term, c->valid_until_ns);
    xce_set_ready(c->hb, 1);
    snprintf(text, sizeof text, "%s, term %lld", c->stance == PRIMARY ? "primary" : "standby", (long long)c->term);
    xce_set_status(c->hb, text);
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
        c->new_term = c->new_term || !c->willing;
        c->willing = 1;
        c->next_ns = xce_boottime_ns();
    }
    if (told_to_stop && c->leave_ns == 0) {
        c->leave_ns = xce_boottime_ns() + LEAVE_NS;
        xce_set_stopping(c->hb);
        step_down(c);
    }
}

static void run(struct controller *c)
{
    for (;;) {
        struct pollfd wait[2] = {{signal_pipe[0], POLLIN, 0}, {0, POLLIN, 0}};
        int64_t now, next;

        heed_signals(c);
        watch_dependant(c);
        elect(c);
        state(c);
        xce_heartbeat_poll(c->hb);
        now = xce_boottime_ns();
        next = c->stance == PRIMARY && c->valid_until_ns < c->next_ns ? c->valid_until_ns : c->next_ns;
        if (c->leave_ns != 0) {
            if (c->watch == NONE || now >= c->leave_ns)
                return; /* a lease that it held ends by itself, if it was not given back */
            next = c->leave_ns < next ? c->leave_ns : next;
        }
        if (c->watch == SAYING)
            next = now;
        wait[1].fd = xce_heartbeat_fd(c->hb);
        poll(wait, 2, wait_ms(now, next, xce_heartbeat_next_ms(c->hb)));
    }
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
    const char *holder = getenv("XCE_REF_HOLDER"), *length = getenv("XCE_REF_LEASE_S");
    double lease_s = length ? strtod(length, NULL) : 10.0;
    static struct controller c;
    int refused;

    if (argc != 2 || !(lease_s >= 0.1 && lease_s <= 3600)) {
        fprintf(stderr, "usage: controller LEASE-FILE, with XCE_REF_LEASE_S from 0.1 to 3600\n");
        return EXIT_CONFIG;
    }
    c.lease_ns = (int64_t)(lease_s * 1e9);
    c.willing = 1;
    refused = filelease_open(&c.lease, argv[1], holder ? holder : "c-controller");
    if (refused) {
        fprintf(stderr, "controller: cannot stand for %s: %s\n", argv[1], strerror(-refused));
        return EXIT_UNAVAILABLE;
    }
    c.hb = xce_heartbeat_open(NULL, 1000, NULL);
    if (c.hb == NULL || !catch_signals(signals, 4)) {
        perror("controller");
        return EXIT_UNAVAILABLE;
    }
    run(&c);
    xce_heartbeat_close(c.hb);
    return 0;
}
