/*
 * Standing for a lease: when to say primary, when to stop saying it. node_manager/reference/election.py in C.
 *
 * What is stated ends a little before the lease does, by the share that clock rates may differ. Stepping down is to say
 * standby and to stop renewing; the lease runs out by itself. An answer counts by when its question was asked: one that
 * comes after standby was said brings no leadership back. A leadership after that has another term, also for the next
 * process of this holder.
 */
#ifndef ELECTION_H
#define ELECTION_H

#include "lease.h"
#include "slot.h"

enum stance { UNREAD, STANDBY, PRIMARY }; /* UNREAD: the store was never read, nothing may be said */

enum question { QUESTION_NONE, QUESTION_LOOK, QUESTION_ACQUIRE, QUESTION_BEGIN, QUESTION_RELEASE };

struct election {
    struct lease *lease;
    struct slot *slot;
    int64_t lease_ns, renew_ns;
    enum stance stance;
    enum question question; /* what the store was asked, and has not answered yet; QUESTION_BEGIN: under a new term */
    int willing, new_term;
    int released;           /* the lease was given back early; until the next leadership */
    int64_t term, valid_until_ns, due_ns;
    const char *trouble; /* "": none */
};

void election_open(struct election *election, struct lease *lease, struct slot *slot, int64_t lease_ns);

/* Notice the end of the lease, take the store's answer, ask it where that is due. */
void election_poll(struct election *election);

/* When to poll again at the latest, though no descriptor is ready. */
int64_t election_next_ns(const struct election *election);

void election_step_down(struct election *election);
void election_stand(struct election *election);

/* End the lease early: there is proof that every dependant was stopped after standby was said. */
void election_release(struct election *election);

#endif
