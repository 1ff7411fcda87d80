/* See filelease.h. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* flock(2) */

#include "filelease.h"

#include "slot.h"
#include "xce.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define MAX_RECORD 2048
#define ATTEMPTS 4 /* tries within one request while others change the record too */
#define FILE_MODE 0640

struct record {
    int there;
    char holder[700], boot_id[64];
    int64_t term, valid_until_ns;
};

/* ---- files ---------------------------------------------------------------------------------------------------------- */

/* The whole file; returns its size, 0 where there is none, -1 where it cannot be read or is too large. */
static long read_file(const char *path, char *to)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t n;

    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    n = read(fd, to, MAX_RECORD);
    close(fd);
    if (n < 0 || n == MAX_RECORD)
        return -1;
    to[n] = '\0';
    return (long)n;
}

static int write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, FILE_MODE), done;

    if (fd < 0)
        return 0;
    done = write(fd, text, strlen(text)) == (ssize_t)strlen(text) && fsync(fd) == 0;
    return close(fd) == 0 && done;
}

static void sync_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

/* The highest term, as the lock file has it; -1: nothing that can be read. */
static int64_t counter_in(const char *text)
{
    char *end;
    long long n = strtoll(text, &end, 10);

    return *text >= '0' && *text <= '9' && strcmp(end, "\n") == 0 && n >= 0 && n <= LEASE_MAX_TERM ? (int64_t)n : -1;
}

/* ---- the record ------------------------------------------------------------------------------------------------------ */

/* Read one string or number of the flat object, by its key; 1: found and whole. A string is kept as it is written. */
static int member(const char *text, const char *key, char *string, size_t size, int64_t *number)
{
    char name[32], *end;
    const char *at;
    size_t n;

    snprintf(name, sizeof name, "\"%s\":", key);
    at = strstr(text, name);
    if (at == NULL || strstr(at + 1, name) != NULL)
        return 0;
    at += strlen(name);
    at += strspn(at, " ");
    if (number != NULL) {
        errno = 0;
        *number = strtoll(at, &end, 10);
        return *at >= '0' && *at <= '9' && errno == 0 && (*end == ',' || *end == '}');
    }
    if (*at++ != '"')
        return 0;
    for (n = 0; at[n] != '"'; n++)
        if (at[n] == '\0' || n + 1 == size || (at[n] == '\\' && at[++n] == '\0'))
            return 0;
    if (n >= size)
        return 0;
    memcpy(string, at, n);
    string[n] = '\0';
    return n > 0;
}

static int parse_record(const char *text, struct record *out)
{
    size_t n = strlen(text);

    out->there = n > 0;
    if (n == 0)
        return 1;
    while (n > 0 && text[n - 1] == '\n')
        n--;
    return n > 1 && text[0] == '{' && text[n - 1] == '}' && member(text, "holder", out->holder, sizeof out->holder, NULL)
           && member(text, "boot_id", out->boot_id, sizeof out->boot_id, NULL) && member(text, "term", NULL, 0, &out->term)
           && member(text, "valid_until_ns", NULL, 0, &out->valid_until_ns) && out->term > 0 && out->term <= LEASE_MAX_TERM;
}

static int valid(const struct filelease *lease, const struct record *record, int64_t now)
{
    return record->there && strcmp(record->boot_id, lease->boot_id) == 0 && now < record->valid_until_ns;
}

/* Put a record in place of `expected`, durably; 1: done, 0: others changed it or are doing so, -1: it cannot be written. */
static int replace(struct filelease *lease, const char *expected, const struct record *new)
{
    char text[MAX_RECORD], now_there[MAX_RECORD], counter[64];
    int lock, done = 0;

    snprintf(text, sizeof text, "{\"boot_id\": \"%s\", \"holder\": \"%s\", \"term\": %lld, \"valid_until_ns\": %lld}\n",
             new->boot_id, new->holder, (long long)new->term, (long long)new->valid_until_ns);
    if (!write_file(lease->temporary, text))
        return -1;
    lock = open(lease->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
    if (lock < 0)
        return -1;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0 && read_file(lease->path, now_there) == (long)strlen(expected)
        && strcmp(now_there, expected) == 0) {
        ssize_t n = pread(lock, counter, sizeof counter - 1, 0);

        counter[n > 0 ? n : 0] = '\0';
        done = 1;
        if (counter_in(counter) < new->term) {
            snprintf(counter, sizeof counter, "%020lld\n", (long long)new->term);
            if (pwrite(lock, counter, strlen(counter), 0) != (ssize_t)strlen(counter)
                || ftruncate(lock, (off_t)strlen(counter)) != 0 || fsync(lock) != 0)
                done = -1;
        }
        if (done == 1 && rename(lease->temporary, lease->path) != 0)
            done = -1;
    }
    close(lock); /* frees it */
    if (done == 1)
        sync_directory(lease->directory);
    return done;
}

/* ---- the interface --------------------------------------------------------------------------------------------------- */

static struct filelease *of(struct lease *lease) { return (struct filelease *)lease; }

static void answer_with(struct filelease *lease, enum lease_answer answer, const struct record *record)
{
    lease->answer = answer;
    lease->base.term = record->term;
    lease->base.valid_until_ns = record->valid_until_ns;
    lease->base.trouble[0] = '\0';
}

static void answer_unknown(struct filelease *lease, const char *why)
{
    lease->answer = LEASE_UNKNOWN;
    snprintf(lease->base.trouble, sizeof lease->base.trouble, "%s", why);
}

static void look(struct lease *base)
{
    struct filelease *lease = of(base);
    char text[MAX_RECORD] = "";
    struct record record = {0};

    if (read_file(lease->path, text) < 0 || !parse_record(text, &record))
        answer_unknown(lease, "cannot read the lease record");
    else
        answer_with(lease, valid(lease, &record, xce_boottime_ns()) ? LEASE_TAKEN : LEASE_FREE, &record);
}

/* A record that has vanished may have granted a lease: 1 once a whole one has passed without any. */
static int waited_out(struct filelease *lease, int64_t highest, int64_t now, int64_t length_ns)
{
    if (lease->missing_since_ns == 0 || lease->missing_term != highest) {
        lease->missing_term = highest;
        lease->missing_since_ns = now;
    }
    return now - lease->missing_since_ns >= length_ns;
}

/* One try; 0: others changed the record meanwhile. */
static int try_to_acquire(struct filelease *lease, int64_t length_ns, int new_term)
{
    char text[MAX_RECORD] = "", counter[MAX_RECORD] = "";
    int64_t before = xce_boottime_ns(), highest; /* the validity counts from before the request */
    struct record record = {0}, new;
    int done;

    if (read_file(lease->path, text) < 0 || !parse_record(text, &record) || read_file(lease->lock_path, counter) < 0) {
        answer_unknown(lease, "cannot read the lease record");
        return 1;
    }
    highest = counter_in(counter);
    if (highest < 0 && !record.there && counter[0] != '\0') {
        answer_unknown(lease, "the lease record has vanished, and the highest term cannot be read");
        return 1;
    }
    highest = highest < record.term ? record.term : highest;
    if (!record.there && highest > 0 && !waited_out(lease, highest, before, length_ns)) {
        answer_unknown(lease, "the lease record has vanished: waiting one lease for what it may have granted");
        return 1;
    }
    if (valid(lease, &record, before) && strcmp(record.holder, lease->holder) != 0) {
        answer_with(lease, LEASE_TAKEN, &record);
        return 1;
    }
    new = record;
    strcpy(new.holder, lease->holder);
    strcpy(new.boot_id, lease->boot_id);
    new.term = valid(lease, &record, before) && !new_term && record.term == highest ? highest : highest + 1;
    new.valid_until_ns = before + length_ns;
    done = replace(lease, text, &new);
    if (done == 1)
        answer_with(lease, LEASE_HELD, &new);
    else if (done < 0)
        answer_unknown(lease, "cannot write the lease record");
    return done != 0;
}

static void acquire(struct lease *lease, int64_t length_ns, int new_term)
{
    int attempt;

    for (attempt = 0; attempt < ATTEMPTS; attempt++)
        if (try_to_acquire(of(lease), length_ns, new_term))
            return;
    answer_unknown(of(lease), "others change the lease record");
}

static void release(struct lease *base, int64_t term)
{
    struct filelease *lease = of(base);
    char text[MAX_RECORD] = "";
    struct record record = {0};

    answer_unknown(lease, "the lease is not ours any more");
    if (read_file(lease->path, text) <= 0 || !parse_record(text, &record) || strcmp(record.holder, lease->holder) != 0
        || strcmp(record.boot_id, lease->boot_id) != 0 || record.term != term)
        return;
    record.valid_until_ns = xce_boottime_ns();
    if (replace(lease, text, &record) == 1)
        answer_with(lease, LEASE_FREE, &record);
}

static enum lease_answer answer(struct lease *lease)
{
    enum lease_answer answered = of(lease)->answer;

    of(lease)->answer = LEASE_PENDING;
    return answered;
}

static int descriptor(const struct lease *lease, short *events)
{
    (void)lease;
    *events = 0;
    return -1;
}

static int64_t next_ns(const struct lease *lease)
{
    return ((const struct filelease *)lease)->answer == LEASE_PENDING ? LEASE_NEVER_NS : 0;
}

static const struct lease_kind kind = {look, acquire, release, answer, descriptor, next_ns};

int filelease_open(struct filelease *lease, const char *path, const char *holder, const char *boot_id)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    memset(lease, 0, sizeof *lease);
    if (!slot_holder_usable(holder) || strlen(holder) >= sizeof lease->holder || strlen(path) >= sizeof lease->path - 16
        || *name == '\0' || strlen(boot_id) >= sizeof lease->boot_id)
        return -EINVAL;
    lease->base.kind = &kind;
    strcpy(lease->holder, holder);
    strcpy(lease->path, path);
    strcpy(lease->boot_id, boot_id);
    snprintf(lease->directory, sizeof lease->directory, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    snprintf(lease->lock_path, sizeof lease->lock_path, "%s.lock", path);
    snprintf(lease->temporary, sizeof lease->temporary, "%s/.%s.%08x.tmp", lease->directory, name, slot_number(holder));
    return 0;
}
