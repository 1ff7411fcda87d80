/* See election.h. */
#define _POSIX_C_SOURCE 200809L

#include "election.h"

#include "xce.h"

#include <string.h>

#define NS_PER_MS INT64_C(1000000)
#define RENEWALS_PER_LEASE 5
#define RETRY_DIVISOR 4 /* tries per renewal interval while the store does not answer */
#define MIN_RETRY_NS (20 * NS_PER_MS)

void election_open(struct election *e, struct lease *lease, struct slot *slot, int64_t lease_ns)
{
    memset(e, 0, sizeof *e);
    e->lease = lease;
    e->slot = slot;
    e->lease_ns = lease_ns;
    e->renew_ns = lease_ns / RENEWALS_PER_LEASE;
    e->willing = 1;
    e->new_term = slot->over;
    e->trouble = "";
}

/* Standby is said from now on. */
static void give_up(struct election *e)
{
    e->stance = STANDBY;
    e->new_term = 1;
    slot_remember(e->slot, 1);
}

static void follow(struct election *e, int64_t term)
{
    if (e->stance == PRIMARY)
        give_up(e);
    e->stance = STANDBY;
    if (term > e->term)
        e->term = term;
}

static void hold(struct election *e, enum question question, int64_t now)
{
    int64_t until_ns = e->lease->valid_until_ns - e->lease_ns / LEASE_RATE_MARGIN_DIVISOR;

    if (!e->willing || (e->new_term && question != QUESTION_BEGIN)) { /* asked before standby was said: that term is over */
        follow(e, e->lease->term);
        e->due_ns = e->willing ? now : e->due_ns;
        return;
    }
    if (e->lease->term < e->term) {
        follow(e, e->term);
        e->trouble = "the store's term went back";
        return;
    }
    if (now >= until_ns) {
        follow(e, e->lease->term);
        return;
    }
    if (e->new_term)
        slot_remember(e->slot, 0);
    e->new_term = e->released = 0;
    e->term = e->lease->term;
    e->valid_until_ns = until_ns;
    e->stance = PRIMARY;
}

static int64_t sooner(int64_t one, int64_t other) { return one < other ? one : other; }
static int64_t later(int64_t one, int64_t other) { return one > other ? one : other; }

static void heed(struct election *e, enum question question, enum lease_answer answer, int64_t now)
{
    e->due_ns = now + e->renew_ns;
    e->trouble = "";
    if (question == QUESTION_RELEASE) {
        e->released = answer == LEASE_FREE;
        return;
    }
    switch (answer) {
    case LEASE_HELD:
        hold(e, question, now);
        break;
    case LEASE_TAKEN:
        follow(e, e->lease->term);
        e->due_ns = later(sooner(e->due_ns, e->lease->valid_until_ns), now + MIN_RETRY_NS);
        break;
    case LEASE_FREE:
        follow(e, e->lease->term);
        if (question != QUESTION_LOOK) /* lost meanwhile: stand anew */
            e->due_ns = now + MIN_RETRY_NS;
        break;
    case LEASE_UNKNOWN: /* what was stated holds until its own end; nothing new is stated */
        e->trouble = e->lease->trouble;
        e->due_ns = now + later(e->renew_ns / RETRY_DIVISOR, MIN_RETRY_NS);
        break;
    case LEASE_PENDING:
        break;
    }
}

static void take(struct election *e)
{
    enum question question = e->question;
    enum lease_answer answer;

    if (question == QUESTION_NONE || (answer = e->lease->kind->answer(e->lease)) == LEASE_PENDING)
        return;
    e->question = QUESTION_NONE;
    heed(e, question, answer, xce_boottime_ns());
}

static void ask(struct election *e)
{
    e->question = !e->willing ? QUESTION_LOOK : e->new_term ? QUESTION_BEGIN : QUESTION_ACQUIRE;
    if (e->question == QUESTION_LOOK)
        e->lease->kind->look(e->lease);
    else
        e->lease->kind->acquire(e->lease, e->lease_ns, e->new_term);
}

void election_poll(struct election *e)
{
    int64_t now = xce_boottime_ns();

    if (e->stance == PRIMARY && now >= e->valid_until_ns) {
        give_up(e);
        e->due_ns = now;
    }
    take(e);
    if (e->question == QUESTION_NONE && now >= e->due_ns) {
        ask(e);
        take(e);
    }
}

int64_t election_next_ns(const struct election *e)
{
    int64_t next = e->question == QUESTION_NONE ? e->due_ns : e->lease->kind->next_ns(e->lease);

    return e->stance == PRIMARY ? sooner(next, e->valid_until_ns) : next;
}

void election_step_down(struct election *e)
{
    e->willing = 0;
    if (e->stance == PRIMARY)
        give_up(e);
}

void election_stand(struct election *e)
{
    if (!e->willing) {
        e->willing = e->new_term = 1;
        e->due_ns = xce_boottime_ns();
    }
}

void election_release(struct election *e)
{
    if (e->stance != PRIMARY) {
        e->question = QUESTION_RELEASE;
        e->lease->kind->release(e->lease, e->term);
    }
}
