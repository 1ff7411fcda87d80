/*
 * The lease in etcd against any answers: usage: fuzzlease SECONDS SEED
 *
 * Takes the place of httpcall.c: each request gets an answer of etcd's, mutated or not, that the kind of request or
 * another one would get. Built with sanitizers, and with what must hold checked after each question; equal seeds give
 * equal answers.
 */
#include "etcdlease.c"

#include <stdlib.h>
#include <time.h>

#define MAX_ANSWER 4096

/* "R" stands for a record in base64, "N" for the next revision, "S" for the last. */
static const char *const answers[] = {
    "{\"header\":{\"revision\":\"S\"},\"succeeded\":true,\"responses\":[{\"response_range\":{\"header\":{\"revision\":\"S\"}}},"
    "{\"response_range\":{\"kvs\":[{\"mod_revision\":\"S\",\"value\":\"YQ==\"}]}}]}",
    "{\"header\":{\"cluster_id\":\"1\",\"member_id\":\"2\",\"revision\":\"S\",\"raft_term\":\"2\"},\"succeeded\":true,\"responses\":["
    "{\"response_range\":{\"kvs\":[{\"key\":\"L3g=\",\"create_revision\":\"3\",\"mod_revision\":\"S\",\"version\":\"2\",\"value\":\"R\","
    "\"lease\":\"99\"}],\"count\":\"1\"}},{\"response_range\":{\"kvs\":[{\"mod_revision\":\"S\",\"value\":\"YQ==\"}],\"count\":\"1\"}}]}",
    "{\"header\":{\"revision\":\"S\"},\"ID\":\"7587849\",\"TTL\":\"4\"}",
    "{\"header\":{\"revision\":\"N\"},\"succeeded\":true,\"responses\":[{\"response_put\":{\"header\":{\"revision\":\"S\"}}}]}",
    "{\"header\":{\"revision\":\"N\"},\"responses\":[{\"response_range\":{\"kvs\":[{\"mod_revision\":\"S\",\"value\":\"R\"}]}},"
    "{\"response_range\":{\"kvs\":[{\"mod_revision\":\"S\",\"value\":\"YQ==\"}]}}]}",
    "{\"error\":\"etcdserver: mvcc: database space exceeded\",\"message\":\"etcdserver: no leader\",\"code\":8}",
    "{}",
};
#define ANSWERS (sizeof answers / sizeof *answers)
static const char *const records[] = {"{\"holder\": \"a\", \"identity\": \"mine\", \"lease_ms\": 4000}",
    "{\"holder\": \"b\", \"identity\": \"another\", \"lease_ms\": 4000}",
    "{\"holder\": \"b\", \"identity\": \"\\u00e9\", \"lease_ms\": 1.5}"};

static int64_t clock_ns = INT64_C(1000000000000);
static uint64_t random_state;
static char request_body[HTTP_MAX_REQUEST];
static char *bytes;
static struct etcdlease lease;

int64_t xce_boottime_ns(void) { return clock_ns; }

static uint64_t chance(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

/* ---- in place of httpcall.c ----------------------------------------------------------------------------------------- */

int http_address_read(struct http_address *address, const char *text, size_t n)
{
    memcpy(address->name, text, n < sizeof address->name ? n : 0);
    return 1;
}

void httpcall_begin(struct httpcall *call, const struct http_address *address, const char *path, const char *body,
                    int64_t deadline_ns)
{
    struct json whole;

    (void)address;
    if (strncmp(path, "/v3/", 4) != 0 || deadline_ns <= clock_ns || !json_read(body, strlen(body), &whole))
        abort();
    strcpy(request_body, body);
    call->fd = 0;
}

void httpcall_close(struct httpcall *call) { call->fd = -1; }

int httpcall_fd(const struct httpcall *call, short *events)
{
    *events = 0;
    return call->fd;
}

/* Put a word over, into or out of the text; returns its new length. */
static size_t mutate(char *text, size_t n)
{
    static const char *const words[] = {"\"", "{", "}", "[", "]", ",", ":", "null", "true", "0", "-1",
        "9007199254740993", "\\u0000", "\\",
        "\"kvs\":", "\"mod_revision\":\"3\"", "\"succeeded\":true", "\"revision\":\"0\"",
        "\"TTL\":\"9007199254740992\"", "\xff", "=", "\"ID\":\"0\""};
    const char *word = words[chance(sizeof words / sizeof *words)];
    size_t length = strlen(word), from = chance(n + 1), cut = chance(4) ? 0 : chance(n - from + 1);

    if (cut < n - from && chance(3) == 0)
        cut += length < n - from - cut ? length : n - from - cut;
    if (n - cut + length > MAX_ANSWER)
        return n;
    memmove(text + from + length, text + from + cut, n - from - cut);
    memcpy(text + from, word, length);
    return n - cut + length;
}

/* One of the answers, most often one that fits the request. */
static size_t compose(char *text)
{
    static long long revision;
    int writes = lease.step == ETCD_BIND || lease.step == ETCD_DELETE;
    const char *at = answers[lease.step == ETCD_GRANT ? 2 : (writes ? 3 : 0) + chance(2)];
    uint64_t changes = chance(2) ? chance(4) : 0;
    size_t n = 0;

    if (chance(8) == 0)
        at = answers[chance(ANSWERS)];
    for (; *at; at++) {
        if (at[0] == '"' && at[1] != '\0' && at[2] == '"' && strchr("RNS", at[1]) != NULL) {
            text[n++] = '"';
            if (at[1] == 'R')
                base64_encode(text + n, records[chance(3)]);
            else
                sprintf(text + n, "%lld", at[1] == 'N' ? ++revision : revision);
            n += strlen(text + n);
            at += 2;
        }
        text[n++] = *at;
    }
    while (changes-- > 0)
        n = mutate(text, n);
    return n;
}

enum http_end httpcall_go_on(struct httpcall *call)
{
    static char text[MAX_ANSWER + 1];
    size_t n;

    if (chance(8) == 0)
        return HTTP_PENDING;
    call->fd = -1;
    if (chance(16) == 0) {
        strcpy(call->trouble, "no answer in time");
        return HTTP_FAILED;
    }
    n = compose(text);
    free(bytes);
    bytes = malloc(n ? n : 1);
    if (bytes == NULL)
        exit(2);
    memcpy(bytes, text, n);
    call->answer.status = chance(16) ? HTTP_OK : (int)chance(1000);
    call->answer.body = bytes;
    call->answer.n = n;
    return HTTP_ANSWERED;
}

/* ---- questions, and what must hold ---------------------------------------------------------------------------------- */

static void ask_it(int64_t length_ns)
{
    int64_t before = lease.highest, asked_ns = clock_ns, began_ns = clock_ns;
    enum lease_answer found = LEASE_PENDING;
    uint64_t which = chance(8), tries;

    if (which == 0)
        lease.base.kind->look(&lease.base);
    else if (which == 1)
        lease.base.kind->release(&lease.base, lease.base.term);
    else
        lease.base.kind->acquire(&lease.base, length_ns, chance(4) == 0);
    for (tries = 1 + chance(6); tries > 0 && found == LEASE_PENDING; tries--) {
        clock_ns += (int64_t)chance(1000000000);
        found = lease.base.kind->answer(&lease.base);
        began_ns = lease.before_ns;
    }
    if (lease.highest < before || lease.highest > LEASE_MAX_TERM || lease.endpoint < 0 || lease.endpoint >= lease.endpoint_count)
        abort();
    if (found == LEASE_PENDING)
        return; /* the next question takes its place */
    if (lease.step != ETCD_IDLE || lease.base.kind->answer(&lease.base) != LEASE_PENDING)
        abort();
    if (found == LEASE_HELD
        && (which < 2 || lease.base.term < 1 || lease.base.term < before || began_ns < asked_ns || began_ns > clock_ns
            || lease.base.valid_until_ns > began_ns + length_ns || !lease.ours.known || lease.ours.revision < lease.ours.term))
        abort();
    if (found != LEASE_HELD && found != LEASE_UNKNOWN && lease.base.term < before)
        abort();
    if (found == LEASE_UNKNOWN && lease.base.trouble[0] == '\0')
        abort();
}

int main(int argc, char **argv)
{
    unsigned long long questions = 0;
    time_t end;

    if (argc != 3) {
        fprintf(stderr, "usage: fuzzlease SECONDS SEED\n");
        return 2;
    }
    random_state = strtoull(argv[2], NULL, 10) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (end = time(NULL) + strtol(argv[1], NULL, 10); time(NULL) < end;) {
        int i;

        if (etcdlease_open(&lease, "a,b,c", "/x", "a", "mine", INT64_C(4000000000)) != 0)
            return 2;
        for (i = 0; i < 32; i++, questions++)
            ask_it((int64_t)chance(4) * 1500000000 + 1);
        etcdlease_close(&lease);
    }
    free(bytes);
    printf("%llu questions, seed %s\n", questions, argv[2]);
    return 0;
}
