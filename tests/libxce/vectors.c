/* The shared test vectors against xce.c: what it takes in, what it refuses, what it sends. */
#include "xce.c"

#include "vectorfile.h"

static int failures;
static struct vector vector;

static void expect(int holds, const char *what)
{
    if (!holds) {
        failures++;
        printf("FAILED: %s: %s\n", vector.name, what);
    }
}

static const char *expected(const char *key)
{
    int i;

    for (i = 0; i < vector.expected; i++)
        if (strcmp(vector.keys[i], key) == 0)
            return vector.values[i];
    return NULL;
}

static int64_t number_or(const char *text, int64_t otherwise)
{
    return text == NULL || strcmp(text, "-") == 0 ? otherwise : (int64_t)strtoll(text, NULL, 10);
}

/* ---- any: the grammar -------------------------------------------------------------------------------------------- */

static void check_key(const struct pair *pair)
{
    char key[MAX_KEY + 1];
    const char *value;

    copy(key, sizeof key, pair->key);
    value = expected(key);
    expect(value != NULL, "a key that is not expected");
    expect(value != NULL && equals(pair->value, value), "another value");
}

static void any(void)
{
    static struct pair pairs[MAX_KEYS];
    int count = parse(vector.records[0], vector.sizes[0], pairs), part = 1, parts = 1, whole = count >= 0, i;

    for (i = 0; i < count; i++)
        if (equals(pairs[i].key, "PART"))
            whole = part_in(pairs[i].value, &part, &parts);
    expect(whole == !vector.malformed, vector.malformed ? "it was taken" : "it was refused");
    if (!whole)
        return;
    if (expected("KEYS")) {
        expect(count == number_or(expected("KEYS"), 0), "another number of keys");
    } else if (expected("SIZE")) {
        expect(count == 1 && pairs[0].value.n == (size_t)number_or(expected("SIZE"), 0), "a value of another size");
    } else {
        expect(count == vector.expected, "another number of keys");
        for (i = 0; i < count; i++)
            check_key(&pairs[i]);
    }
}

/* ---- component: what is sent ------------------------------------------------------------------------------------- */

static void state_lease(xce_heartbeat *hb, const char *text)
{
    char name[64], word[16], token[24], until[24];

    expect(sscanf(text, "%63s %15s %23s %23s", name, word, token, until) == 4, "an expectation that cannot be read");
    expect(xce_state_lease(hb, name, strcmp(word, "held") == 0, number_or(token, -1), number_or(until, -1)) == 0, "refused");
}

static void state(xce_heartbeat *hb)
{
    static const char *const hosts[] = {"active", "draining", "drained", "decommissioned"};
    const char *text;
    int i;

    if ((text = expected("ready")) != NULL)
        expect(xce_set_ready(hb, *text == '1') == 0, "ready refused");
    if (expected("stopping"))
        expect(xce_set_stopping(hb) == 0, "stopping refused");
    if ((text = expected("status")) != NULL)
        expect(xce_set_status(hb, vector.set_status[0] ? vector.set_status : text) == 0, "status refused");
    if ((text = expected("progress")) != NULL)
        expect(xce_set_progress(hb, number_or(text, -1)) == 0, "progress refused");
    if ((text = expected("jobs")) != NULL)
        expect(xce_set_jobs(hb, number_or(text, -1)) == 0, "jobs refused");
    if ((text = expected("leadership")) != NULL)
        expect(xce_state_leadership(hb, strcmp(text, "primary") == 0, number_or(expected("term"), -1),
                                    number_or(expected("valid_until_ns"), -1)) == 0, "leadership refused");
    if ((text = expected("host_state")) != NULL)
        for (i = 0; i < 4; i++)
            if (strcmp(text, hosts[i]) == 0)
                expect(xce_state_host(hb, (enum xce_host)i, number_or(expected("epoch"), -1),
                                      number_or(expected("drain_deadline_ns"), 0)) == 0, "host state refused");
    for (i = 0; i < vector.expected; i++)
        if (strcmp(vector.keys[i], "lease") == 0)
            state_lease(hb, vector.values[i]);
}

static void sends(void)
{
    xce_heartbeat *hb = xce_heartbeat_open(expected("component"), (unsigned)number_or(expected("interval_ms"), 0),
                                           expected("template"));
    size_t n;

    expect(hb != NULL, "not opened");
    if (hb == NULL)
        return;
    strcpy(hb->component, expected("component")); /* it is mute for want of a socket */
    state(hb);
    n = render(hb, 1, hb->stated, 1);
    expect(n == vector.sizes[0] && memcmp(hb->buffer, vector.records[0], n) == 0, "it sends another record");
    xce_heartbeat_close(hb);
}

/* ---- agent: what is taken in ------------------------------------------------------------------------------------- */

static void describe(char *out, size_t size, int64_t n)
{
    if (n < 0)
        snprintf(out, size, "-");
    else
        snprintf(out, size, "%lld", (long long)n);
}

static void check_facts(const xce_heartbeat *hb, int *seen)
{
    char text[256], term[24], until[24];
    int i, j, found;

    for (i = 0; i < hb->fact_count; i++) {
        const struct fact *fact = &hb->facts[i];

        describe(term, sizeof term, fact->term);
        describe(until, sizeof until, fact->valid_until_ns);
        snprintf(text, sizeof text, "%s %s %s %s", fact->name, fact->value == 1 ? "true" : fact->value == 0 ? "false" : "unknown",
                 term, until);
        for (found = j = 0; j < vector.expected; j++)
            found |= strcmp(vector.keys[j], "fact") == 0 && strcmp(vector.values[j], text) == 0;
        expect(found, text);
        *seen += found;
    }
}

static void check_components(const xce_heartbeat *hb, int *seen)
{
    static const char *const words[] = {"unknown", "stopped", "starting", "running", "stopping", "killing", "backoff", "exited", "failed"};
    char text[256], restarts[24], back[24];
    struct xce_component is;
    int i, j, found;

    for (i = 0; i < hb->component_count; i++) {
        expect(xce_component(hb, hb->components[i].name, &is) == 1, "a component that is there and is not");
        describe(restarts, sizeof restarts, is.restarts);
        describe(back, sizeof back, is.expected_back_ms);
        snprintf(text, sizeof text, "%s %s %s %s", hb->components[i].name, words[is.state], restarts, back);
        for (found = j = 0; j < vector.expected; j++)
            found |= strcmp(vector.keys[j], "component") == 0 && strcmp(vector.values[j], text) == 0;
        expect(found, text);
        *seen += found;
    }
}

static void check_text(const char *key, const char *is, int *seen)
{
    const char *wanted = expected(key);

    expect(strcmp(wanted ? wanted : "", is) == 0, key);
    *seen += wanted != NULL;
}

static void check_number(const char *key, int64_t is, int64_t otherwise, int *seen)
{
    const char *wanted = expected(key);

    expect(number_or(wanted, otherwise) == is, key);
    *seen += wanted != NULL;
}

static void agent(void)
{
    xce_heartbeat *hb = xce_heartbeat_open("c", 1000, NULL);
    struct xce_directives said;
    int i, seen = 0;

    if (hb == NULL)
        exit(2);
    for (i = 0; i < vector.count; i++) {
        int last = i == vector.count - 1;
        int taken = take(hb, vector.records[i], vector.sizes[i]) == 0;

        expect(taken == !(last && vector.malformed), taken ? "it was taken" : "it was refused");
    }
    xce_directives(hb, &said);
    check_number("drain", said.drain, 0, &seen);
    check_number("drain_deadline_ns", said.drain_deadline_ns, 0, &seen);
    check_number("undrain", said.undrain, 0, &seen);
    check_number("epoch", said.epoch, 0, &seen);
    check_number("decommissioned", said.decommissioned, 0, &seen);
    check_number("seen_epoch", said.seen_epoch, 0, &seen);
    check_number("node_stopping", said.node_stopping, 0, &seen);
    check_number("rejoin_budget_ms", xce_rejoin_budget_ms(hb), -1, &seen);
    check_text("node", xce_node(hb), &seen);
    check_text("instance_id", xce_instance_id(hb), &seen);
    check_text("boot_id", xce_boot_id(hb), &seen);
    check_text("roles", xce_roles(hb), &seen);
    check_facts(hb, &seen);
    check_components(hb, &seen);
    expect(seen == vector.expected, "something that was expected is not there");
    xce_heartbeat_close(hb);
}

int main(int argc, char **argv)
{
    struct vectors from;
    int cases = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: vectors FILE\n");
        return 2;
    }
    for (vector_open(&from, argv[1]); vector_next(&from, &vector); cases++) {
        if (strcmp(vector.from, "any") == 0)
            any();
        else if (strcmp(vector.from, "agent") == 0)
            agent();
        else if (vector.sends)
            sends();
    }
    printf("%d cases, %d failures\n", cases, failures);
    return failures != 0;
}
