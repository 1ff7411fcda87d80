/* See slot.h. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* flock(2) */

#include "slot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define FILE_MODE 0640
#define OVER '-'
#define GOES_ON '+'

uint32_t slot_number(const char *holder)
{
    uint32_t crc = 0xffffffffu;
    int bit;

    for (; *holder; holder++)
        for (crc ^= (unsigned char)*holder, bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    return ~crc;
}

int slot_holder_usable(const char *holder)
{
    const char *at;

    for (at = holder; *at; at++)
        if (*at < 0x20 || *at > 0x7e || *at == '"' || *at == '\\')
            return 0;
    return at > holder;
}

/* A new identity, and its place in the file. */
static int begin(int fd, char *kept)
{
    unsigned char random[SLOT_IDENTITY / 2];
    int from = open("/dev/urandom", O_RDONLY | O_CLOEXEC), i;
    ssize_t n;

    if (from < 0)
        return -errno;
    n = read(from, random, sizeof random);
    close(from);
    if (n != (ssize_t)sizeof random)
        return -EIO;
    for (i = 0; i < SLOT_IDENTITY / 2; i++)
        snprintf(kept + 2 * i, 3, "%02x", random[i]);
    kept[SLOT_IDENTITY] = GOES_ON;
    return pwrite(fd, kept, SLOT_IDENTITY + 1, 0) == SLOT_IDENTITY + 1 ? 0 : -EIO;
}

int slot_open(struct slot *slot, const char *path, const char *holder)
{
    char name[320], kept[SLOT_IDENTITY + 2] = "";
    int failed = 0;
    ssize_t n;

    if (snprintf(name, sizeof name, "%s.%08x.slot", path, slot_number(holder)) >= (int)sizeof name)
        return -ENAMETOOLONG;
    slot->fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
    if (slot->fd < 0)
        return -errno;
    if (flock(slot->fd, LOCK_EX | LOCK_NB) != 0)
        failed = errno == EWOULDBLOCK ? -EBUSY : -errno;
    else if ((n = pread(slot->fd, kept, SLOT_IDENTITY + 1, 0)) < 0)
        failed = -errno;
    else if (n <= SLOT_IDENTITY || strspn(kept, "0123456789abcdef") != SLOT_IDENTITY)
        failed = begin(slot->fd, kept);
    if (failed) {
        close(slot->fd);
        return failed;
    }
    slot->over = kept[SLOT_IDENTITY] == OVER;
    memcpy(slot->identity, kept, SLOT_IDENTITY);
    slot->identity[SLOT_IDENTITY] = '\0';
    return 0;
}

void slot_remember(struct slot *slot, int over)
{
    char mark = over ? OVER : GOES_ON;

    while (pwrite(slot->fd, &mark, 1, SLOT_IDENTITY) < 0 && errno == EINTR) {
    }
}
