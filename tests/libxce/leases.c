/* What the example's leases are made of: JSON, base64, HTTP's answers, the slot, and the election, on a clock of its own. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* flock(2) */

#include "base64.h"
#include "election.h"
#include "httpcall.h"
#include "json.h"
#include "slot.h"
#include "xce.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NS_PER_MS INT64_C(1000000)

static int64_t clock_ns = 1000;
static const char *test;
static int failures;

int64_t xce_boottime_ns(void) { return clock_ns; }

static void fail(int line, const char *what)
{
    failures++;
    printf("FAILED: %s, line %d: %s\n", test, line, what);
}
#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))

/* ---- JSON --------------------------------------------------------------------------------------------------------- */

/* In a block of exactly its size, so that a sanitizer sees the first byte beyond. */
static struct json whole;
static char *block;

static int reads(const char *text, size_t n)
{
    free(block);
    block = malloc(n ? n : 1);
    memcpy(block, text, n);
    return json_read(block, n, &whole);
}

static void what_is_json(void)
{
    static const char *const yes[] = {"{}", "[]", "0", "-0", "1.5e+3", "1E5", "\"\"", " [ 1 , 2 ] ",
        "{\"a\":{\"b\":[null,true,false]}}",
        "\"\\u00e9\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\t\n\r {\"a\" : 1}", "\"\\ud800\"",
        "{\"\":1,\"\":2}"};
    static const char *const no[] = {"", " ", "{", "[", "}", "{}{}", "{}x", "[1,]", "[,1]", "[1 2]", "{\"a\"}",
        "{\"a\":}", "{\"a\":1,}",
        "{a:1}", "{1:1}", "01", "1.", ".5", "1e", "1e+", "+1", "-", "0x1", "NaN", "tru", "nul", "\"", "\"\\\"",
        "\"\\x\"", "\"\\u12\"",
        "\"\\u12g4\"", "\"a\nb\"", "'a'", "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
        "\"\xc3\"", "\"\xe2\x82\"",
        "\xef\xbb\xbf{}"};
    char deep[2 * JSON_MAX_DEPTH + 8];
    size_t i;

    test = "what is JSON";
    for (i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!reads(yes[i], strlen(yes[i])))
            fail(__LINE__, yes[i]);
    for (i = 0; i < sizeof no / sizeof *no; i++)
        if (reads(no[i], strlen(no[i])) || whole.at != NULL)
            fail(__LINE__, no[i]);
    CHECK(!reads("\"a\0b\"", 5));
    for (i = JSON_MAX_DEPTH; i <= JSON_MAX_DEPTH + 1; i++) {
        memset(deep, '[', i);
        memset(deep + i, ']', i);
        CHECK(reads(deep, 2 * i) == (i == JSON_MAX_DEPTH));
    }
}

static int is(struct json value, const char *text)
{
    char decoded[32];

    return json_string(value, decoded, sizeof decoded) >= 0 && strcmp(decoded, text) == 0;
}

static void parts_of_json(void)
{
    static const char text[] = " {\"a\" : [ 1 , {\"b\":\"x\"} , [] ] , \"c\\u0064\":\"y\", \"ab\":true, "
                               "\"a\":[2,3,\"z\"], \"t\":{}} ";

    test = "parts of JSON";
    CHECK(reads(text, sizeof text - 1));
    CHECK(json_is_object(whole) && !json_is_array(whole) && !json_is_true(whole));
    CHECK(json_is_array(json_member(whole, "a")));
    CHECK(json_number(json_element(json_member(whole, "a"), 0), 0) == 2); /* the last of a name */
    CHECK(is(json_element(json_member(whole, "a"), 2), "z"));
    CHECK(json_element(json_member(whole, "a"), 3).at == NULL);
    CHECK(json_is_true(json_member(whole, "ab")));
    CHECK(json_member(whole, "b").at == NULL && json_member(whole, "").at == NULL && json_member(whole, "abc").at == NULL);
    CHECK(json_member(json_member(whole, "a"), "a").at == NULL && json_element(whole, 0).at == NULL);
    CHECK(json_member(json_member(whole, "t"), "a").at == NULL);
    CHECK(json_member(json_member(whole, "none"), "a").at == NULL && json_element(json_member(whole, "none"), 0).at == NULL);
    CHECK(reads("[]", 2) && json_element(whole, 0).at == NULL);
    CHECK(reads("{}", 2) && json_member(whole, "a").at == NULL);
}

static void strings_of_json(void)
{
    char to[8];

    test = "strings of JSON";
    CHECK(reads("\"a\\\"\\\\\\/\\n\"", 11) && is(whole, "a\"\\/\n"));
    CHECK(reads("\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"", 32) && is(whole, "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
    CHECK(json_string(whole, to, sizeof to) == 4 && strcmp(to, "A\xc3\xa9\xe2\x82\xac") == 0); /* nothing is cut within */
    CHECK(reads("\"\xf0\x9f\x98\x80\xf0\x9f\x98\x80z\"", 11) && json_string(whole, to, sizeof to) == 3);
    CHECK(strcmp(to, "\xf0\x9f\x98\x80") == 0); /* and nothing follows what did not fit */
    CHECK(reads("\"\\ud83dx\\ude00\\u0000\\ud83d\\u0041\"", 33) && is(whole, "?x???A"));
    CHECK(reads("\"\\ud83d\"", 8) && is(whole, "?"));
    CHECK(reads("\"\"", 2) && json_string(whole, to, 1) == 0 && to[0] == '\0');
    CHECK(reads("1", 1) && json_string(whole, to, sizeof to) == -1 && to[0] == '\0');
    CHECK(json_string(json_member(whole, "a"), to, sizeof to) == -1);
}

static int64_t number(const char *text, int quoted)
{
    return reads(text, strlen(text)) ? json_number(whole, quoted) : -2;
}

static void numbers_of_json(void)
{
    test = "numbers of JSON";
    CHECK(number("0", 0) == 0 && number("17", 1) == 17);
    CHECK(number("\"17\"", 1) == 17 && number("\"17\"", 0) == -1 && number("\"\"", 1) == -1);
    CHECK(number("9223372036854775807", 0) == INT64_MAX && number("\"9223372036854775808\"", 1) == -1);
    CHECK(number("99999999999999999999", 0) == -1 && number("\"-1\"", 1) == -1 && number("-1", 1) == -1);
    CHECK(number("1.0", 1) == -1 && number("1e3", 1) == -1 && number("\"1 \"", 1) == -1 && number("true", 1) == -1);
    CHECK(json_number(json_member(whole, "a"), 1) == -1);
}

/* ---- base64 -------------------------------------------------------------------------------------------------------- */

static void base64(void)
{
    static const char *const plain[] = {"", "f", "fo", "foo", "foob", "fooba", "foobar", "\xff\xfe\xfb"};
    static const char *const coded[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy", "//77"};
    static const char *const none[] = {"Z", "Zg", "Zg=", "=", "====", "Z===", "Zm9v=", "Zm9vYg=a", "Zg==Zg==", "Zm-v",
        "Zm9\n", "Z g="};
    char text[32];
    size_t i;

    test = "base64";
    for (i = 0; i < sizeof plain / sizeof *plain; i++) {
        base64_encode(text, plain[i]);
        CHECK(strcmp(text, coded[i]) == 0);
        CHECK(base64_decode(text) == (long)strlen(plain[i]) && memcmp(text, plain[i], strlen(plain[i])) == 0);
    }
    for (i = 0; i < sizeof none / sizeof *none; i++) {
        strcpy(text, none[i]);
        if (base64_decode(text) != -1)
            fail(__LINE__, none[i]);
    }
}

/* ---- HTTP ---------------------------------------------------------------------------------------------------------- */

static int answers(const char *text, struct http_answer *out)
{
    size_t n = strlen(text);

    free(block);
    block = malloc(n ? n : 1);
    memcpy(block, text, n);
    return http_answer_read(block, n, out);
}

static void answers_of_http(void)
{
    static const char *const none[] = {"", "HTTP/1.0 200 OK\r\n", "HTTP/1.0 200 OK\r\n\r", "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n{}",
        "HTTP/1.0 20 OK\r\n\r\n{}", "HTTP/1.0 2000\r\n\r\n{}", "HTTP/1.0  200\r\n\r\n{}", "\r\n\r\n",
        "HTTP/1.0 200 OK\n\n{}",
        "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n{}", "HTTP/1.0 200 OK\r\ncontent-length:1\r\n\r\n{}",
        "HTTP/1.0 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "HTTP/1.0 200 OK\r\nContent-Length: 2x\r\n\r\n{}",
        "HTTP/1.0 200 OK\r\nContent-Length: -2\r\n\r\n{}", "HTTP/1.0 200 OK\r\nContent-Length:\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"};
    struct http_answer found;
    size_t i;

    test = "answers of HTTP";
    for (i = 0; i < sizeof none / sizeof *none; i++)
        if (answers(none[i], &found))
            fail(__LINE__, none[i]);
    CHECK(answers("HTTP/1.0 200 OK\r\nContent-Length: 2 \r\nA: content-length: 9\r\n\r\n{}",
        &found) && found.status == 200);
    CHECK(found.n == 2 && memcmp(found.body, "{}", 2) == 0);
    CHECK(answers("HTTP/1.1 503\r\n\r\n", &found) && found.status == 503 && found.n == 0);
    CHECK(answers("HTTP/1.0 200 OK\r\n\r\na\r\n\r\nb", &found) && found.n == 6);
}

static void addresses(void)
{
    static const char *const no[] = {"", ":", ":1", "a:1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:1 ", "127.0.0.1: 1", "[::1]", "::g:1", "http://127.0.0.1:1", "[127.0.0.1:1", "127.0.0.1:1/",
        "1111111111111111111111111111111111111111111111111111111111111111111111111:1"};
    struct http_address found;
    size_t i;

    test = "addresses";
    for (i = 0; i < sizeof no / sizeof *no; i++)
        if (http_address_read(&found, no[i], strlen(no[i])))
            fail(__LINE__, no[i]);
    CHECK(http_address_read(&found, "127.0.0.1:2379,", 14) && strcmp(found.name, "127.0.0.1:2379") == 0);
    CHECK(found.at.ss_family == AF_INET);
    CHECK(http_address_read(&found, "[::1]:2379", 10) && found.at.ss_family == AF_INET6);
}

/* ---- the slot ------------------------------------------------------------------------------------------------------- */

static char directory[] = "/tmp/xce-leases-XXXXXX";
static char path[64];

static void the_slot(void)
{
    struct slot slot, other;
    char identity[sizeof slot.identity];

    test = "the slot";
    CHECK(slot_open(&slot, path, "one") == 0 && strlen(slot.identity) == SLOT_IDENTITY && !slot.over);
    CHECK(slot_open(&other, path, "one") == -EBUSY);
    CHECK(slot_open(&other, path, "two") == 0 && strcmp(other.identity, slot.identity) != 0);
    close(other.fd);
    strcpy(identity, slot.identity);
    slot_remember(&slot, 1);
    close(slot.fd);
    CHECK(slot_open(&slot, path, "one") == 0 && strcmp(slot.identity, identity) == 0 && slot.over);
    slot_remember(&slot, 0);
    close(slot.fd);
    CHECK(slot_open(&slot, path, "one") == 0 && strcmp(slot.identity, identity) == 0 && !slot.over);
    CHECK(pwrite(slot.fd, "\"", 1, 3) == 1); /* what could not stand in a record is not taken for an identity */
    close(slot.fd);
    CHECK(slot_open(&slot, path, "one") == 0 && strlen(slot.identity) == SLOT_IDENTITY && strchr(slot.identity, '"') == NULL);
    close(slot.fd);
    CHECK(slot_open(&slot, "/nowhere/at/all", "one") == -ENOENT);
    CHECK(slot_holder_usable("m1/c") && !slot_holder_usable("") && !slot_holder_usable("a\"b") && !slot_holder_usable("a\\b"));
    CHECK(!slot_holder_usable("a\nb") && !slot_holder_usable("\xc3\xa9"));
}

/* ---- the election --------------------------------------------------------------------------------------------------- */

/* A store that answers what it is told to, and remembers what it was asked. */
static struct {
    struct lease base;
    enum lease_answer next;
    char asked[256];
} store;

static void asked(const char *what)
{
    size_t n = strlen(store.asked);

    snprintf(store.asked + n, sizeof store.asked - n, "%s ", what);
}

static void store_look(struct lease *lease)
{
    (void)lease;
    asked("look");
}

static void store_acquire(struct lease *lease, int64_t length_ns, int new_term)
{
    (void)lease;
    CHECK(length_ns == 10000 * NS_PER_MS);
    asked(new_term ? "begin" : "acquire");
}

static void store_release(struct lease *lease, int64_t term)
{
    (void)lease;
    CHECK(term == store.base.term);
    asked("release");
}

static enum lease_answer store_answer(struct lease *lease)
{
    enum lease_answer answer = store.next;

    (void)lease;
    store.next = LEASE_PENDING;
    return answer;
}

static int store_fd(const struct lease *lease, short *events)
{
    (void)lease;
    *events = 0;
    return -1;
}

static int64_t store_next_ns(const struct lease *lease)
{
    (void)lease;
    return LEASE_NEVER_NS;
}

static const struct lease_kind scripted = {store_look, store_acquire, store_release, store_answer, store_fd, store_next_ns};

static struct slot slot;
static struct election election;

/* A new process of the same holder. */
static void stands(const char *which)
{
    test = which;
    if (slot.fd > 0)
        close(slot.fd);
    CHECK(slot_open(&slot, path, "three") == 0);
    memset(&store, 0, sizeof store);
    store.base.kind = &scripted;
    election_open(&election, &store.base, &slot, 10000 * NS_PER_MS);
}

static void says(enum lease_answer answer, int64_t term, int64_t for_ms)
{
    store.next = answer;
    store.base.term = term;
    store.base.valid_until_ns = for_ms < 0 ? LEASE_NEVER_NS : clock_ns + for_ms * NS_PER_MS;
    election_poll(&election);
}

static void passes(int64_t ms)
{
    clock_ns += ms * NS_PER_MS;
    election_poll(&election);
}

static int was_asked(const char *what)
{
    int was = strcmp(store.asked, what) == 0;

    store.asked[0] = '\0';
    return was;
}

static void nothing_is_said_before_the_store_was_read(void)
{
    stands("nothing is said before the store was read");
    election_poll(&election);
    CHECK(election.stance == UNREAD && was_asked("acquire "));
    strcpy(store.base.trouble, "torn");
    says(LEASE_UNKNOWN, 0, 0);
    CHECK(election.stance == UNREAD && strcmp(election.trouble, "torn") == 0);
    CHECK(election_next_ns(&election) == clock_ns + 500 * NS_PER_MS);
    passes(500);
    says(LEASE_TAKEN, 3, 60000);
    CHECK(election.stance == STANDBY && election.term == 3 && election.trouble[0] == '\0');
    CHECK(election_next_ns(&election) == clock_ns + 2000 * NS_PER_MS);
}

static void what_is_stated_ends_before_the_lease_and_never_comes_back(void)
{
    int64_t until;

    stands("what is stated ends before the lease and never comes back");
    election_poll(&election);
    says(LEASE_HELD, 5, 10000);
    until = clock_ns + 9990 * NS_PER_MS;
    CHECK(election.stance == PRIMARY && election.valid_until_ns == until && !slot.over);
    passes(2000);
    CHECK(was_asked("acquire acquire "));
    passes(7989);
    CHECK(election.stance == PRIMARY && election_next_ns(&election) == until);
    passes(1); /* the renewal is still not answered */
    CHECK(election.stance == STANDBY && was_asked(""));
    says(LEASE_HELD, 5, 2000); /* asked before standby was said: that term is over */
    CHECK(election.stance == STANDBY && was_asked("begin "));
    says(LEASE_HELD, 6, 10000);
    CHECK(election.stance == PRIMARY && election.term == 6);
}

static void a_term_that_goes_back_is_not_stated(void)
{
    stands("a term that goes back is not stated");
    election_poll(&election);
    says(LEASE_HELD, 7, 10000);
    passes(2000);
    says(LEASE_HELD, 6, 10000);
    CHECK(election.stance == STANDBY && election.term == 7 && strcmp(election.trouble, "the store's term went back") == 0);
}

static void an_acquisition_that_took_too_long_is_not_stated(void)
{
    stands("an acquisition that took too long is not stated");
    election_poll(&election);
    says(LEASE_HELD, 8, 10); /* less the margin: nothing */
    CHECK(election.stance == STANDBY);
}

static void a_term_that_was_given_up_is_over_for_the_next_process(void)
{
    stands("a term that was given up is over for the next process");
    slot_remember(&slot, 0);
    stands(test);
    election_poll(&election);
    says(LEASE_HELD, 9, 10000);
    election_step_down(&election);
    CHECK(election.stance == STANDBY);
    passes(2000);
    CHECK(was_asked("acquire look "));
    says(LEASE_TAKEN, 9, -1); /* its own record, that runs out */
    stands(test);
    election_poll(&election);
    CHECK(was_asked("begin "));
    says(LEASE_HELD, 10, 10000);
    CHECK(election.stance == PRIMARY);
    stands(test); /* killed while it led: inside its lease it goes on */
    election_poll(&election);
    CHECK(was_asked("acquire "));
}

static void an_answer_after_stepping_down_brings_nothing_back(void)
{
    stands("an answer after stepping down brings nothing back");
    election_poll(&election);
    election_step_down(&election);
    says(LEASE_HELD, 11, 10000);
    CHECK(election.stance == STANDBY && election.term == 11);
    election_stand(&election);
    election_poll(&election);
    CHECK(was_asked("acquire begin "));
    says(LEASE_HELD, 12, 10000);
    CHECK(election.stance == PRIMARY && election.term == 12);
}

static void a_lease_that_was_lost_is_stood_for_anew(void)
{
    stands("a lease that was lost is stood for anew");
    election_poll(&election);
    says(LEASE_HELD, 13, 10000);
    passes(2000);
    says(LEASE_FREE, 13, 0);
    CHECK(election.stance == STANDBY && election_next_ns(&election) == clock_ns + 20 * NS_PER_MS);
    passes(20);
    CHECK(was_asked("acquire acquire begin "));
    says(LEASE_TAKEN, 14, 100); /* a rival's, that ends soon */
    CHECK(election_next_ns(&election) == clock_ns + 100 * NS_PER_MS);
}

static void a_leader_cannot_release(void)
{
    stands("a leader cannot release");
    slot_remember(&slot, 0);
    stands(test);
    election_poll(&election);
    says(LEASE_HELD, 15, 10000);
    election_release(&election);
    election_step_down(&election);
    CHECK(was_asked("acquire "));
    election_release(&election);
    CHECK(was_asked("release ") && election.question == QUESTION_RELEASE && !election.released);
    says(LEASE_FREE, 15, 0);
    CHECK(election.question == QUESTION_NONE && election.released);
    election_release(&election);
    says(LEASE_UNKNOWN, 15, 0);
    CHECK(!election.released);
}

int main(void)
{
    char command[64];

    if (mkdtemp(directory) == NULL)
        return 2;
    snprintf(path, sizeof path, "%s/lease", directory);
    what_is_json();
    parts_of_json();
    strings_of_json();
    numbers_of_json();
    base64();
    answers_of_http();
    addresses();
    the_slot();
    nothing_is_said_before_the_store_was_read();
    what_is_stated_ends_before_the_lease_and_never_comes_back();
    a_term_that_goes_back_is_not_stated();
    an_acquisition_that_took_too_long_is_not_stated();
    a_term_that_was_given_up_is_over_for_the_next_process();
    an_answer_after_stepping_down_brings_nothing_back();
    a_lease_that_was_lost_is_stood_for_anew();
    a_leader_cannot_release();
    free(block);
    close(slot.fd);
    snprintf(command, sizeof command, "rm -r %s", directory);
    if (system(command) != 0)
        failures++;
    printf("leases: %d failures\n", failures);
    return failures != 0;
}
