/* The behaviour of the client towards an agent that this program plays, on a real socket and a clock of its own. */
#define clock_gettime test_clock_gettime
#include "xce.c"
#undef clock_gettime

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static int64_t clock_ns = 1000 * NS_PER_S;
static char directory[] = "/tmp/xce-client-XXXXXX";
static char socket_path[64];
static int listener = -1, peer = -1;
static char heard[MAX_RECORD + 1];
static const char *test;
static int failures;

int test_clock_gettime(clockid_t id, struct timespec *now)
{
    if (id != CLOCK_BOOTTIME)
        abort();
    now->tv_sec = (time_t)(clock_ns / NS_PER_S);
    now->tv_nsec = (long)(clock_ns % NS_PER_S);
    return 0;
}

static void fail(int line, const char *what)
{
    failures++;
    printf("FAILED: %s, line %d: %s\n", test, line, what);
}
#define CHECK(holds) ((holds) ? (void)0 : fail(__LINE__, #holds))

/* ---- the agent ---------------------------------------------------------------------------------------------------- */

static void agent_listens(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    strcpy(address.sun_path, socket_path);
    unlink(socket_path);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0) {
        perror(socket_path);
        exit(2);
    }
}

static void agent_hangs_up(void)
{
    if (peer >= 0)
        close(peer);
    peer = -1;
}

static void agent_ends(void)
{
    agent_hangs_up();
    if (listener >= 0)
        close(listener);
    listener = -1;
    unlink(socket_path);
}

static int agent_accepts(void)
{
    agent_hangs_up();
    peer = accept(listener, NULL, NULL);
    return peer >= 0;
}

/* The next record in `heard`; 0: there is none, -1: the end. */
static int agent_hears(void)
{
    ssize_t n = recv(peer, heard, MAX_RECORD, MSG_DONTWAIT);

    heard[n > 0 ? n : 0] = '\0';
    return n > 0 ? 1 : n == 0 ? -1 : 0;
}

static void agent_says(const char *record)
{
    if (send(peer, record, strlen(record), MSG_NOSIGNAL) < 0)
        perror("send");
}

static int said(const char *text) { return strstr(heard, text) != NULL; }

#define ANSWER "XCE_HEARTBEAT=1\nNODE=n1\nINSTANCE_ID=i\nBOOT_ID=b\nROLES=manager\nFULL=1\n"
#define NO_DIRECTIVES "DRAIN=0\nDRAIN_DEADLINE_NS=0\nUNDRAIN=0\nEPOCH=0\nDECOMMISSIONED=0\n"

/* A client that has said hello and was answered. */
static xce_heartbeat *connected(void)
{
    xce_heartbeat *hb = xce_heartbeat_open(NULL, 1000, NULL);

    agent_listens();
    xce_heartbeat_poll(hb);
    CHECK(agent_accepts());
    CHECK(agent_hears() == 1);
    agent_says(ANSWER NO_DIRECTIVES);
    CHECK(xce_heartbeat_poll(hb) == 1);
    CHECK(xce_heartbeat_connected(hb));
    return hb;
}

static void finish(xce_heartbeat *hb)
{
    xce_heartbeat_close(hb);
    agent_ends();
}

static void set_main_pid(pid_t pid)
{
    char text[24];

    snprintf(text, sizeof text, "%ld", (long)pid);
    setenv("XCE_MAIN_PID", text, 1);
}

/* ---- saying ------------------------------------------------------------------------------------------------------- */

/* The first record is a hello with the full state. */
static void says_hello_with_the_full_state(void)
{
    xce_heartbeat *hb = xce_heartbeat_open(NULL, 250, "spot");

    agent_listens();
    xce_set_ready(hb, 1);
    xce_set_jobs(hb, 3);
    CHECK(xce_heartbeat_poll(hb) == 0);
    CHECK(agent_accepts() && agent_hears() == 1);
    CHECK(strcmp(heard, "XCE_HEARTBEAT=1\nCOMPONENT=c\nINTERVAL_MS=250\nTEMPLATE=spot\nBEAT=1\nREADY=1\nJOBS=3\n") == 0);
    CHECK(!xce_heartbeat_connected(hb));
    finish(hb);
}

/* An idle program beats: the wait is bounded by the next beat, and the beat comes at that time, not before. */
static void beats_when_idle(void)
{
    xce_heartbeat *hb = connected();

    CHECK(xce_heartbeat_next_ms(hb) == 1000);
    clock_ns += 999 * NS_PER_MS;
    xce_heartbeat_poll(hb);
    CHECK(agent_hears() == 0);
    CHECK(xce_heartbeat_next_ms(hb) == 1);
    clock_ns += NS_PER_MS;
    CHECK(xce_heartbeat_next_ms(hb) == 0);
    xce_heartbeat_poll(hb);
    CHECK(agent_hears() == 1 && strcmp(heard, "BEAT=2\n") == 0);
    finish(hb);
}

/* A change is due at once and sent alone; what is stated again unchanged is no change. */
static void says_changes_at_once(void)
{
    xce_heartbeat *hb = connected();

    xce_state_leadership(hb, 1, 7, 5000);
    xce_set_ready(hb, 0);
    CHECK(xce_heartbeat_next_ms(hb) == 0);
    xce_heartbeat_poll(hb);
    CHECK(agent_hears() == 1);
    CHECK(strcmp(heard, "BEAT=2\nREADY=0\nLEADERSHIP=primary\nTERM=7\nVALID_UNTIL_NS=5000\n") == 0);
    xce_state_leadership(hb, 1, 7, 5000);
    xce_set_ready(hb, 0);
    CHECK(xce_heartbeat_next_ms(hb) == 1000);
    xce_state_leadership(hb, 0, 7, 0);
    xce_state_lease(hb, "p", 1, 4, 9);
    xce_heartbeat_poll(hb);
    CHECK(agent_hears() == 1);
    CHECK(strcmp(heard, "BEAT=3\nLEADERSHIP=standby\nTERM=7\nLEASE.p=held\nLEASE.p.TOKEN=4\nLEASE.p.VALID_UNTIL_NS=9\n") == 0);
    finish(hb);
}

/* The full state is stated again every ten seconds. */
static void restates_everything(void)
{
    xce_heartbeat *hb = connected();
    int i, full = 0;

    xce_set_ready(hb, 1);
    xce_state_lease(hb, "p", 0, 4, 0);
    for (i = 0; i < 25; i++) {
        xce_heartbeat_poll(hb);
        while (agent_hears() == 1)
            full += said("READY=1\n") && said("LEASE.p=lost\n");
        clock_ns += NS_PER_S;
    }
    CHECK(full == 3); /* the change, and twice in 25 s */
    finish(hb);
}

/* A program that changes a level in a tight loop is not taken for a flood: 50 at once, 40 a second. */
static void keeps_its_pace(void)
{
    xce_heartbeat *hb = connected();
    int i, records = 0;

    for (i = 0; i < 1000; i++) {
        xce_set_progress(hb, i + 1);
        xce_heartbeat_poll(hb);
        while (agent_hears() == 1)
            records++;
    }
    CHECK(records == PACE_BURST - 1); /* and the hello */
    CHECK(xce_heartbeat_next_ms(hb) == 25);
    clock_ns += 25 * NS_PER_MS;
    xce_heartbeat_poll(hb);
    CHECK(agent_hears() == 1 && said("PROGRESS=1000\n"));
    finish(hb);
}

/* Text that no record may carry is made fit; the greatest state there can be still fits in one record. */
static void sends_only_what_may_be_sent(void)
{
    char text[600], name[XCE_MAX_NAME + 1], big[MAX_TEMPLATE + 1];
    xce_heartbeat *hb;
    int i;

    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    memset(name, 'n', sizeof name);
    memset(big, 't', sizeof big);
    name[XCE_MAX_NAME] = big[MAX_TEMPLATE] = '\0';
    hb = xce_heartbeat_open(name, 60000, big);
    CHECK(hb != NULL && xce_set_status(hb, "a\n\x01" "b\xff" "c\xe2\x82") == 0);
    CHECK(strcmp(hb->status, "a  b?c??") == 0);
    strcpy(text + 509, "\xf0\x9f\x98\x80");
    CHECK(xce_set_status(hb, text) == 0 && strlen(hb->status) == 509);
    memset(text + 509, 'x', 4);
    xce_set_status(hb, text);
    xce_set_ready(hb, 1);
    xce_set_stopping(hb);
    xce_set_progress(hb, INT64_MAX);
    xce_set_jobs(hb, INT64_MAX);
    xce_state_leadership(hb, 1, INT64_MAX, INT64_MAX);
    xce_state_host(hb, XCE_HOST_DRAINING, INT64_MAX, INT64_MAX);
    for (i = 0; i < XCE_MAX_LEASES; i++) {
        name[0] = (char)('a' + i);
        CHECK(xce_state_lease(hb, name, 1, INT64_MAX, INT64_MAX) == 0);
    }
    CHECK(xce_state_lease(hb, "one-more", 1, 1, 1) == -ENOSPC);
    CHECK(xce_state_lease(hb, name, 0, 1, 0) == 0);
    CHECK(xce_state_lease(hb, name, 1, INT64_MAX, INT64_MAX) == 0);
    agent_listens();
    xce_heartbeat_poll(hb);
    CHECK(agent_accepts() && agent_hears() == 1);
    CHECK(parse(heard, strlen(heard), hb->pairs) == 3 + 1 + 1 + 5 + 3 + 3 + 3 * XCE_MAX_LEASES);
    finish(hb);
}

/* What the protocol does not allow is refused, and said to the caller. */
static void refuses_what_the_protocol_does_not_allow(void)
{
    xce_heartbeat *hb = xce_heartbeat_open(NULL, 1000, NULL);
    static const char *const wrong[] = {"", "a b", "a=b", "a\n", "p.TOKEN", "\xc3\xa4", NULL};
    int i;

    for (i = 0; wrong[i] != NULL; i++)
        CHECK(xce_state_lease(hb, wrong[i], 1, 1, 1) == -EINVAL);
    CHECK(xce_set_jobs(hb, -1) == -EINVAL && xce_set_progress(hb, -1) == -EINVAL && xce_set_status(hb, NULL) == -EINVAL);
    CHECK(xce_state_leadership(hb, 1, -1, 1) == -EINVAL && xce_state_leadership(hb, 1, 1, -1) == -EINVAL);
    CHECK(xce_state_host(hb, (enum xce_host)4, 1, 0) == -EINVAL && xce_state_host(hb, XCE_HOST_ACTIVE, -1, 0) == -EINVAL);
    CHECK(hb->stated == 0);
    xce_heartbeat_close(hb);
    errno = 0;
    CHECK(xce_heartbeat_open("c", 99, NULL) == NULL && errno == EINVAL);
    CHECK(xce_heartbeat_open("c", 60001, NULL) == NULL && xce_heartbeat_open("a b", 1000, NULL) == NULL);
    xce_heartbeat_close(NULL);
}

/* ---- hearing ------------------------------------------------------------------------------------------------------ */

/* What the agent said can be asked for, and stays while the agent is away. */
static void knows_what_the_agent_said(void)
{
    xce_heartbeat *hb = xce_heartbeat_open(NULL, 1000, NULL);
    struct xce_directives d;
    struct xce_component c;
    struct xce_fact f;

    CHECK(xce_directives(hb, &d) == 0 && d.drain == 0 && xce_fact(hb, "x", &f) == 0 && f.value == -1);
    CHECK(xce_component(hb, "c", &c) == 0 && c.state == XCE_UNKNOWN && xce_rejoin_budget_ms(hb) == -1);
    xce_heartbeat_close(hb);
    hb = connected();
    agent_says("DRAIN=1\nDRAIN_DEADLINE_NS=77\nREJOIN_BUDGET_MS=5000\nCOMPONENT.s=backoff\nCOMPONENT.s.RESTARTS=2\n"
               "COMPONENT.s.EXPECTED_BACK_MS=40\nFACT.lease.p=true\nFACT.lease.p.TERM=3\n"
               "FACT.lease.p.VALID_UNTIL_NS=2000000000000\n");
    CHECK(xce_heartbeat_poll(hb) == 1 && xce_heartbeat_poll(hb) == 0);
    agent_ends();
    xce_heartbeat_poll(hb);
    CHECK(!xce_heartbeat_connected(hb) && xce_heartbeat_error(hb) != 0);
    CHECK(xce_directives(hb, &d) == 1 && d.drain == 1 && d.drain_deadline_ns == 77 && !d.decommissioned);
    CHECK(xce_component(hb, "s", &c) == 1 && c.state == XCE_BACKOFF && c.restarts == 2 && c.expected_back_ms == 40);
    CHECK(xce_rejoin_budget_ms(hb) == 5000 && strcmp(xce_node(hb), "n1") == 0 && strcmp(xce_roles(hb), "manager") == 0);
    CHECK(xce_fact(hb, "lease.p", &f) == 1 && f.value == 1 && f.term == 3 && f.valid_until_ns == 2000 * NS_PER_S);
    clock_ns = 2000 * NS_PER_S;
    CHECK(xce_fact(hb, "lease.p", &f) == 1 && f.value == -1);
    finish(hb);
}

/* More components and facts than are kept do no harm, and full states free their places. */
static void bounds_what_it_keeps(void)
{
    xce_heartbeat *hb = connected();
    char record[64];
    struct xce_component c;
    int i;

    for (i = 0; i < XCE_MAX_COMPONENTS + 40; i++) {
        snprintf(record, sizeof record, "COMPONENT.c%d=running\nFACT.f%d=true\n", i, i);
        CHECK(take(hb, record, strlen(record)) == 0);
    }
    CHECK(hb->component_count == XCE_MAX_COMPONENTS && hb->fact_count == XCE_MAX_FACTS);
    CHECK(take(hb, "FULL=1\nCOMPONENT.new=running\n", 29) == 0);
    CHECK(hb->component_count == 1 && hb->fact_count == 0 && xce_component(hb, "new", &c) == 1);
    finish(hb);
}

/* Garbage from the agent closes the connection; what was known stays, and the client tries again. */
static void survives_garbage(void)
{
    static const char *const garbage[] = {"\xff\xfe", "no equals sign", "XCE_HEARTBEAT=2\n", "PART=9/9\nDRAIN=1\n", NULL};
    xce_heartbeat *hb = connected();
    struct xce_directives d;
    char huge[MAX_RECORD + 2];
    int i;

    for (i = 0; garbage[i] != NULL; i++) {
        agent_says(garbage[i]);
        xce_heartbeat_poll(hb);
        CHECK(xce_heartbeat_fd(hb) < 0 && xce_heartbeat_error(hb) == EPROTO);
        clock_ns += RECONNECT_MAX_NS;
        xce_heartbeat_poll(hb);
        CHECK(agent_accepts() && agent_hears() == 1 && said("XCE_HEARTBEAT=1\n"));
    }
    memset(huge, 'x', sizeof huge);
    memcpy(huge, "DRAIN=1\nA=", 10);
    CHECK(send(peer, huge, sizeof huge, 0) == sizeof huge);
    xce_heartbeat_poll(hb);
    CHECK(xce_heartbeat_fd(hb) < 0 && xce_directives(hb, &d) == 1 && d.drain == 0);
    finish(hb);
}

/* ---- the connection ----------------------------------------------------------------------------------------------- */

/* Attempts to connect spread, double up to a second, and begin anew after an answer; a reconnect states everything. */
static void reconnects_by_itself(void)
{
    xce_heartbeat *hb = connected();
    int64_t delay = RECONNECT_MIN_NS, wait;
    int i;

    xce_set_ready(hb, 1);
    xce_heartbeat_poll(hb);
    agent_ends();
    xce_heartbeat_poll(hb);
    for (i = 0; i < 10; i++) {
        wait = xce_heartbeat_next_ms(hb) * NS_PER_MS;
        CHECK(wait >= delay / 2 && wait <= delay + NS_PER_MS);
        clock_ns += wait;
        xce_heartbeat_poll(hb);
        CHECK(xce_heartbeat_error(hb) == ENOENT);
        delay = 2 * delay < RECONNECT_MAX_NS ? 2 * delay : RECONNECT_MAX_NS;
    }
    agent_listens();
    clock_ns += RECONNECT_MAX_NS;
    xce_heartbeat_poll(hb);
    CHECK(agent_accepts() && agent_hears() == 1 && said("XCE_HEARTBEAT=1\n") && said("READY=1\n"));
    agent_says(ANSWER NO_DIRECTIVES);
    xce_heartbeat_poll(hb);
    CHECK(xce_heartbeat_connected(hb) && xce_heartbeat_error(hb) == 0);
    agent_hangs_up();
    xce_heartbeat_poll(hb);
    CHECK(xce_heartbeat_next_ms(hb) <= RECONNECT_MIN_NS / NS_PER_MS);
    finish(hb);
}

/* An agent that stands still costs nothing: no call waits, nothing piles up, and then the state of that moment is sent. */
static void never_waits_for_a_stopped_agent(void)
{
    xce_heartbeat *hb = connected();
    int i, records = 0;

    for (i = 0; i < 5000; i++) {
        xce_set_progress(hb, i + 1);
        xce_heartbeat_poll(hb);
        clock_ns += NS_PER_S / 10;
    }
    CHECK(hb->blocked && xce_heartbeat_next_ms(hb) >= BLOCKED_RETRY_NS / NS_PER_MS);
    while (agent_hears() == 1)
        records++;
    CHECK(records < 1000);
    clock_ns += BLOCKED_RETRY_NS;
    xce_heartbeat_poll(hb);
    CHECK(agent_hears() == 1 && said("PROGRESS=5000\n"));
    finish(hb);
}

/* Whether all that was stated went out on this connection: not before it was sent, and not into a full queue. */
static void tells_whether_all_was_sent(void)
{
    xce_heartbeat *hb = connected();
    int i;

    CHECK(xce_heartbeat_sent(hb));
    xce_set_ready(hb, 1);
    CHECK(!xce_heartbeat_sent(hb));
    xce_heartbeat_poll(hb);
    CHECK(xce_heartbeat_sent(hb));
    for (i = 0; i < 10000 && !hb->blocked; i++) {
        clock_ns += PACE_NS;
        xce_set_progress(hb, i);
        xce_heartbeat_poll(hb);
    }
    CHECK(hb->blocked && !xce_heartbeat_sent(hb));
    while (agent_hears() > 0) {
    }
    clock_ns += PACE_NS;
    xce_heartbeat_poll(hb);
    CHECK(xce_heartbeat_sent(hb));
    agent_ends();
    xce_heartbeat_poll(hb);
    CHECK(!xce_heartbeat_sent(hb));
    agent_listens();
    clock_ns += RECONNECT_MAX_NS;
    xce_heartbeat_poll(hb);
    CHECK(xce_heartbeat_sent(hb)); /* with the hello */
    finish(hb);
}

/* Nobody accepts and the queue is full: the attempt fails at once. */
static void never_waits_to_be_accepted(void)
{
    xce_heartbeat *hb[4];
    int i, refused = 0;

    agent_listens();
    for (i = 0; i < 4; i++) {
        hb[i] = xce_heartbeat_open(NULL, 1000, NULL);
        xce_heartbeat_poll(hb[i]);
        refused += xce_heartbeat_error(hb[i]) == EAGAIN;
    }
    CHECK(refused == 2);
    for (i = 0; i < 4; i++)
        xce_heartbeat_close(hb[i]);
    agent_ends();
}

/* Writing to an agent that is gone raises no signal, and what it said last is still taken in. */
static void hears_the_last_words(void)
{
    xce_heartbeat *hb = connected();
    struct xce_directives d;

    agent_says("DECOMMISSIONED=1\n");
    shutdown(peer, SHUT_RD);
    hb->dirty |= READY;
    hb->stated |= READY;
    CHECK(transmit(hb, clock_ns) == 1); /* as if the words had come after it had read */
    CHECK(xce_directives(hb, &d) == 1 && d.decommissioned && xce_heartbeat_fd(hb) < 0);
    finish(hb);
    hb = connected();
    xce_set_ready(hb, 1);
    xce_heartbeat_poll(hb);
    agent_says("DRAIN=1\n");
    agent_ends(); /* with a record unread: the kernel reports a reset before the words */
    CHECK(xce_heartbeat_poll(hb) == 1 && xce_directives(hb, &d) == 1 && d.drain && xce_heartbeat_fd(hb) < 0);
    finish(hb);
}

/* Without the right to connect the program goes on and tries again. */
static void lives_without_permission(void)
{
    pid_t child;
    int status;

    if (geteuid() != 0)
        return; /* whoever may connect as itself cannot be refused */
    agent_listens();
    chmod(socket_path, 0);
    chmod(directory, 0755);
    child = fork();
    if (child == 0) {
        xce_heartbeat *hb;
        int right;

        if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(2);
        set_main_pid(getpid());
        hb = xce_heartbeat_open(NULL, 1000, NULL);
        xce_heartbeat_poll(hb);
        right = xce_heartbeat_error(hb) == EACCES && xce_heartbeat_next_ms(hb) > 0;
        xce_heartbeat_close(hb);
        _exit(right ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    agent_ends();
}

/* ---- who speaks --------------------------------------------------------------------------------------------------- */

/* Without an agent everything works and nothing is sent. */
static void works_without_an_agent(void)
{
    xce_heartbeat *hb;

    unsetenv("XCE_HEARTBEAT_SOCKET");
    hb = xce_heartbeat_open(NULL, 1000, NULL);
    CHECK(xce_set_ready(hb, 1) == 0 && xce_heartbeat_poll(hb) == 0);
    CHECK(xce_heartbeat_fd(hb) == -1 && xce_heartbeat_next_ms(hb) == MAX_WAIT_MS && xce_heartbeat_error(hb) == 0);
    xce_heartbeat_close(hb);
    setenv("XCE_HEARTBEAT_SOCKET", socket_path, 1);
}

/* A process that inherited the environment of another is silent. */
static void is_silent_with_an_inherited_environment(void)
{
    xce_heartbeat *hb;

    agent_listens();
    set_main_pid(getppid());
    hb = xce_heartbeat_open(NULL, 1000, NULL);
    xce_heartbeat_poll(hb);
    CHECK(!agent_accepts());
    finish(hb);
    set_main_pid(getpid());
}

/* A forked child is refused everything, and its parent's connection goes on. */
static void is_harmless_in_a_forked_child(void)
{
    xce_heartbeat *hb = connected();
    int status;
    pid_t child;

    setenv("XCE_TERM", "5", 1);
    setenv("XCE_LEASE_VALID_UNTIL_NS", "9000000000000", 1);
    CHECK(xce_fence(hb, "controller.primary") == 0 && xce_lease_valid(hb));
    child = fork();
    if (child == 0) {
        int right = xce_set_ready(hb, 1) == -EPERM && xce_state_leadership(hb, 0, 9, 0) == -EPERM
                    && xce_heartbeat_fd(hb) == -1 && xce_heartbeat_poll(hb) == -EPERM && xce_heartbeat_poll(hb) == -EPERM
                    && !xce_lease_valid(hb) && !xce_heartbeat_connected(hb) && hb->fd == -1;

        xce_heartbeat_close(hb);
        _exit(right ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    xce_set_ready(hb, 1);
    xce_heartbeat_poll(hb);
    CHECK(agent_hears() == 1 && strcmp(heard, "BEAT=2\nREADY=1\n") == 0 && xce_lease_valid(hb));
    CHECK(agent_hears() == 0);
    finish(hb);
}

/* No call leaves another errno behind. */
static void leaves_errno_alone(void)
{
    xce_heartbeat *hb = xce_heartbeat_open(NULL, 1000, NULL);

    errno = EXDEV;
    xce_heartbeat_poll(hb);
    CHECK(errno == EXDEV && xce_heartbeat_error(hb) == ENOENT);
    xce_heartbeat_close(hb);
    CHECK(errno == EXDEV);
}

/* ---- the fence ---------------------------------------------------------------------------------------------------- */

static xce_heartbeat *fenced(void)
{
    xce_heartbeat *hb = connected();
    char until[24];

    snprintf(until, sizeof until, "%lld", (long long)(clock_ns + 10 * NS_PER_S));
    setenv("XCE_TERM", "5", 1);
    setenv("XCE_LEASE_VALID_UNTIL_NS", until, 1);
    CHECK(!xce_lease_valid(hb) && xce_lease_term(hb) == -1);
    CHECK(xce_fence(hb, "controller.primary") == 0);
    CHECK(xce_lease_valid(hb) && xce_lease_term(hb) == 5);
    return hb;
}

static void primary(xce_heartbeat *hb, const char *value, int64_t term, int64_t until)
{
    char record[256];

    snprintf(record, sizeof record, "FACT.controller.primary=%s\nFACT.controller.primary.TERM=%lld\n"
             "FACT.controller.primary.VALID_UNTIL_NS=%lld\n", value, (long long)term, (long long)until);
    agent_says(record);
    CHECK(xce_heartbeat_poll(hb) == 1);
}

/* A lease ends by the clock; the wait is bounded by its end; a renewal extends it, and nothing shortens it. */
static void fences_itself_by_the_clock(void)
{
    xce_heartbeat *hb = fenced();
    int64_t until = clock_ns + 10 * NS_PER_S;

    primary(hb, "true", 5, until + NS_PER_S);
    CHECK(xce_lease_valid_until_ns(hb) == until + NS_PER_S);
    primary(hb, "true", 5, until);
    CHECK(xce_lease_valid_until_ns(hb) == until + NS_PER_S);
    agent_says(ANSWER NO_DIRECTIVES); /* unknown: what was validly said holds until its own end */
    xce_heartbeat_poll(hb);
    clock_ns = until + NS_PER_S - 5 * NS_PER_MS;
    xce_heartbeat_poll(hb);
    CHECK(xce_lease_valid(hb) && xce_heartbeat_next_ms(hb) == 5);
    clock_ns = until + NS_PER_S;
    CHECK(!xce_lease_valid(hb) && xce_heartbeat_next_ms(hb) > 0);
    finish(hb);
}

/* Another term, or false, ends it for ever: even when the agent says true again before the program looks. */
static void fences_itself_for_ever(void)
{
    xce_heartbeat *hb = fenced();

    primary(hb, "true", 6, clock_ns + 20 * NS_PER_S);
    CHECK(!xce_lease_valid(hb));
    primary(hb, "true", 5, clock_ns + 20 * NS_PER_S);
    CHECK(!xce_lease_valid(hb) && xce_lease_valid_until_ns(hb) < clock_ns + 20 * NS_PER_S);
    finish(hb);
    hb = fenced();
    agent_says("FACT.controller.primary=false\nFACT.controller.primary.TERM=5\n");
    primary(hb, "true", 5, clock_ns + 20 * NS_PER_S);
    CHECK(!xce_lease_valid(hb));
    finish(hb);
}

/* A process that was not started under a lease is told so. */
static void is_not_fenced_without_a_lease(void)
{
    xce_heartbeat *hb = xce_heartbeat_open(NULL, 1000, NULL);

    unsetenv("XCE_TERM");
    CHECK(xce_fence(hb, "controller.primary") == -ENOENT && !xce_lease_valid(hb));
    setenv("XCE_TERM", "five", 1);
    CHECK(xce_fence(hb, "controller.primary") == -ENOENT && xce_fence(hb, "") == -EINVAL);
    xce_heartbeat_close(hb);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
#define TEST(name) {#name, name}
    TEST(says_hello_with_the_full_state), TEST(beats_when_idle), TEST(says_changes_at_once), TEST(restates_everything),
    TEST(keeps_its_pace), TEST(sends_only_what_may_be_sent), TEST(refuses_what_the_protocol_does_not_allow),
    TEST(knows_what_the_agent_said), TEST(bounds_what_it_keeps), TEST(survives_garbage), TEST(reconnects_by_itself),
    TEST(never_waits_for_a_stopped_agent), TEST(tells_whether_all_was_sent), TEST(never_waits_to_be_accepted),
    TEST(hears_the_last_words), TEST(lives_without_permission), TEST(works_without_an_agent),
    TEST(is_silent_with_an_inherited_environment), TEST(is_harmless_in_a_forked_child), TEST(leaves_errno_alone),
    TEST(fences_itself_by_the_clock), TEST(fences_itself_for_ever), TEST(is_not_fenced_without_a_lease),
};

int main(void)
{
    size_t i;

    if (mkdtemp(directory) == NULL)
        return 2;
    snprintf(socket_path, sizeof socket_path, "%s/s", directory);
    setenv("XCE_HEARTBEAT_SOCKET", socket_path, 1);
    setenv("XCE_COMPONENT", "c", 1);
    set_main_pid(getpid());
    for (i = 0; i < sizeof tests / sizeof *tests; i++) {
        test = tests[i].name;
        tests[i].run();
        fflush(stdout);
    }
    rmdir(directory);
    printf("%d tests, %d failures\n", (int)i, failures);
    return failures != 0;
}
