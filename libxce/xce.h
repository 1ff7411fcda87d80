/*
 * libxce: the component's side of the node manager's heartbeat protocol, version 1.
 *
 * C99, POSIX.1-2008 and Linux (CLOCK_BOOTTIME, SOCK_NONBLOCK), libc alone; xce.h and xce.c can be copied into a program.
 * The protocol, and what a component promises by what it states, is in docs/reference/heartbeat-protocol.md; a guide to
 * this file in docs/reference/libxce.md.
 *
 * A handle belongs to one thread. No call waits, raises a signal, or changes errno; after xce_heartbeat_open none
 * allocates. Without an agent everything works and nothing is sent: the program needs no second way of running.
 * In a forked child every call that would speak is refused, and the parent's connection stays as it is.
 *
 *     xce_heartbeat *hb = xce_heartbeat_open(NULL, 1000, NULL);
 *     xce_set_ready(hb, 1);
 *     while (running) {
 *         struct pollfd wait[] = {{.fd = xce_heartbeat_fd(hb), .events = POLLIN}, ...};
 *         poll(wait, n, min(xce_heartbeat_next_ms(hb), my_own_wait_ms));
 *         xce_heartbeat_poll(hb);
 *         ...
 *     }
 *     xce_heartbeat_close(hb);
 *
 * Functions that return int return 0, or what they say, or a negative errno: -EINVAL for a value that the protocol does
 * not allow, -EPERM in a process that may not speak. Names are UTF-8; times are CLOCK_BOOTTIME in nanoseconds.
 */
#ifndef XCE_H
#define XCE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define XCE_API __attribute__((visibility("default")))
#else
#define XCE_API
#endif

#define XCE_PROTOCOL 1
#define XCE_MIN_INTERVAL_MS 100
#define XCE_MAX_INTERVAL_MS 60000
#define XCE_MAX_NAME 63       /* longest name of a component or a lease, in bytes */
#define XCE_MAX_STATUS 512    /* bytes of a status that are sent */
#define XCE_MAX_LEASES 16     /* leases that one component can state */
#define XCE_MAX_COMPONENTS 256 /* components of the host that are kept; those beyond are not seen */
#define XCE_MAX_FACTS 32      /* facts that are kept; those beyond are not seen */

typedef struct xce_heartbeat xce_heartbeat;

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

/*
 * Make the handle. `component` NULL: $XCE_COMPONENT. `interval_ms` is the promise to send at least one record in that
 * time; three of them in silence are taken for a hang. `host_template` NULL: not known. The socket is
 * $XCE_HEARTBEAT_SOCKET; where that or the name is missing, or $XCE_MAIN_PID is another process, nothing is ever sent.
 * Nothing is connected yet. NULL with errno: EINVAL (interval, name or template out of range), ENOMEM.
 */
XCE_API xce_heartbeat *xce_heartbeat_open(const char *component, unsigned interval_ms, const char *host_template);

/* End the connection and free the handle; NULL is allowed. Send a last state with xce_heartbeat_poll before. */
XCE_API void xce_heartbeat_close(xce_heartbeat *hb);

/* ---- in the program's loop -------------------------------------------------------------------------------------- */

/* Connect if it is time to, take in what the agent said, send what is due. 1: the agent said something; 0: nothing. */
XCE_API int xce_heartbeat_poll(xce_heartbeat *hb);

/* The descriptor to wait on for reading, -1 while there is none. It changes: ask before each wait. */
XCE_API int xce_heartbeat_fd(const xce_heartbeat *hb);

/*
 * The greatest time, in milliseconds, that the program may wait before it calls xce_heartbeat_poll again: the next beat,
 * the next attempt to connect, or the end of the lease of xce_fence, whichever is first. Never above 60000.
 */
XCE_API int xce_heartbeat_next_ms(xce_heartbeat *hb);

/* 1 once the agent has answered the hello on the connection that stands now. */
XCE_API int xce_heartbeat_connected(const xce_heartbeat *hb);

/*
 * 1 while all that was stated has been sent on the connection that stands. What the agent says then may still be older
 * than its having heard it. Before a program ends: poll until 1, for as long as it likes to wait.
 */
XCE_API int xce_heartbeat_sent(const xce_heartbeat *hb);

/* errno of the last attempt that failed, for a log; 0 while connected. EPROTO: the agent broke the protocol. */
XCE_API int xce_heartbeat_error(const xce_heartbeat *hb);

/* ---- what the program states ------------------------------------------------------------------------------------ */

/* Levels: each holds until it is stated anew, and is stated again by itself after a reconnect. */
XCE_API int xce_set_ready(xce_heartbeat *hb, int ready);
XCE_API int xce_set_stopping(xce_heartbeat *hb);
XCE_API int xce_set_status(xce_heartbeat *hb, const char *text); /* one line; what is not text is replaced */
XCE_API int xce_set_progress(xce_heartbeat *hb, int64_t n);      /* grows while work gets done */
XCE_API int xce_set_jobs(xce_heartbeat *hb, int64_t n);

/*
 * State controller.primary. The promises of an authority (docs/reference/heartbeat-protocol.md) are the caller's: the
 * validity counts from before the renewing request, the term never goes down, nothing is said before the store was read,
 * and the lease is not given up before the greatest `valid_until_ns` stated. Standby: `valid_until_ns` is not sent.
 */
XCE_API int xce_state_leadership(xce_heartbeat *hb, int primary, int64_t term, int64_t valid_until_ns);

/* State lease.NAME. Lost: `valid_until_ns` is not sent. -ENOSPC beyond XCE_MAX_LEASES names. */
XCE_API int xce_state_lease(xce_heartbeat *hb, const char *name, int held, int64_t token, int64_t valid_until_ns);

enum xce_host { XCE_HOST_ACTIVE, XCE_HOST_DRAINING, XCE_HOST_DRAINED, XCE_HOST_DECOMMISSIONED };

/* State where this host stands, under the controller's epoch for it. `drain_deadline_ns` 0: none. */
XCE_API int xce_state_host(xce_heartbeat *hb, enum xce_host state, int64_t epoch, int64_t drain_deadline_ns);

/* ---- what the agent said ---------------------------------------------------------------------------------------- */

/* Kept while the connection is away: an absent agent takes nothing back. */

struct xce_directives {
    int drain;                 /* take no new work, end or wait for what runs */
    int64_t drain_deadline_ns; /* 0: none */
    int undrain;               /* an operator has released this host up to `epoch` */
    int64_t epoch;
    int decommissioned;        /* out of the cluster for good */
    int64_t seen_epoch;        /* the greatest epoch of a host state that the agent has taken; 0: none yet */
    int node_stopping;         /* every component of this node is being stopped: no new work, the signal follows */
};
/* 1 and *out; 0 and zeros while the agent has not said anything yet. */
XCE_API int xce_directives(const xce_heartbeat *hb, struct xce_directives *out);

struct xce_fact {
    int value;              /* 1 true, 0 false, -1 unknown; true ends at valid_until_ns by itself */
    int64_t term;           /* -1: not told */
    int64_t valid_until_ns; /* -1: not told */
};
/* 1 and *out where the agent states the fact; 0 and -1 in all fields where it does not. */
XCE_API int xce_fact(const xce_heartbeat *hb, const char *name, struct xce_fact *out);

enum xce_state {
    XCE_UNKNOWN, XCE_STOPPED, XCE_STARTING, XCE_RUNNING, XCE_STOPPING, XCE_KILLING, XCE_BACKOFF, XCE_EXITED, XCE_FAILED
};
struct xce_component {
    enum xce_state state;
    int64_t restarts;         /* -1: not told */
    int64_t expected_back_ms; /* -1: it does not wait for a restart */
};
/* 1 and *out where the agent states the component; 0 and XCE_UNKNOWN where it does not. */
XCE_API int xce_component(const xce_heartbeat *hb, const char *name, struct xce_component *out);

/* The host: name, instance id, boot id, roles separated by commas; "" while not told. Valid until the next poll. */
XCE_API const char *xce_node(const xce_heartbeat *hb);
XCE_API const char *xce_instance_id(const xce_heartbeat *hb);
XCE_API const char *xce_boot_id(const xce_heartbeat *hb);
XCE_API const char *xce_roles(const xce_heartbeat *hb);

/* The worst time that a restart and rejoin of this component takes; -1: not told. */
XCE_API int64_t xce_rejoin_budget_ms(const xce_heartbeat *hb);

/* ---- a leased program fences itself ------------------------------------------------------------------------------ */

/*
 * Bind this process to the leased fact that it depends on (controller.primary), under $XCE_TERM and until
 * $XCE_LEASE_VALID_UNTIL_NS, which the agent's renewals extend. -ENOENT: the agent gave none, so this process was not
 * started under a lease and must not do leased work.
 */
XCE_API int xce_fence(xce_heartbeat *hb, const char *fact);

/*
 * 1 while this process may do leased work, by the clock of this instant: ask before each write that must not be done
 * by two. 0 once the term changed or the fact was said to be false (for ever), after the end of the validity, without
 * xce_fence, and in a forked child.
 */
XCE_API int xce_lease_valid(const xce_heartbeat *hb);
XCE_API int64_t xce_lease_term(const xce_heartbeat *hb);           /* to be sent along with each write; -1 without xce_fence */
XCE_API int64_t xce_lease_valid_until_ns(const xce_heartbeat *hb); /* -1 without xce_fence */

/* The clock of all times here. */
XCE_API int64_t xce_boottime_ns(void);

#ifdef __cplusplus
}
#endif
#endif
