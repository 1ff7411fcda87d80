/*
 * A lease of one host in a file: a record {boot_id, holder, term, valid_until_ns}, in the form that the reference
 * components write, so that both can stand for one lease.
 *
 * What makes a lease is the record, never a lock: a lock guards the comparison and the rename alone, and is never waited
 * for. The term rises with each acquisition and is kept by renewals; its highest value is in the lock file too, so that
 * it survives the loss of the record. A record of another boot has run out. One that cannot be read grants nothing.
 */
#ifndef FILELEASE_H
#define FILELEASE_H

#include <stdint.h>

enum filelease_answer {
    FILELEASE_HELD,   /* the caller's, until valid_until_ns, under term */
    FILELEASE_TAKEN,  /* another's, until valid_until_ns, under term */
    FILELEASE_FREE,   /* nobody's; term was the last one. Only filelease_look says so */
    FILELEASE_UNKNOWN /* the record could not be read or written: nothing is granted, nothing is known */
};

struct filelease {
    char path[256], lock_path[272], temporary[288], slot_path[288], directory[256];
    char holder[128], boot_id[64];
    int slot;
    int64_t missing_term, missing_since_ns; /* when the record was first found missing, and the highest term then; 0: never */
    int64_t term, valid_until_ns;           /* of the last answer */
};

/*
 * Stand for the lease at `path` as `holder` (printable ASCII without quotes and backslashes). 0, or a negative errno:
 * -EBUSY, another process stands under this name; -EINVAL, the path or the holder cannot be used.
 */
int filelease_open(struct filelease *lease, const char *path, const char *holder);

/* Who has the lease; changes nothing. */
enum filelease_answer filelease_look(struct filelease *lease);

/* Take or renew it. `new_term`: the caller gave its own up before, so even its own record is no renewal. */
enum filelease_answer filelease_acquire(struct filelease *lease, int64_t length_ns, int new_term);

/* End the caller's own lease now; 1: done. Only where every dependant is known to be stopped. */
int filelease_release(struct filelease *lease, int64_t term);

#endif
