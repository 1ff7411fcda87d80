/*
 * A lease of one host in a file: a record {boot_id, holder, term, valid_until_ns}, in the form that the reference
 * components write, so that both can stand for one lease.
 *
 * What makes a lease is the record, never a lock: a lock guards the comparison and the rename alone, and is never waited
 * for. The term rises with each acquisition and is kept by renewals; its highest value is in the lock file too, so that
 * it survives the loss of the record. A record of another boot has run out. One that cannot be read grants nothing.
 *
 * A question is answered when it is asked: that takes as long as one small file does.
 */
#ifndef FILELEASE_H
#define FILELEASE_H

#include "lease.h"

struct filelease {
    struct lease base;
    char path[256], lock_path[272], temporary[288], directory[256];
    char holder[128], boot_id[64];
    int64_t missing_term, missing_since_ns; /* when the record was first found missing, and the highest term then; 0: never */
    enum lease_answer answer;
};

/* Stand for the lease at `path`, whose slot the caller has. 0, or -EINVAL: the path or the holder cannot be used. */
int filelease_open(struct filelease *lease, const char *path, const char *holder, const char *boot_id);

#endif
