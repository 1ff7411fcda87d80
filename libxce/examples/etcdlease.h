/*
 * A lease in etcd, over the JSON gateway of its version 3 API: the one of the reference components, so that both can
 * stand for it. node_manager/reference/etcd.py has the keys and the argument; in short:
 *
 * NAME is the record, bound to a lease of etcd's; NAME/term is bound to nothing, and the store's revision at its writing
 * is the term. A renewal is a new lease of etcd's to which the record is bound by a transaction that says which revision
 * of the record it replaces: whatever is carried out late changes nothing. A rival takes the record over when it has
 * vanished, or when it has seen the same revision for longer than its holder can have the lease. A store whose term is
 * lower than one seen before grants nothing.
 *
 * Every step of a question is one request with a deadline, an eighth of the lease. What fails is LEASE_UNKNOWN, and the
 * next question goes to the next endpoint.
 */
#ifndef ETCDLEASE_H
#define ETCDLEASE_H

#include "base64.h"
#include "httpcall.h"
#include "lease.h"

#define ETCD_MAX_ENDPOINTS 16
#define ETCD_MAX_NAME 280   /* prefix and name of a lease */
#define ETCD_MAX_HOLDER 600 /* characters; bytes of the own one */
#define ETCD_MAX_IDENTITY 80

enum etcd_step { ETCD_IDLE, ETCD_LOOK, ETCD_LOOK_FIRST, ETCD_GRANT, ETCD_BIND, ETCD_LOOK_LAST, ETCD_DELETE };

/* The two keys at one moment. */
struct etcd_seen {
    int known;        /* 0: nothing else here counts */
    int there, mine;  /* whether there is a record, and whether it is this process's */
    int64_t lease_ns; /* for how long its holder has the lease from each writing on; 0: it does not say */
    int64_t revision; /* of the last writing of the record; 0: there is none */
    int64_t term;     /* 0: never a leadership */
};

struct etcdlease {
    struct lease base;
    struct http_address endpoints[ETCD_MAX_ENDPOINTS];
    int endpoint_count, endpoint;
    int64_t lease_ns, timeout_ns;
    char identity[ETCD_MAX_IDENTITY];
    char record_key[BASE64_SIZE(ETCD_MAX_NAME)], term_key[BASE64_SIZE(ETCD_MAX_NAME + 5)]; /* as the gateway has them */
    char record[BASE64_SIZE(ETCD_MAX_HOLDER + ETCD_MAX_IDENTITY + 80)], holder[BASE64_SIZE(ETCD_MAX_HOLDER)];

    struct etcd_seen ours;                        /* the record as this process wrote it last */
    int64_t highest;                              /* term ever seen */
    int64_t watched_revision, watched_since_ns;   /* the newest revision of the record, and when it was seen first */

    /* the question that is under way */
    enum etcd_step step;
    enum lease_answer answer;
    struct etcd_seen seen;
    int new_term, goes_on;
    int64_t length_ns, before_ns, lease_id, release_term;
    struct httpcall call;
    char value[HTTP_MAX_ANSWER + 1];
};

/*
 * Stand for the lease `name` in the members at `endpoints`, HOST:PORT with commas between them, numeric. `identity` tells
 * this holder from every other process that ever stood. Nothing is asked yet. 0, or -EINVAL: one of them cannot be used.
 */
int etcdlease_open(struct etcdlease *lease, const char *endpoints, const char *name, const char *holder, const char *identity,
                   int64_t lease_ns);

/* Give up what is under way, and nothing else: a lease runs out by itself. */
void etcdlease_close(struct etcdlease *lease);

#endif
