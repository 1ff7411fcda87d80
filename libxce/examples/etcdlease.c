/* See etcdlease.h. */
#define _POSIX_C_SOURCE 200809L

#include "etcdlease.h"

#include "base64.h"
#include "json.h"
#include "slot.h"
#include "xce.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
#define TIMEOUTS_PER_LEASE 8 /* so that a renewal has time for each of three members */
#define MAX_TIMEOUT_NS (2 * NS_PER_S)
#define HTTP_OK 200
#define MAX_QUOTED 160 /* bytes of the server's own words that an error repeats */

/* Bodies of requests. A request is below HTTP_MAX_REQUEST: the fields that go into it have their sizes. */
#define RANGES "[{\"request_range\":{\"key\":\"%s\"}},{\"request_range\":{\"key\":\"%s\"}}]"
#define COMPARE "[{\"target\":\"MOD\",\"result\":\"EQUAL\",\"key\":\"%s\",\"mod_revision\":\"%lld\"}]"
#define PUT "{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\",\"lease\":\"%lld\"}}"

/* ---- requests ----------------------------------------------------------------------------------------------------- */

static struct etcdlease *of(struct lease *lease) { return (struct etcdlease *)lease; }

static void request(struct etcdlease *e, enum etcd_step step, const char *path, const char *body)
{
    e->step = step;
    httpcall_begin(&e->call, &e->endpoints[e->endpoint], path, body, xce_boottime_ns() + e->timeout_ns);
}

static void request_both(struct etcdlease *e, enum etcd_step step)
{
    char body[HTTP_MAX_REQUEST];

    snprintf(body, sizeof body, "{\"success\":" RANGES "}", e->record_key, e->term_key);
    request(e, step, "/v3/kv/txn", body);
}

static void request_grant(struct etcdlease *e)
{
    char body[64];

    e->goes_on = e->seen.mine && e->seen.term > 0 && !e->new_term;
    e->before_ns = xce_boottime_ns(); /* whatever happens from here on can only shorten the lease */
    snprintf(body, sizeof body, "{\"TTL\":\"%lld\"}", (long long)((e->length_ns + NS_PER_S - 1) / NS_PER_S));
    request(e, ETCD_GRANT, "/v3/lease/grant", body);
}

/* Write where the record is still of the revision that was seen (0: is not there); tell the two keys where it is not. */
static void request_write(struct etcdlease *e, enum etcd_step step, const char *writes)
{
    char body[HTTP_MAX_REQUEST];

    snprintf(body, sizeof body, "{\"compare\":" COMPARE ",\"success\":[%s],\"failure\":" RANGES "}", e->record_key,
             (long long)e->seen.revision, writes, e->record_key, e->term_key);
    request(e, step, "/v3/kv/txn", body);
}

static void request_bind(struct etcdlease *e)
{
    char writes[HTTP_MAX_REQUEST / 2];
    int n = snprintf(writes, sizeof writes, PUT, e->record_key, e->record, (long long)e->lease_id);

    if (!e->goes_on)
        snprintf(writes + n, sizeof writes - (size_t)n, "," PUT, e->term_key, e->holder, 0LL);
    request_write(e, ETCD_BIND, writes);
}

static void request_delete(struct etcdlease *e)
{
    char writes[HTTP_MAX_REQUEST / 2];

    snprintf(writes, sizeof writes, "{\"request_delete_range\":{\"key\":\"%s\"}}", e->record_key);
    request_write(e, ETCD_DELETE, writes);
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static void answer_with(struct etcdlease *e, enum lease_answer answer, int64_t term, int64_t valid_until_ns)
{
    e->step = ETCD_IDLE;
    e->answer = answer;
    e->base.term = term;
    e->base.valid_until_ns = valid_until_ns;
    e->base.trouble[0] = '\0';
}

static void answer_unknown(struct etcdlease *e, const char *why)
{
    e->step = ETCD_IDLE;
    e->answer = LEASE_UNKNOWN;
    snprintf(e->base.trouble, sizeof e->base.trouble, "%s", why);
}

/* Nothing is known, and the next question goes to the next member. */
static void fail(struct etcdlease *e, const char *why)
{
    char text[sizeof e->base.trouble];

    snprintf(text, sizeof text, "cannot use etcd at %s: %s", e->endpoints[e->endpoint].name, why);
    answer_unknown(e, text);
    e->endpoint = (e->endpoint + 1) % e->endpoint_count;
}

/* A number of the gateway: text, and absent where it is 0. -1: it is none, or more than a term can be. */
static int64_t number_of(struct json fields, const char *name)
{
    struct json value = json_member(fields, name);
    int64_t n = value.at == NULL ? 0 : json_number(value, 1);

    return n <= LEASE_MAX_TERM ? n : -1;
}

/* What stands in the store under the record's key, whatever it is. One that cannot be read is somebody's. */
static void read_record(struct etcdlease *e, long n, struct etcd_seen *seen)
{
    char identity[ETCD_MAX_IDENTITY], ignored[1];
    struct json record;
    long length;
    int64_t lease_ms;

    seen->there = 1;
    if (!json_read(e->value, (size_t)n, &record))
        return;
    length = json_string(json_member(record, "holder"), ignored, sizeof ignored);
    if (length < 1 || length > ETCD_MAX_HOLDER)
        return;
    length = json_string(json_member(record, "identity"), identity, sizeof identity);
    if (length < 0)
        return;
    seen->mine = length == (long)strlen(e->identity) && strcmp(identity, e->identity) == 0;
    lease_ms = json_number(json_member(record, "lease_ms"), 0);
    if (lease_ms > 0 && lease_ms <= LEASE_MAX_TERM / NS_PER_MS)
        seen->lease_ns = lease_ms * NS_PER_MS;
}

/* The last writing of the only key of a range; 0: the key is not there, -1: it is no answer to a range. */
static int64_t read_range(struct json responses, size_t index, struct json *value)
{
    struct json range = json_member(json_element(responses, index), "response_range");
    struct json keys = json_member(range, "kvs"), key = json_element(keys, 0);
    int64_t revision;

    value->at = value->end = NULL;
    if (!json_is_object(range) || (keys.at != NULL && !json_is_array(keys)) || (key.at != NULL && !json_is_object(key)))
        return -1;
    if (key.at == NULL)
        return 0;
    *value = json_member(key, "value");
    revision = number_of(key, "mod_revision");
    return revision > 0 ? revision : -1;
}

/*
 * The answer to the two ranges; 0: it is none, or this cannot be the store that was asked before, and the question has
 * failed. A store whose term went back may give a term, or a lease, a second time.
 */
static int see(struct etcdlease *e, struct json body)
{
    struct json responses = json_member(body, "responses"), value, ignored;
    struct etcd_seen seen = {0};
    long n = 0;

    seen.known = 1;
    seen.revision = read_range(responses, 0, &value);
    seen.term = read_range(responses, 1, &ignored);
    if (seen.revision < 0 || seen.term < 0 || json_element(responses, 2).at != NULL) {
        fail(e, "cannot understand its answer");
        return 0;
    }
    if (seen.revision > 0) {
        e->value[0] = '\0';
        if (value.at != NULL && json_string(value, e->value, sizeof e->value) < 0)
            n = -1;
        else
            n = base64_decode(e->value);
        if (n < 0) {
            fail(e, "cannot understand its answer: the value is not base64");
            return 0;
        }
        read_record(e, n, &seen);
    }
    if (seen.term < e->highest) {
        char why[160];

        snprintf(why, sizeof why, "its term is %lld and was %lld: was it restored from a backup, or is it another one?",
                 (long long)seen.term, (long long)e->highest);
        fail(e, why);
        return 0;
    }
    e->highest = seen.term;
    if (seen.revision != e->watched_revision) {
        e->watched_revision = seen.revision;
        e->watched_since_ns = xce_boottime_ns();
    }
    e->seen = seen;
    return 1;
}

/* When the holder of the record that was seen last cannot have the lease any more. */
static int64_t over_ns(const struct etcdlease *e)
{
    int64_t length_ns = e->seen.lease_ns > e->lease_ns ? e->seen.lease_ns : e->lease_ns;

    if (e->seen.lease_ns == 0 || length_ns > LEASE_NEVER_NS / 2 - e->watched_since_ns)
        return LEASE_NEVER_NS;
    return e->watched_since_ns + length_ns + length_ns / LEASE_RATE_MARGIN_DIVISOR;
}

static int is_anothers(const struct etcdlease *e)
{
    return e->seen.there && !e->seen.mine && xce_boottime_ns() < over_ns(e);
}

static void answer_with_view(struct etcdlease *e)
{
    if (e->seen.there)
        answer_with(e, LEASE_TAKEN, e->seen.term, over_ns(e));
    else
        answer_with(e, LEASE_FREE, e->seen.term, 0);
}

/* The record was not what the transaction said: what is it? */
static void answer_lost(struct etcdlease *e, struct json body)
{
    int binding = e->step == ETCD_BIND;

    if (!see(e, body))
        return;
    if (binding && e->seen.mine)
        answer_unknown(e, "an earlier request of ours was carried out meanwhile: asking again");
    else
        answer_with_view(e);
}

static void take_grant(struct etcdlease *e, struct json body)
{
    int64_t ttl_s = number_of(body, "TTL");

    e->lease_id = json_number(json_member(body, "ID"), 1);
    if (e->lease_id < 1 || ttl_s < 0) {
        fail(e, "cannot understand its answer: no lease in it");
        return;
    }
    if (ttl_s < e->length_ns / NS_PER_S + 1 && ttl_s * NS_PER_S < e->length_ns)
        e->length_ns = ttl_s * NS_PER_S;
    request_bind(e);
}

static void take_bind(struct etcdlease *e, struct json body)
{
    int64_t revision = number_of(json_member(body, "header"), "revision");

    if (!json_is_true(json_member(body, "succeeded"))) {
        answer_lost(e, body);
        return;
    }
    if (revision <= e->highest) { /* or it has none */
        fail(e, "cannot understand its answer: its revision is not above the last term");
        return;
    }
    e->ours.known = e->ours.there = e->ours.mine = 1;
    e->ours.revision = revision;
    e->ours.term = e->goes_on ? e->seen.term : revision;
    e->highest = e->ours.term;
    answer_with(e, LEASE_HELD, e->ours.term, e->before_ns + e->length_ns);
}

static void take_delete(struct etcdlease *e, struct json body)
{
    if (json_is_true(json_member(body, "succeeded")))
        answer_with(e, LEASE_FREE, e->seen.term, 0);
    else
        answer_lost(e, body);
}

static void begin_delete(struct etcdlease *e)
{
    if (e->seen.mine && e->seen.term == e->release_term)
        request_delete(e);
    else
        answer_unknown(e, "the lease is not ours any more");
}

/* Take a body that came with status 200: ask the question's next request, or answer it. */
static void take(struct etcdlease *e, struct json body)
{
    switch (e->step) {
    case ETCD_LOOK:
        if (see(e, body))
            answer_with_view(e);
        break;
    case ETCD_LOOK_FIRST:
        if (!see(e, body))
            break;
        if (is_anothers(e))
            answer_with_view(e);
        else
            request_grant(e);
        break;
    case ETCD_GRANT:
        take_grant(e, body);
        break;
    case ETCD_BIND:
        take_bind(e, body);
        break;
    case ETCD_LOOK_LAST:
        if (see(e, body))
            begin_delete(e);
        break;
    case ETCD_DELETE:
        take_delete(e, body);
        break;
    case ETCD_IDLE:
        break;
    }
}

static void take_answer(struct etcdlease *e, const struct http_answer *answer)
{
    char why[MAX_QUOTED + 16], said[MAX_QUOTED];
    struct json body;
    int whole = json_read(answer->body, answer->n, &body) && json_is_object(body);

    if (answer->status == HTTP_OK && whole) {
        take(e, body);
    } else if (answer->status == HTTP_OK) {
        fail(e, "cannot understand its answer: it is no JSON object");
    } else {
        json_string(json_member(body, "message"), said, sizeof said);
        snprintf(why, sizeof why, "HTTP %d%s%s", answer->status, said[0] ? ": " : "", said);
        fail(e, why);
    }
}

/* ---- the interface ------------------------------------------------------------------------------------------------ */

static void begin(struct etcdlease *e)
{
    etcdlease_close(e);
    e->seen = e->ours;
}

static void look(struct lease *lease)
{
    begin(of(lease));
    request_both(of(lease), ETCD_LOOK);
}

static void acquire(struct lease *lease, int64_t length_ns, int new_term)
{
    struct etcdlease *e = of(lease);

    begin(e);
    e->ours.known = 0; /* until this one's outcome is known */
    e->length_ns = length_ns;
    e->new_term = new_term;
    if (e->seen.known && e->seen.term == e->highest) /* else another one's term was seen since */
        request_grant(e);
    else
        request_both(e, ETCD_LOOK_FIRST);
}

static void release(struct lease *lease, int64_t term)
{
    struct etcdlease *e = of(lease);

    begin(e);
    e->ours.known = 0;
    e->release_term = term;
    if (e->seen.known)
        begin_delete(e);
    else
        request_both(e, ETCD_LOOK_LAST);
}

static enum lease_answer answer(struct lease *lease)
{
    struct etcdlease *e = of(lease);
    enum lease_answer answered;

    while (e->step != ETCD_IDLE) {
        switch (httpcall_go_on(&e->call)) {
        case HTTP_PENDING:
            return LEASE_PENDING;
        case HTTP_ANSWERED:
            take_answer(e, &e->call.answer);
            break;
        case HTTP_FAILED:
            fail(e, e->call.trouble);
        }
    }
    answered = e->answer;
    e->answer = LEASE_PENDING;
    return answered;
}

static int descriptor(const struct lease *lease, short *events)
{
    return httpcall_fd(&((const struct etcdlease *)lease)->call, events);
}

static int64_t next_ns(const struct lease *lease)
{
    const struct etcdlease *e = (const struct etcdlease *)lease;

    if (e->step == ETCD_IDLE)
        return e->answer == LEASE_PENDING ? LEASE_NEVER_NS : 0;
    return e->call.fd < 0 ? 0 : e->call.deadline_ns;
}

static const struct lease_kind kind = {look, acquire, release, answer, descriptor, next_ns};

int etcdlease_open(struct etcdlease *e, const char *endpoints, const char *name, const char *holder, const char *identity,
                   int64_t lease_ns)
{
    char text[ETCD_MAX_HOLDER + ETCD_MAX_IDENTITY + 80];

    memset(e, 0, sizeof *e);
    e->base.kind = &kind;
    e->call.fd = -1;
    e->lease_ns = lease_ns;
    e->timeout_ns = lease_ns / TIMEOUTS_PER_LEASE < MAX_TIMEOUT_NS ? lease_ns / TIMEOUTS_PER_LEASE : MAX_TIMEOUT_NS;
    for (;; endpoints++) {
        size_t n = strcspn(endpoints, ",");

        if (e->endpoint_count == ETCD_MAX_ENDPOINTS || !http_address_read(&e->endpoints[e->endpoint_count++], endpoints, n))
            return -EINVAL;
        endpoints += n;
        if (*endpoints == '\0')
            break;
    }
    if (strlen(name) > ETCD_MAX_NAME || strlen(holder) > ETCD_MAX_HOLDER || !slot_holder_usable(holder)
        || strlen(identity) >= sizeof e->identity || !slot_holder_usable(identity))
        return -EINVAL;
    strcpy(e->identity, identity);
    base64_encode(e->record_key, name);
    snprintf(text, sizeof text, "%s/term", name);
    base64_encode(e->term_key, text);
    base64_encode(e->holder, holder);
    snprintf(text, sizeof text, "{\"holder\": \"%s\", \"identity\": \"%s\", \"lease_ms\": %lld}", holder, identity,
             (long long)(lease_ns / NS_PER_MS));
    base64_encode(e->record, text);
    return 0;
}

void etcdlease_close(struct etcdlease *e)
{
    httpcall_close(&e->call);
    e->step = ETCD_IDLE;
    e->answer = LEASE_PENDING;
}
