/*
 * The reader of the agent's records against anything: usage: fuzz VECTORS SECONDS SEED
 *
 * Mutates the records of the test vectors, in sequences that share one handle, for so long; equal seeds give equal
 * inputs. Built with sanitizers, and with invariants checked after each record. With -DLIBFUZZER it is a target for
 * clang's -fsanitize=fuzzer instead, without a main of its own.
 */
#include "xce.c"

#ifndef LIBFUZZER
#include "vectorfile.h"
#endif

static void invariants(const xce_heartbeat *hb)
{
    int i;

    if (hb->fact_count > XCE_MAX_FACTS || hb->component_count > XCE_MAX_COMPONENTS || hb->filling > hb->filling_count)
        abort();
    for (i = 0; i < hb->fact_count; i++)
        if (strnlen(hb->facts[i].name, sizeof hb->facts[i].name) > MAX_FACT_NAME || hb->facts[i].term < -1
            || hb->facts[i].valid_until_ns < -1)
            abort();
    for (i = 0; i < hb->component_count; i++)
        if (strnlen(hb->components[i].name, sizeof hb->components[i].name) > XCE_MAX_NAME
            || hb->components[i].state > XCE_FAILED || hb->components[i].restarts < -1)
            abort();
    if (hb->directives.epoch < 0 || hb->directives.drain_deadline_ns < 0 || hb->own_until_ns < -1)
        abort();
}

/* A refused record changes nothing; an accepted one is accepted again. The bytes are in a block of exactly that size. */
static void feed(xce_heartbeat *hb, const unsigned char *bytes, size_t n)
{
    static xce_heartbeat before;
    char *record = malloc(n ? n : 1);
    int taken;

    if (record == NULL)
        exit(2);
    memcpy(record, bytes, n);
    before = *hb;
    taken = take(hb, record, n) == 0;
    invariants(hb);
    if (taken && take(hb, record, n) != 0)
        abort();
    memcpy(before.pairs, hb->pairs, sizeof before.pairs); /* scratch */
    if (!taken && memcmp(&before, hb, sizeof before) != 0)
        abort();
    free(record);
}

static xce_heartbeat *handle(void)
{
    xce_heartbeat *hb = xce_heartbeat_open("c", 1000, NULL);

    setenv("XCE_TERM", "17", 1);
    setenv("XCE_LEASE_VALID_UNTIL_NS", "5", 1);
    if (hb == NULL || xce_fence(hb, "controller.primary") != 0)
        exit(2);
    return hb;
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n)
{
    xce_heartbeat *hb = handle();
    const unsigned char *end = bytes + n, *stop;

    for (; bytes < end; bytes = stop < end ? stop + 1 : end) { /* a zero byte parts records */
        stop = memchr(bytes, 0, (size_t)(end - bytes));
        stop = stop ? stop : end;
        feed(hb, bytes, (size_t)(stop - bytes));
    }
    xce_heartbeat_close(hb);
    return 0;
}
#else

#define CORPUS 256
#define SEQUENCE 64

static struct {
    unsigned char bytes[VECTOR_BYTES];
    size_t n;
} corpus[CORPUS];
static int corpus_count;
static uint64_t state;

static uint64_t chance(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* Change the record a little; returns its new length. */
static size_t mutate(unsigned char *at, size_t n)
{
    static const char *const words[] = {"=", "\n", ".", "PART=1/2\n", "PART=2/2\n", "FULL=1\n", "FACT.controller.primary=",
        "FACT.a.TERM=", "COMPONENT.a=", ".EXPECTED_BACK_MS=", "9223372036854775807", "9223372036854775808", "\xf0\x9f\x98\x80",
        "\xed\xa0\x80", "XCE_HEARTBEAT=1\n", "DRAIN=1\n", "EPOCH=", "true", "running"};
    size_t from, count;
    const char *word;

    switch (chance(6)) {
    case 0: /* a bit */
        if (n)
            at[chance(n)] ^= (unsigned char)(1u << chance(8));
        return n;
    case 1: /* a byte */
        if (n)
            at[chance(n)] = (unsigned char)chance(256);
        return n;
    case 2: /* cut out */
        from = chance(n + 1);
        count = chance(n - from + 1);
        memmove(at + from, at + from + count, n - from - count);
        return n - count;
    case 3: /* double a piece */
        from = chance(n + 1);
        count = chance(n - from + 1);
        if (n + count > VECTOR_BYTES)
            return n;
        memmove(at + from + count, at + from, n - from);
        return n + count;
    case 4: /* put a word in */
        word = words[chance(sizeof words / sizeof *words)];
        from = chance(n + 1);
        count = strlen(word);
        if (n + count > VECTOR_BYTES)
            return n;
        memmove(at + from + count, at + from, n - from);
        memcpy(at + from, word, count);
        return n + count;
    default: /* join another */
        from = chance((uint64_t)corpus_count);
        count = corpus[from].n;
        if (n + count > VECTOR_BYTES)
            return n;
        memcpy(at + n, corpus[from].bytes, count);
        return n + count;
    }
}

static void load(const char *path)
{
    static struct vector vector;
    struct vectors from;
    int i;

    for (vector_open(&from, path); vector_next(&from, &vector);)
        for (i = 0; i < vector.count && corpus_count < CORPUS; i++) {
            memcpy(corpus[corpus_count].bytes, vector.records[i], vector.sizes[i]);
            corpus[corpus_count++].n = vector.sizes[i];
        }
}

int main(int argc, char **argv)
{
    static unsigned char record[VECTOR_BYTES];
    unsigned long long records = 0;
    time_t end;

    if (argc != 4) {
        fprintf(stderr, "usage: fuzz VECTORS SECONDS SEED\n");
        return 2;
    }
    load(argv[1]);
    state = strtoull(argv[3], NULL, 10) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (end = time(NULL) + strtol(argv[2], NULL, 10); time(NULL) < end;) {
        xce_heartbeat *hb = handle();
        int i;

        for (i = 0; i < SEQUENCE; i++, records++) {
            uint64_t which = chance((uint64_t)corpus_count), changes = chance(5);
            size_t n = corpus[which].n;

            memcpy(record, corpus[which].bytes, n);
            while (changes-- > 0)
                n = mutate(record, n);
            feed(hb, record, n);
        }
        xce_heartbeat_close(hb);
    }
    printf("%llu records, seed %s\n", records, argv[3]);
    return 0;
}
#endif
