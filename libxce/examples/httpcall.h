/*
 * One HTTP request over a connection of its own, without waiting: HTTP/1.0, so that the end of the answer is the end of
 * the connection and no body comes in chunks. Every call ends by its deadline, with an answer or with what was wrong.
 */
#ifndef HTTPCALL_H
#define HTTPCALL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define HTTP_MAX_REQUEST 8192
#define HTTP_MAX_ANSWER 65536 /* what is asked for is a few hundred bytes */

struct http_address {
    struct sockaddr_storage at;
    socklen_t size;
    char name[72]; /* HOST:PORT, as it was given */
};

enum http_end { HTTP_PENDING, HTTP_ANSWERED, HTTP_FAILED };

struct http_answer {
    int status;
    const char *body;
    size_t n;
};

struct httpcall {
    int fd; /* -1: none is under way */
    int64_t deadline_ns;
    size_t request_n, sent, received;
    struct http_answer answer; /* once HTTP_ANSWERED was returned, until the next call */
    char trouble[96];          /* once HTTP_FAILED was returned */
    char request[HTTP_MAX_REQUEST];
    char bytes[HTTP_MAX_ANSWER + 1];
};

/* Read HOST:PORT or [IPv6]:PORT, numeric: to look a name up would wait. 1, or 0 where it is none. */
int http_address_read(struct http_address *address, const char *text, size_t n);

/* Begin to POST a JSON text. Whatever is wrong is told by httpcall_go_on. */
void httpcall_begin(struct httpcall *call, const struct http_address *address, const char *path, const char *body,
                    int64_t deadline_ns);

/* Send and receive what can be without waiting. */
enum http_end httpcall_go_on(struct httpcall *call);

/* What to wait for in poll(2); -1: nothing. */
int httpcall_fd(const struct httpcall *call, short *events);

/* Forget it. Whether the server does what was asked is open. */
void httpcall_close(struct httpcall *call);

/* Take a whole answer apart; 0: it is not HTTP, or not whole. */
int http_answer_read(const char *bytes, size_t n, struct http_answer *out);

#endif
