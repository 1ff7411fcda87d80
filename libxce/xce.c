/*
 * libxce: see xce.h. Three parts: reading records, the agent's word; rendering records, the component's own; and the
 * connection. Everything lives in one struct of fixed size, made by xce_heartbeat_open.
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, getpid, strnlen under -std=c99 */
#endif

#include "xce.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAX_RECORD 8192
#define MAX_KEYS 512
#define MAX_KEY 128
#define MAX_PARTS 8
#define MAX_TEMPLATE 256
#define MAX_FACT_NAME (XCE_MAX_NAME + 32) /* lease.NAME, component.NAME.ready */
#define MAX_NODE 256
#define MAX_ROLES 1024

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
#define RECONNECT_MIN_NS (NS_PER_S / 5)
#define RECONNECT_MAX_NS NS_PER_S
#define FULL_STATE_NS (10 * NS_PER_S)
#define BLOCKED_RETRY_NS (100 * NS_PER_MS)
#define MAX_WAIT_MS 60000
/* Own pace, below what the agent takes for a flood: a program that sets a level in a tight loop is not cut off. */
#define PACE_NS (25 * NS_PER_MS)
#define PACE_BURST 50
/* Above what the agent's send buffer holds; a bound for an agent that has gone mad. */
#define READS_PER_POLL 512

/* The greatest record: hello 3 * 128 + 256, status 512, leases 16 * (3 * 64 + 75), the rest below 512: one record always. */
#define LEASE_LINES (3 * XCE_MAX_NAME + 96)
typedef char xce_record_fits[(XCE_MAX_LEASES * LEASE_LINES + XCE_MAX_STATUS + MAX_TEMPLATE + 1024 <= MAX_RECORD) ? 1 : -1];

struct slice {
    const char *at;
    size_t n;
};

struct pair {
    struct slice key, value;
};

struct fact {
    char name[MAX_FACT_NAME + 1];
    int value;
    int64_t term, valid_until_ns;
    unsigned seen;
};

struct component {
    char name[XCE_MAX_NAME + 1];
    enum xce_state state;
    int64_t restarts, expected_back_ms;
    unsigned seen;
};

struct lease {
    char name[XCE_MAX_NAME + 1];
    int held, dirty;
    int64_t token, valid_until_ns;
};

/* The levels that the component states, and whether they changed since they were sent. */
enum { READY = 1, STOPPING = 2, STATUS = 4, PROGRESS = 8, JOBS = 16, LEADERSHIP = 32, HOST = 64, LEASES = 128 };

struct xce_heartbeat {
    /* who speaks, and where */
    pid_t owner;
    char component[XCE_MAX_NAME + 1];
    char host_template[MAX_TEMPLATE + 1];
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    int mute; /* nothing is ever sent */
    int64_t interval_ns;

    /* the connection */
    int fd;
    int greeted, connected, blocked, error;
    int64_t beat, beat_at_ns, full_at_ns, retry_at_ns, retry_delay_ns;
    int64_t paced_ns; /* when the records sent so far would have been sent at the pace */
    uint64_t random;

    /* what the component states */
    unsigned stated, dirty;
    int ready;
    char status[XCE_MAX_STATUS + 1];
    int64_t progress, jobs;
    int primary;
    int64_t term, valid_until_ns;
    enum xce_host host;
    int64_t epoch, drain_deadline_ns;
    struct lease leases[XCE_MAX_LEASES];
    int lease_count;

    /* what the agent said */
    int heard;
    struct xce_directives directives;
    unsigned directives_seen; /* which of them the full state had that is coming in or came last */
    int64_t rejoin_budget_ms;
    unsigned rejoin_seen;
    struct fact facts[XCE_MAX_FACTS];
    int fact_count;
    struct component components[XCE_MAX_COMPONENTS];
    int component_count;
    char node[MAX_NODE], instance_id[MAX_NODE], boot_id[MAX_NODE], roles[MAX_ROLES];
    unsigned round;       /* number of the full state that is coming in or came last */
    int filling;          /* parts of a full state that came: the next is filling + 1 of filling_count; 0: none */
    int filling_count;

    /* the fence */
    char fenced[MAX_FACT_NAME + 1]; /* "": not fenced */
    int ended;
    int64_t own_term, own_until_ns;

    struct pair pairs[MAX_KEYS];
    char buffer[MAX_RECORD + 1];
};

/* ---- texts and numbers ------------------------------------------------------------------------------------------ */

static int equals(struct slice text, const char *word)
{
    return text.n == strlen(word) && memcmp(text.at, word, text.n) == 0;
}

static int begins(struct slice text, const char *word)
{
    return text.n >= strlen(word) && memcmp(text.at, word, strlen(word)) == 0;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_upper(char c) { return c >= 'A' && c <= 'Z'; }
static int is_key_char(char c)
{
    return is_digit(c) || is_upper(c) || (c >= 'a' && c <= 'z') || c == '_' || c == '.' || c == '-';
}

/* A number of the protocol: 1 to 19 digits, at most 2^63 - 1; else -1. */
static int64_t number_in(struct slice text)
{
    uint64_t n = 0;
    size_t i;

    if (text.n < 1 || text.n > 19)
        return -1;
    for (i = 0; i < text.n; i++) {
        if (!is_digit(text.at[i]))
            return -1;
        n = 10 * n + (uint64_t)(text.at[i] - '0'); /* 19 digits fit in 64 bits */
    }
    return n > INT64_MAX ? -1 : (int64_t)n;
}

static int64_t number_of(const char *text)
{
    struct slice whole = {text, text ? strnlen(text, 32) : 0};

    return number_in(whole);
}

static void copy(char *to, size_t size, struct slice from)
{
    size_t n = from.n < size ? from.n : size - 1;

    memcpy(to, from.at, n);
    to[n] = '\0';
}

/* Bytes of the UTF-8 character at `at`, as RFC 3629 has it; 0 where there is none within `n` bytes. */
static size_t character(const unsigned char *at, size_t n)
{
    size_t length, i;

    if (at[0] < 0x80)
        return 1;
    length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || length > n)
        return 0;
    for (i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f))
        return 0; /* too long a form; half of a surrogate pair */
    if ((at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
        return 0; /* too long a form; beyond U+10FFFF */
    return length;
}

/* Copy at most size - 1 bytes of text as a value may carry it: a control byte becomes a space, what is not UTF-8 a `?`. */
static void copy_text(char *to, size_t size, const char *from)
{
    size_t used = 0, left = strlen(from);

    while (left > 0) {
        size_t n = character((const unsigned char *)from, left);
        size_t take = n ? n : 1;

        if (used + take >= size)
            break;
        if (n == 0)
            to[used] = '?';
        else if (n == 1 && (unsigned char)*from < 0x20)
            to[used] = ' ';
        else
            memcpy(to + used, from, n);
        used += take;
        from += take;
        left -= take;
    }
    to[used] = '\0';
}

/* A name that may be part of a key, and is no attribute. */
static int is_name(const char *name)
{
    size_t n = name ? strnlen(name, XCE_MAX_NAME + 1) : 0, i;
    const char *last;

    if (n < 1 || n > XCE_MAX_NAME)
        return 0;
    for (i = 0; i < n; i++)
        if (!is_key_char(name[i]))
            return 0;
    last = strrchr(name, '.');
    return last == NULL || !is_upper(last[1]);
}

/* ---- reading a record -------------------------------------------------------------------------------------------- */

/* Take a record apart into `pairs`; returns how many, or -1 for a malformed record. */
static int parse(const char *record, size_t n, struct pair *pairs)
{
    const char *end = record + n, *at;
    int count = 0, i;

    if (n < 1 || n > MAX_RECORD)
        return -1;
    for (at = record; at < end;) {
        size_t length = character((const unsigned char *)at, (size_t)(end - at));

        if (length == 0 || ((unsigned char)*at < 0x20 && *at != '\n'))
            return -1;
        at += length;
    }
    if (end[-1] == '\n')
        end--;
    for (at = record;; at++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const char *split;
        struct pair *pair = &pairs[count];

        if (stop == NULL)
            stop = end;
        split = memchr(at, '=', (size_t)(stop - at));
        if (split == NULL || split == at || split - at > MAX_KEY || count == MAX_KEYS)
            return -1;
        pair->key.at = at;
        pair->key.n = (size_t)(split - at);
        pair->value.at = split + 1;
        pair->value.n = (size_t)(stop - split - 1);
        for (; at < split; at++)
            if (!is_key_char(*at))
                return -1;
        for (i = 0; i < count; i++)
            if (pairs[i].key.n == pair->key.n && memcmp(pairs[i].key.at, pair->key.at, pair->key.n) == 0)
                return -1;
        count++;
        at = stop;
        if (stop == end)
            return count;
    }
}

/* Read PART=i/n; 0 for a value that is none. */
static int part_in(struct slice text, int *part, int *parts)
{
    const char *slash = memchr(text.at, '/', text.n);
    struct slice left = text, right = text;
    int64_t i, n;

    if (slash == NULL)
        return 0;
    left.n = (size_t)(slash - text.at);
    right.at = slash + 1;
    right.n = text.n - left.n - 1;
    i = number_in(left);
    n = number_in(right);
    if (i < 1 || n < i || n > MAX_PARTS)
        return 0;
    *part = (int)i;
    *parts = (int)n;
    return 1;
}

/* Split what follows FACT. or COMPONENT. into a name and its attribute (n 0: none). */
static void split_attribute(struct slice rest, struct slice *name, struct slice *attribute)
{
    size_t dot = rest.n, i;

    *name = rest;
    attribute->at = rest.at;
    attribute->n = 0;
    while (dot > 0 && rest.at[dot - 1] != '.')
        dot--;
    if (dot == 0 || dot == rest.n || !is_upper(rest.at[dot]))
        return;
    for (i = dot; i < rest.n; i++)
        if (!is_upper(rest.at[i]) && !is_digit(rest.at[i]) && rest.at[i] != '_')
            return;
    attribute->at = rest.at + dot;
    attribute->n = rest.n - dot;
    name->n = dot - 1;
}

static struct slice value_of(const struct pair *pairs, int count, const char *key)
{
    struct slice none = {NULL, 0};
    int i;

    for (i = 0; i < count; i++)
        if (equals(pairs[i].key, key))
            return pairs[i].value;
    return none;
}

/* ---- the agent's word --------------------------------------------------------------------------------------------- */

static struct fact *fact_named(const xce_heartbeat *hb, struct slice name)
{
    int i;

    for (i = 0; i < hb->fact_count; i++)
        if (equals(name, hb->facts[i].name))
            return (struct fact *)&hb->facts[i];
    return NULL;
}

static struct component *component_named(const xce_heartbeat *hb, struct slice name)
{
    int i;

    for (i = 0; i < hb->component_count; i++)
        if (equals(name, hb->components[i].name))
            return (struct component *)&hb->components[i];
    return NULL;
}

/* A place for one more. A full state that is coming in takes those of what it has not named, should there be no other. */
static struct fact *fact_place(xce_heartbeat *hb, int full)
{
    int i;

    if (hb->fact_count < XCE_MAX_FACTS)
        return &hb->facts[hb->fact_count++];
    for (i = 0; full && i < hb->fact_count; i++)
        if (hb->facts[i].seen != hb->round)
            return &hb->facts[i];
    return NULL;
}

static struct component *component_place(xce_heartbeat *hb, int full)
{
    int i;

    if (hb->component_count < XCE_MAX_COMPONENTS)
        return &hb->components[hb->component_count++];
    for (i = 0; full && i < hb->component_count; i++)
        if (hb->components[i].seen != hb->round)
            return &hb->components[i];
    return NULL;
}

/*
 * An entry may have been left over from before the full state that is coming in: its first key in that state begins it
 * anew, so that an attribute which is not stated any more does not stay.
 */
static void take_fact(xce_heartbeat *hb, struct slice rest, struct slice value, int full)
{
    struct slice name, attribute;
    struct fact *fact;
    int fresh;

    split_attribute(rest, &name, &attribute);
    fact = fact_named(hb, name);
    fresh = fact == NULL || (full && fact->seen != hb->round);
    if (fact == NULL) {
        if (name.n < 1 || name.n > MAX_FACT_NAME || (fact = fact_place(hb, full)) == NULL)
            return;
        copy(fact->name, sizeof fact->name, name);
    }
    if (fresh) {
        fact->value = -1;
        fact->term = fact->valid_until_ns = -1;
    }
    fact->seen = hb->round;
    if (attribute.n == 0)
        fact->value = equals(value, "true") ? 1 : equals(value, "false") ? 0 : -1;
    else if (equals(attribute, "TERM"))
        fact->term = number_in(value);
    else if (equals(attribute, "VALID_UNTIL_NS"))
        fact->valid_until_ns = number_in(value);
}

static enum xce_state state_in(struct slice value)
{
    static const char *const words[] = {"", "stopped", "starting", "running", "stopping", "killing", "backoff", "exited", "failed"};
    int i;

    for (i = XCE_STOPPED; i <= XCE_FAILED; i++)
        if (equals(value, words[i]))
            return (enum xce_state)i;
    return XCE_UNKNOWN;
}

static void take_component(xce_heartbeat *hb, struct slice rest, struct slice value, int full)
{
    struct slice name, attribute;
    struct component *component;
    int fresh;

    split_attribute(rest, &name, &attribute);
    component = component_named(hb, name);
    fresh = component == NULL || (full && component->seen != hb->round);
    if (component == NULL) {
        if (name.n < 1 || name.n > XCE_MAX_NAME || (component = component_place(hb, full)) == NULL)
            return;
        copy(component->name, sizeof component->name, name);
    }
    if (fresh) {
        component->state = XCE_UNKNOWN;
        component->restarts = component->expected_back_ms = -1;
    }
    component->seen = hb->round;
    if (attribute.n == 0)
        component->state = state_in(value);
    else if (equals(attribute, "RESTARTS"))
        component->restarts = number_in(value);
    else if (equals(attribute, "EXPECTED_BACK_MS"))
        component->expected_back_ms = number_in(value);
}

static const char *const directive_keys[] = {"DRAIN", "DRAIN_DEADLINE_NS", "UNDRAIN", "EPOCH", "DECOMMISSIONED", "SEEN_EPOCH",
    "NODE_STOPPING"};
#define DIRECTIVES 7

static void set_directive(xce_heartbeat *hb, int which, struct slice value)
{
    struct xce_directives *d = &hb->directives;
    int64_t n = number_in(value);

    switch (which) {
    case 0: d->drain = equals(value, "1"); break;
    case 1: d->drain_deadline_ns = n < 0 ? 0 : n; break;
    case 2: d->undrain = equals(value, "1"); break;
    case 3: d->epoch = n < 0 ? 0 : n; break;
    case 4: d->decommissioned = equals(value, "1"); break;
    case 5: d->seen_epoch = n < 0 ? 0 : n; break;
    default: d->node_stopping = equals(value, "1"); break;
    }
}

static int take_directive(xce_heartbeat *hb, const struct pair *pair)
{
    int i;

    for (i = 0; i < DIRECTIVES; i++)
        if (equals(pair->key, directive_keys[i])) {
            set_directive(hb, i, pair->value);
            hb->directives_seen |= 1u << i;
            return 1;
        }
    return 0;
}

static void take_level(xce_heartbeat *hb, const struct pair *pair, int full)
{
    struct slice rest = pair->key;

    if (take_directive(hb, pair))
        return;
    if (begins(rest, "FACT.")) {
        rest.at += 5;
        rest.n -= 5;
        take_fact(hb, rest, pair->value, full);
    } else if (begins(rest, "COMPONENT.")) {
        rest.at += 10;
        rest.n -= 10;
        take_component(hb, rest, pair->value, full);
    } else if (equals(rest, "REJOIN_BUDGET_MS")) {
        hb->rejoin_budget_ms = number_in(pair->value);
        hb->rejoin_seen = hb->round;
    } else if (equals(rest, "NODE"))
        copy(hb->node, sizeof hb->node, pair->value);
    else if (equals(rest, "INSTANCE_ID"))
        copy(hb->instance_id, sizeof hb->instance_id, pair->value);
    else if (equals(rest, "BOOT_ID"))
        copy(hb->boot_id, sizeof hb->boot_id, pair->value);
    else if (equals(rest, "ROLES"))
        copy(hb->roles, sizeof hb->roles, pair->value);
}

/* A full state is complete: what was not in it no longer holds. */
static void forget_unseen(xce_heartbeat *hb)
{
    struct slice none = {"", 0};
    int i, kept;

    for (i = 0; i < DIRECTIVES; i++)
        if (!(hb->directives_seen & 1u << i))
            set_directive(hb, i, none);
    for (i = kept = 0; i < hb->fact_count; i++)
        if (hb->facts[i].seen == hb->round)
            hb->facts[kept++] = hb->facts[i];
    hb->fact_count = kept;
    for (i = kept = 0; i < hb->component_count; i++)
        if (hb->components[i].seen == hb->round)
            hb->components[kept++] = hb->components[i];
    hb->component_count = kept;
    if (hb->rejoin_seen != hb->round)
        hb->rejoin_budget_ms = -1;
}

/* The latest word on the fact that this process depends on: a renewal, or the end. */
static void heed_fence(xce_heartbeat *hb)
{
    struct slice name = {hb->fenced, strlen(hb->fenced)};
    const struct fact *fact = name.n ? fact_named(hb, name) : NULL;

    if (fact == NULL || hb->ended)
        return;
    if (fact->value == 0 || (fact->term >= 0 && fact->term != hb->own_term))
        hb->ended = 1;
    else if (fact->value == 1 && fact->term == hb->own_term && fact->valid_until_ns > hb->own_until_ns)
        hb->own_until_ns = fact->valid_until_ns;
}

/* Take in one record. -1, and nothing changed, where it breaks the protocol. */
static int take(xce_heartbeat *hb, const char *record, size_t n)
{
    int count = parse(record, n, hb->pairs), part = 1, parts = 1, full, i;
    struct slice text;

    if (count < 0)
        return -1;
    text = value_of(hb->pairs, count, "PART");
    if (text.at != NULL && !part_in(text, &part, &parts))
        return -1;
    text = value_of(hb->pairs, count, "XCE_HEARTBEAT");
    if (text.at != NULL) {
        if (!equals(text, "1"))
            return -1;
        hb->connected = 1;
        hb->error = 0;
        hb->retry_delay_ns = RECONNECT_MIN_NS;
        hb->node[0] = hb->instance_id[0] = hb->boot_id[0] = hb->roles[0] = '\0';
    }
    if (equals(value_of(hb->pairs, count, "FULL"), "1")) {
        hb->round++;
        hb->directives_seen = 0;
        hb->filling = part;
        hb->filling_count = parts;
    } else if (hb->filling != 0) {
        /* A sequence that was interrupted is not continued: what comes now carries changes. */
        hb->filling = part == hb->filling + 1 && parts == hb->filling_count ? part : 0;
    }
    full = hb->filling != 0;
    for (i = 0; i < count; i++)
        take_level(hb, &hb->pairs[i], full);
    if (full && hb->filling == hb->filling_count) {
        forget_unseen(hb);
        hb->filling = 0;
    }
    hb->heard = 1;
    heed_fence(hb);
    return 0;
}

/* ---- rendering a record ------------------------------------------------------------------------------------------- */

struct writer {
    char *at;
    size_t used;
};

static void line(struct writer *out, const char *key, const char *value)
{
    /* xce_record_fits: it always does. */
    out->used += (size_t)snprintf(out->at + out->used, MAX_RECORD + 1 - out->used, "%s=%s\n", key, value);
}

static void number(struct writer *out, const char *key, int64_t n)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)n);
    line(out, key, text);
}

static void render_lease(struct writer *out, const struct lease *lease)
{
    char key[XCE_MAX_NAME + 32];

    snprintf(key, sizeof key, "LEASE.%s", lease->name);
    line(out, key, lease->held ? "held" : "lost");
    snprintf(key, sizeof key, "LEASE.%s.TOKEN", lease->name);
    number(out, key, lease->token);
    if (lease->held) {
        snprintf(key, sizeof key, "LEASE.%s.VALID_UNTIL_NS", lease->name);
        number(out, key, lease->valid_until_ns);
    }
}

/* Render a record with the levels in `which` into the buffer; returns its length. */
static size_t render(xce_heartbeat *hb, int hello, unsigned which, int all_leases)
{
    static const char *const hosts[] = {"active", "draining", "drained", "decommissioned"};
    struct writer out = {hb->buffer, 0};
    int i;

    if (hello) {
        line(&out, "XCE_HEARTBEAT", "1");
        line(&out, "COMPONENT", hb->component);
        number(&out, "INTERVAL_MS", hb->interval_ns / NS_PER_MS);
        if (hb->host_template[0])
            line(&out, "TEMPLATE", hb->host_template);
    }
    number(&out, "BEAT", hb->beat + 1);
    if (which & READY)
        line(&out, "READY", hb->ready ? "1" : "0");
    if (which & STOPPING)
        line(&out, "STOPPING", "1");
    if (which & STATUS)
        line(&out, "STATUS", hb->status);
    if (which & PROGRESS)
        number(&out, "PROGRESS", hb->progress);
    if (which & JOBS)
        number(&out, "JOBS", hb->jobs);
    if (which & LEADERSHIP) {
        line(&out, "LEADERSHIP", hb->primary ? "primary" : "standby");
        number(&out, "TERM", hb->term);
        if (hb->primary)
            number(&out, "VALID_UNTIL_NS", hb->valid_until_ns);
    }
    if (which & HOST) {
        line(&out, "HOST_STATE", hosts[hb->host]);
        number(&out, "EPOCH", hb->epoch);
        if (hb->host == XCE_HOST_DRAINING && hb->drain_deadline_ns > 0)
            number(&out, "DRAIN_DEADLINE_NS", hb->drain_deadline_ns);
    }
    for (i = 0; i < hb->lease_count; i++)
        if (all_leases || hb->leases[i].dirty)
            render_lease(&out, &hb->leases[i]);
    return out.used;
}

/* ---- the connection ----------------------------------------------------------------------------------------------- */

int64_t xce_boottime_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now); /* cannot fail: Linux 2.6.39 */
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

static int64_t later(const xce_heartbeat *hb, int64_t now)
{
    return hb->paced_ns > now ? hb->paced_ns : now;
}

/* When the pace allows one more record. */
static int64_t pace_at_ns(const xce_heartbeat *hb)
{
    return hb->paced_ns - (PACE_BURST - 1) * PACE_NS;
}

/* Whether this is a forked child. It gives back its copy of the descriptor, and nothing else. */
static int in_child(xce_heartbeat *hb)
{
    if (hb->owner == getpid())
        return 0;
    if (hb->fd >= 0)
        close(hb->fd);
    hb->fd = -1;
    return 1;
}

/* As random as it needs to be to spread load (xorshift64). */
static int64_t jittered(xce_heartbeat *hb, int64_t delay_ns)
{
    hb->random ^= hb->random << 13;
    hb->random ^= hb->random >> 7;
    hb->random ^= hb->random << 17;
    return delay_ns / 2 + (int64_t)(hb->random % (uint64_t)(delay_ns / 2));
}

static void lose(xce_heartbeat *hb, int64_t now, int error)
{
    if (hb->fd >= 0)
        close(hb->fd);
    hb->fd = -1;
    hb->connected = 0;
    hb->filling = 0;
    hb->error = error;
    hb->retry_at_ns = now + jittered(hb, hb->retry_delay_ns);
    hb->retry_delay_ns = hb->retry_delay_ns < RECONNECT_MAX_NS / 2 ? 2 * hb->retry_delay_ns : RECONNECT_MAX_NS;
}

static void dial(xce_heartbeat *hb, int64_t now)
{
    struct sockaddr_un address;

    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, hb->path, sizeof address.sun_path);
    hb->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (hb->fd < 0 || connect(hb->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        lose(hb, now, errno); /* a full queue is EAGAIN: nobody waits for it */
        return;
    }
    hb->greeted = hb->blocked = hb->filling = 0;
    hb->beat_at_ns = hb->full_at_ns = now;
}

/* Take in what waits; returns whether there was any. */
static int receive(xce_heartbeat *hb, int64_t now)
{
    int came = 0, i;

    for (i = 0; i < READS_PER_POLL && hb->fd >= 0; i++) {
        ssize_t n = recv(hb->fd, hb->buffer, sizeof hb->buffer, MSG_DONTWAIT);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0 && (errno == EINTR || errno == ECONNRESET))
            continue; /* reset: the agent closed before it read all; what it had said is still there */
        if (n <= 0)
            lose(hb, now, n < 0 ? errno : ECONNRESET);
        else if (take(hb, hb->buffer, (size_t)n) != 0)
            lose(hb, now, EPROTO);
        else
            came = 1;
    }
    return came;
}

/* Send what is due; returns whether the agent's last words were found in doing so. */
static int transmit(xce_heartbeat *hb, int64_t now)
{
    int full = now >= hb->full_at_ns, came, error, i;
    unsigned which = full ? hb->stated : hb->dirty;
    size_t n;

    if (!full && !hb->dirty && now < hb->beat_at_ns)
        return 0;
    if (hb->greeted && now < pace_at_ns(hb))
        return 0;
    hb->blocked = 0;
    n = render(hb, !hb->greeted, which, full);
    if (send(hb->fd, hb->buffer, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM || errno == EINTR) {
            hb->blocked = 1; /* all of it is sent again, as it is then */
            return 0;
        }
        error = errno;
        came = receive(hb, now); /* what the agent said last may be a directive */
        if (hb->fd >= 0)
            lose(hb, now, error);
        return came;
    }
    hb->beat++;
    hb->greeted = 1;
    hb->dirty = 0;
    for (i = 0; i < hb->lease_count; i++)
        hb->leases[i].dirty = 0;
    hb->paced_ns = later(hb, now) + PACE_NS;
    hb->beat_at_ns = now + hb->interval_ns;
    if (full)
        hb->full_at_ns = now + FULL_STATE_NS;
    return 0;
}

/* ---- the interface: opening, the loop ------------------------------------------------------------------------------ */

xce_heartbeat *xce_heartbeat_open(const char *component, unsigned interval_ms, const char *host_template)
{
    const char *path = getenv("XCE_HEARTBEAT_SOCKET"), *main_pid = getenv("XCE_MAIN_PID");
    int64_t now = xce_boottime_ns();
    xce_heartbeat *hb;

    if (component == NULL)
        component = getenv("XCE_COMPONENT");
    if (interval_ms < XCE_MIN_INTERVAL_MS || interval_ms > XCE_MAX_INTERVAL_MS || (component && *component && !is_name(component))
        || (host_template && strlen(host_template) > MAX_TEMPLATE)) {
        errno = EINVAL;
        return NULL;
    }
    hb = calloc(1, sizeof *hb);
    if (hb == NULL)
        return NULL;
    hb->owner = getpid();
    hb->fd = -1;
    hb->interval_ns = interval_ms * NS_PER_MS;
    hb->beat_at_ns = hb->full_at_ns = hb->retry_at_ns = now;
    hb->retry_delay_ns = RECONNECT_MIN_NS;
    hb->random = ((uint64_t)now ^ ((uint64_t)hb->owner << 32)) | 1;
    hb->rejoin_budget_ms = -1;
    hb->own_term = hb->own_until_ns = -1;
    copy_text(hb->host_template, sizeof hb->host_template, host_template ? host_template : "");
    hb->mute = path == NULL || *path == '\0' || component == NULL || *component == '\0'
               || (main_pid && number_of(main_pid) != hb->owner);
    if (!hb->mute && strlen(path) >= sizeof hb->path) {
        hb->mute = 1;
        hb->error = ENAMETOOLONG;
    }
    if (!hb->mute) {
        strcpy(hb->component, component);
        strcpy(hb->path, path);
    }
    return hb;
}

void xce_heartbeat_close(xce_heartbeat *hb)
{
    int saved = errno;

    if (hb != NULL && hb->fd >= 0)
        close(hb->fd);
    free(hb);
    errno = saved;
}

int xce_heartbeat_poll(xce_heartbeat *hb)
{
    int saved = errno, came = 0;
    int64_t now = xce_boottime_ns();

    if (in_child(hb)) {
        errno = saved;
        return -EPERM;
    }
    if (hb->mute)
        return 0;
    if (hb->fd >= 0)
        came = receive(hb, now);
    else if (now >= hb->retry_at_ns)
        dial(hb, now);
    if (hb->fd >= 0)
        came |= transmit(hb, now);
    errno = saved;
    return came;
}

int xce_heartbeat_fd(const xce_heartbeat *hb)
{
    return hb->owner == getpid() ? hb->fd : -1;
}

int xce_heartbeat_next_ms(xce_heartbeat *hb)
{
    int64_t now = xce_boottime_ns(), due = now + MAX_WAIT_MS * NS_PER_MS;

    if (hb->owner == getpid() && !hb->mute) {
        if (hb->fd < 0)
            due = hb->retry_at_ns;
        else {
            due = hb->dirty ? now : hb->beat_at_ns < hb->full_at_ns ? hb->beat_at_ns : hb->full_at_ns;
            if (due < pace_at_ns(hb))
                due = pace_at_ns(hb);
            if (hb->blocked && due < now + BLOCKED_RETRY_NS)
                due = now + BLOCKED_RETRY_NS;
        }
    }
    if (hb->fenced[0] && !hb->ended && hb->own_until_ns > now && hb->own_until_ns < due)
        due = hb->own_until_ns;
    if (due <= now)
        return 0;
    if (due - now > MAX_WAIT_MS * NS_PER_MS)
        return MAX_WAIT_MS;
    return (int)((due - now + NS_PER_MS - 1) / NS_PER_MS);
}

int xce_heartbeat_connected(const xce_heartbeat *hb) { return hb->connected && hb->owner == getpid(); }
int xce_heartbeat_sent(const xce_heartbeat *hb) { return hb->fd >= 0 && hb->greeted && !hb->dirty && hb->owner == getpid(); }
int xce_heartbeat_error(const xce_heartbeat *hb) { return hb->error; }

/* ---- the interface: what the program states ------------------------------------------------------------------------ */

static int may_state(const xce_heartbeat *hb, int allowed)
{
    return hb->owner != getpid() ? -EPERM : allowed ? 0 : -EINVAL;
}

static void mark(xce_heartbeat *hb, unsigned level, int changed)
{
    if (changed || !(hb->stated & level))
        hb->dirty |= level;
    hb->stated |= level;
}

int xce_set_ready(xce_heartbeat *hb, int ready)
{
    int refused = may_state(hb, 1);

    if (refused)
        return refused;
    mark(hb, READY, hb->ready != !!ready);
    hb->ready = !!ready;
    return 0;
}

int xce_set_stopping(xce_heartbeat *hb)
{
    int refused = may_state(hb, 1);

    if (!refused)
        mark(hb, STOPPING, 0);
    return refused;
}

int xce_set_status(xce_heartbeat *hb, const char *text)
{
    int refused = may_state(hb, text != NULL);
    char clean[XCE_MAX_STATUS + 1];

    if (refused)
        return refused;
    copy_text(clean, sizeof clean, text);
    mark(hb, STATUS, strcmp(clean, hb->status) != 0);
    strcpy(hb->status, clean);
    return 0;
}

int xce_set_progress(xce_heartbeat *hb, int64_t n)
{
    int refused = may_state(hb, n >= 0);

    if (refused)
        return refused;
    mark(hb, PROGRESS, hb->progress != n);
    hb->progress = n;
    return 0;
}

int xce_set_jobs(xce_heartbeat *hb, int64_t n)
{
    int refused = may_state(hb, n >= 0);

    if (refused)
        return refused;
    mark(hb, JOBS, hb->jobs != n);
    hb->jobs = n;
    return 0;
}

int xce_state_leadership(xce_heartbeat *hb, int primary, int64_t term, int64_t valid_until_ns)
{
    int refused = may_state(hb, term >= 0 && (!primary || valid_until_ns >= 0));

    if (refused)
        return refused;
    primary = !!primary;
    valid_until_ns = primary ? valid_until_ns : 0;
    mark(hb, LEADERSHIP, hb->primary != primary || hb->term != term || hb->valid_until_ns != valid_until_ns);
    hb->primary = primary;
    hb->term = term;
    hb->valid_until_ns = valid_until_ns;
    return 0;
}

int xce_state_host(xce_heartbeat *hb, enum xce_host state, int64_t epoch, int64_t drain_deadline_ns)
{
    int known = (int)state >= XCE_HOST_ACTIVE && (int)state <= XCE_HOST_DECOMMISSIONED;
    int refused = may_state(hb, known && epoch >= 0 && drain_deadline_ns >= 0);

    if (refused)
        return refused;
    mark(hb, HOST, hb->host != state || hb->epoch != epoch || hb->drain_deadline_ns != drain_deadline_ns);
    hb->host = state;
    hb->epoch = epoch;
    hb->drain_deadline_ns = drain_deadline_ns;
    return 0;
}

int xce_state_lease(xce_heartbeat *hb, const char *name, int held, int64_t token, int64_t valid_until_ns)
{
    int refused = may_state(hb, is_name(name) && token >= 0 && (!held || valid_until_ns >= 0));
    int i;
    struct lease *lease;

    if (refused)
        return refused;
    held = !!held;
    valid_until_ns = held ? valid_until_ns : 0;
    for (i = 0; i < hb->lease_count; i++)
        if (strcmp(hb->leases[i].name, name) == 0)
            break;
    if (i == XCE_MAX_LEASES)
        return -ENOSPC;
    lease = &hb->leases[i];
    if (i == hb->lease_count) {
        hb->lease_count++;
        strcpy(lease->name, name);
    } else if (lease->held == held && lease->token == token && lease->valid_until_ns == valid_until_ns) {
        return 0;
    }
    lease->held = held;
    lease->token = token;
    lease->valid_until_ns = valid_until_ns;
    lease->dirty = 1;
    mark(hb, LEASES, 1);
    return 0;
}

/* ---- the interface: what the agent said ---------------------------------------------------------------------------- */

int xce_directives(const xce_heartbeat *hb, struct xce_directives *out)
{
    *out = hb->directives;
    return hb->heard;
}

int xce_fact(const xce_heartbeat *hb, const char *name, struct xce_fact *out)
{
    struct slice wanted = {name, strlen(name)};
    const struct fact *fact = fact_named(hb, wanted);

    out->value = -1;
    out->term = out->valid_until_ns = -1;
    if (fact == NULL)
        return 0;
    out->term = fact->term;
    out->valid_until_ns = fact->valid_until_ns;
    out->value = fact->value;
    if (fact->value == 1 && fact->valid_until_ns >= 0 && xce_boottime_ns() >= fact->valid_until_ns)
        out->value = -1;
    return 1;
}

int xce_component(const xce_heartbeat *hb, const char *name, struct xce_component *out)
{
    struct slice wanted = {name, strlen(name)};
    const struct component *component = component_named(hb, wanted);

    out->state = XCE_UNKNOWN;
    out->restarts = out->expected_back_ms = -1;
    if (component == NULL)
        return 0;
    out->state = component->state;
    out->restarts = component->restarts;
    out->expected_back_ms = component->expected_back_ms;
    return 1;
}

const char *xce_node(const xce_heartbeat *hb) { return hb->node; }
const char *xce_instance_id(const xce_heartbeat *hb) { return hb->instance_id; }
const char *xce_boot_id(const xce_heartbeat *hb) { return hb->boot_id; }
const char *xce_roles(const xce_heartbeat *hb) { return hb->roles; }
int64_t xce_rejoin_budget_ms(const xce_heartbeat *hb) { return hb->rejoin_budget_ms; }

/* ---- the interface: the fence --------------------------------------------------------------------------------------- */

int xce_fence(xce_heartbeat *hb, const char *fact)
{
    int64_t term = number_of(getenv("XCE_TERM")), until = number_of(getenv("XCE_LEASE_VALID_UNTIL_NS"));
    int refused = may_state(hb, fact != NULL && *fact != '\0' && strlen(fact) <= MAX_FACT_NAME);

    if (refused)
        return refused;
    if (term < 0 || until < 0)
        return -ENOENT;
    strcpy(hb->fenced, fact);
    hb->own_term = term;
    hb->own_until_ns = until;
    hb->ended = 0;
    heed_fence(hb);
    return 0;
}

int xce_lease_valid(const xce_heartbeat *hb)
{
    return hb->fenced[0] && !hb->ended && hb->owner == getpid() && xce_boottime_ns() < hb->own_until_ns;
}

int64_t xce_lease_term(const xce_heartbeat *hb) { return hb->own_term; }
int64_t xce_lease_valid_until_ns(const xce_heartbeat *hb) { return hb->own_until_ns; }
