/*
 * A lease that one of several candidates has, whatever keeps it: filelease.h has a file of one host, etcdlease.h etcd.
 *
 * One question at a time; a newer one takes the place of the last. A question is begun by look, acquire or release and
 * waits for nobody: call `answer` in each turn of the loop, and wait for `fd` and until `next_ns` in between. All times
 * are CLOCK_BOOTTIME in nanoseconds.
 */
#ifndef LEASE_H
#define LEASE_H

#include <stdint.h>

#define LEASE_MAX_TERM (INT64_C(1) << 53) /* stays exact in every JSON reader */
#define LEASE_RATE_MARGIN_DIVISOR 1000    /* clock rates differ by less than one in a thousand */
#define LEASE_NEVER_NS INT64_MAX

enum lease_answer {
    LEASE_PENDING, /* not yet */
    LEASE_HELD,    /* the caller's, until valid_until_ns, under term */
    LEASE_TAKEN,   /* somebody's, until valid_until_ns at the latest, under term. Asked by look it may be the caller's own */
    LEASE_FREE,    /* nobody's; term was the last one */
    LEASE_UNKNOWN  /* the store could not be read or written: nothing is granted, nothing is known, and `trouble` says why */
};

struct lease {
    const struct lease_kind *kind;
    int64_t term, valid_until_ns; /* of the last answer; LEASE_NEVER_NS: the store does not say */
    char trouble[256];
};

struct lease_kind {
    /* Who has the lease; changes nothing. */
    void (*look)(struct lease *lease);
    /* Take or renew it. `new_term`: the caller gave its own up before, so even its own record is no renewal. */
    void (*acquire)(struct lease *lease, int64_t length_ns, int new_term);
    /* End the caller's own lease now: answered by LEASE_FREE. Only where every dependant is known to be stopped. */
    void (*release)(struct lease *lease, int64_t term);
    /* The answer to the last question, once. */
    enum lease_answer (*answer)(struct lease *lease);
    /* What to wait for in poll(2); -1: nothing. */
    int (*fd)(const struct lease *lease, short *events);
    /* When to ask for the answer again at the latest; LEASE_NEVER_NS: no question is under way. */
    int64_t (*next_ns)(const struct lease *lease);
};

#endif
