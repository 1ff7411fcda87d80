/*
 * A holder's place in an election, as the reference components keep it: held by one process at a time, with what its
 * successor has to know. node_manager/reference/slot.py has the form.
 */
#ifndef SLOT_H
#define SLOT_H

#include <stdint.h>

#define SLOT_IDENTITY 32

struct slot {
    int fd;
    char identity[SLOT_IDENTITY + 1]; /* random, and stays with the file: tells places with the same holder's name apart */
    int over;                         /* the last term was given up: a successor has to begin a new one */
};

/* Take the slot of `holder` beside `path`, for the life of this process. 0, or a negative errno; -EBUSY: it is taken. */
int slot_open(struct slot *slot, const char *path, const char *holder);

/* Keep whether the last term is over, for a process of this boot. A disk that fails costs a successor's new term only. */
void slot_remember(struct slot *slot, int over);

/* What files of this holder are told apart by: CRC-32 of its name. */
uint32_t slot_number(const char *holder);

/* Whether a holder's name can stand in a record as it is: printable ASCII without quotes and backslashes. */
int slot_holder_usable(const char *holder);

#endif
