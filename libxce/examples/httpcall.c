/* See httpcall.h. */
#define _POSIX_C_SOURCE 200809L

#include "httpcall.h"

#include "xce.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MAX_HEAD_LINE 256 /* of a header whose value is looked at */

static int is_digit(char c) { return c >= '0' && c <= '9'; }

int http_address_read(struct http_address *address, const char *text, size_t n)
{
    struct addrinfo hints, *found;
    char host[sizeof address->name], *port;

    memset(address, 0, sizeof *address);
    if (n >= sizeof address->name)
        return 0;
    memcpy(address->name, text, n);
    memcpy(host, address->name, sizeof host);
    port = strrchr(host, ':');
    if (port == NULL || port == host || !is_digit(port[1]) || strspn(port + 1, "0123456789") != strlen(port + 1))
        return 0;
    *port++ = '\0';
    text = host;
    if (host[0] == '[' && port[-2] == ']') {
        port[-2] = '\0';
        text++;
    }
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    if (strlen(port) > 5 || strtoul(port, NULL, 10) > 65535 || getaddrinfo(text, port, &hints, &found) != 0)
        return 0;
    memcpy(&address->at, found->ai_addr, found->ai_addrlen);
    address->size = found->ai_addrlen;
    freeaddrinfo(found);
    return 1;
}

static enum http_end fail(struct httpcall *call, const char *why)
{
    httpcall_close(call);
    snprintf(call->trouble, sizeof call->trouble, "%s", why);
    return HTTP_FAILED;
}

void httpcall_begin(struct httpcall *call, const struct http_address *address, const char *path, const char *body,
                    int64_t deadline_ns)
{
    int n;

    httpcall_close(call);
    call->deadline_ns = deadline_ns;
    call->sent = call->received = 0;
    call->trouble[0] = '\0';
    n = snprintf(call->request, sizeof call->request,
                 "POST %s HTTP/1.0\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %lu\r\n\r\n%s", path,
                 address->name, (unsigned long)strlen(body), body);
    if (n < 0 || (size_t)n >= sizeof call->request) {
        fail(call, "the request is too long");
        return;
    }
    call->request_n = (size_t)n;
    call->fd = socket(address->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (call->fd < 0 || (connect(call->fd, (const struct sockaddr *)&address->at, address->size) != 0 && errno != EINPROGRESS))
        fail(call, strerror(errno));
}

static int try_later(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

enum http_end httpcall_go_on(struct httpcall *call)
{
    if (call->fd < 0)
        return HTTP_FAILED;
    if (xce_boottime_ns() >= call->deadline_ns)
        return fail(call, "no answer in time");
    while (call->sent < call->request_n) { /* while it connects this is EAGAIN, and then tells what became of that */
        ssize_t n = send(call->fd, call->request + call->sent, call->request_n - call->sent, MSG_NOSIGNAL);

        if (n < 0)
            return try_later(errno) ? HTTP_PENDING : fail(call, strerror(errno));
        call->sent += (size_t)n;
    }
    while (call->received <= HTTP_MAX_ANSWER) {
        ssize_t n = recv(call->fd, call->bytes + call->received, sizeof call->bytes - call->received, 0);

        if (n < 0)
            return try_later(errno) ? HTTP_PENDING : fail(call, strerror(errno));
        if (n == 0) {
            httpcall_close(call);
            if (!http_answer_read(call->bytes, call->received, &call->answer))
                return fail(call, "its answer is not HTTP, or not whole");
            return HTTP_ANSWERED;
        }
        call->received += (size_t)n;
    }
    return fail(call, "its answer is longer than 65536 bytes");
}

int httpcall_fd(const struct httpcall *call, short *events)
{
    *events = call->sent < call->request_n ? POLLOUT : POLLIN;
    return call->fd;
}

void httpcall_close(struct httpcall *call)
{
    if (call->fd >= 0)
        close(call->fd);
    call->fd = -1;
}

/* ---- what an answer says ------------------------------------------------------------------------------------------ */

/* The first place of `what`; NULL: there is none before `end`. */
static const char *find(const char *at, const char *end, const char *what)
{
    size_t n = strlen(what);

    for (; (size_t)(end - at) >= n; at++)
        if (memcmp(at, what, n) == 0)
            return at;
    return NULL;
}

/* Whether a header line contradicts a body of `n` bytes that ends with the connection. */
static int contradicts(const char *at, const char *end, size_t n)
{
    static const char length[] = "content-length:", encoding[] = "transfer-encoding:";
    char line[MAX_HEAD_LINE], expected[24];
    const char *value;
    size_t size = (size_t)(end - at) < sizeof line ? (size_t)(end - at) : sizeof line - 1;

    memcpy(line, at, size);
    line[size] = '\0';
    if (strncasecmp(line, encoding, sizeof encoding - 1) == 0)
        return 1;
    if (strncasecmp(line, length, sizeof length - 1) != 0)
        return 0;
    value = line + sizeof length - 1;
    value += strspn(value, " \t");
    snprintf(expected, sizeof expected, "%lu", (unsigned long)n);
    return strncmp(value, expected, strlen(expected)) != 0
           || value[strlen(expected) + strspn(value + strlen(expected), " \t")] != '\0';
}

int http_answer_read(const char *bytes, size_t n, struct http_answer *out)
{
    const char *end = bytes + n, *at, *head = find(bytes, end, "\r\n\r\n"), *stop;

    if (head == NULL || head - bytes < 12 || memcmp(bytes, "HTTP/1.", 7) != 0 || !is_digit(bytes[7]) || bytes[8] != ' '
        || !is_digit(bytes[9]) || !is_digit(bytes[10]) || !is_digit(bytes[11]) || (bytes[12] != ' ' && bytes[12] != '\r'))
        return 0;
    out->status = 100 * (bytes[9] - '0') + 10 * (bytes[10] - '0') + bytes[11] - '0';
    out->body = head + 4;
    out->n = (size_t)(end - out->body);
    for (at = bytes; at < head; at = stop + 2) {
        stop = find(at, head + 2, "\r\n");
        if (contradicts(at, stop, out->n))
            return 0;
    }
    return 1;
}
