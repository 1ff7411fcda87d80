/* Reads tests/vectors/heartbeat.txt, whose own comment says what the lines mean. For tests alone: it exits on trouble. */
#ifndef VECTORFILE_H
#define VECTORFILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VECTOR_RECORDS 8
#define VECTOR_EXPECTED 24
#define VECTOR_BYTES 9000

struct vector {
    char name[128];
    char from[16];
    int malformed, sends;
    char set_status[256];
    char records[VECTOR_RECORDS][VECTOR_BYTES];
    size_t sizes[VECTOR_RECORDS];
    int count;
    char keys[VECTOR_EXPECTED][160];
    char values[VECTOR_EXPECTED][256];
    int expected;
};

struct vectors {
    FILE *file;
    int line;
    char text[VECTOR_BYTES]; /* the line read last: the first one of the next case */
};

static void vector_fail(const struct vectors *from, const char *what)
{
    fprintf(stderr, "vectors, line %d: %s\n", from->line, what);
    exit(2);
}

/* Turn the escapes of `text` into bytes, in place; returns how many there are. A zero byte ends the text. */
static size_t vector_bytes(char *text)
{
    size_t n = 0;
    const char *at;

    for (at = text; *at; at++) {
        if (*at != '\\') {
            text[n++] = *at;
        } else if (*++at == 'n') {
            text[n++] = '\n';
        } else if (*at == 'x') {
            char hex[3] = {at[1], at[2], '\0'};

            text[n++] = (char)strtol(hex, NULL, 16);
            at += 2;
        } else {
            text[n++] = *at;
        }
    }
    text[n] = '\0';
    return n;
}

static void vector_add(const struct vectors *from, struct vector *out, const char *bytes, size_t n)
{
    size_t *size = &out->sizes[out->count - 1];

    if (out->count < 1 || *size + n > VECTOR_BYTES)
        vector_fail(from, "no record, or one that is too long");
    memcpy(out->records[out->count - 1] + *size, bytes, n);
    *size += n;
}

static void vector_line(const struct vectors *from, struct vector *out, const char *word, char *rest)
{
    long n = strtol(rest, NULL, 10), i;
    char name[32];

    if (strcmp(word, "from") == 0) {
        snprintf(out->from, sizeof out->from, "%s", rest);
    } else if (strcmp(word, "record") == 0) {
        if (out->count == VECTOR_RECORDS)
            vector_fail(from, "too many records");
        out->count++;
        vector_add(from, out, rest, vector_bytes(rest));
    } else if (strcmp(word, "more") == 0) {
        vector_add(from, out, rest, vector_bytes(rest));
    } else if (strcmp(word, "times") == 0) {
        char *text = strchr(rest, ' ') + 1;
        size_t size = vector_bytes(text);

        for (i = 0; i < n; i++)
            vector_add(from, out, text, size);
    } else if (strcmp(word, "keys") == 0 || strcmp(word, "leases") == 0) {
        for (i = 0; i < n; i++) {
            snprintf(name, sizeof name, *word == 'k' ? "K%ld=\n" : "LEASE.l%ld=lost\n", i);
            vector_add(from, out, name, strlen(name));
        }
    } else if (strcmp(word, "malformed") == 0) {
        out->malformed = 1;
    } else if (strcmp(word, "sends") == 0) {
        out->sends = 1;
    } else if (strcmp(word, "set") == 0 && strncmp(rest, "status ", 7) == 0) {
        vector_bytes(rest);
        snprintf(out->set_status, sizeof out->set_status, "%s", rest + 7);
    } else if (strcmp(word, "is") == 0) {
        char *value = strchr(rest, ' ');

        if (out->expected == VECTOR_EXPECTED)
            vector_fail(from, "too many expectations");
        if (value != NULL)
            *value++ = '\0';
        vector_bytes(value ? value : rest);
        snprintf(out->keys[out->expected], sizeof out->keys[0], "%s", rest);
        snprintf(out->values[out->expected++], sizeof out->values[0], "%s", value ? value : "");
    } else {
        vector_fail(from, "an unknown word");
    }
}

static void vector_open(struct vectors *from, const char *path)
{
    memset(from, 0, sizeof *from);
    from->file = fopen(path, "r");
    if (from->file == NULL) {
        perror(path);
        exit(2);
    }
}

/* Read the next case; 0 at the end of the file, which is closed then. */
static int vector_next(struct vectors *from, struct vector *out)
{
    memset(out, 0, sizeof *out);
    do {
        char *text = from->text, *rest;

        text[strcspn(text, "\n")] = '\0';
        if (*text == '\0' || *text == '#')
            continue;
        rest = strchr(text, ' ');
        if (rest != NULL)
            *rest++ = '\0';
        if (strcmp(text, "case") == 0) {
            if (out->name[0]) { /* put it back */
                rest[-1] = ' ';
                return 1;
            }
            snprintf(out->name, sizeof out->name, "%s", rest);
        } else {
            vector_line(from, out, text, rest ? rest : text + strlen(text));
        }
        *text = '\0';
    } while (from->line++, fgets(from->text, sizeof from->text, from->file) != NULL);
    if (out->name[0])
        return 1;
    fclose(from->file);
    return 0;
}

#endif
