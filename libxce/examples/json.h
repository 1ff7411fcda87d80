/*
 * As much of JSON (RFC 8259) as an answer of etcd's needs: a text is judged as a whole, then looked into. Nothing is
 * copied or allocated. Of two members with one name the last counts.
 */
#ifndef JSON_H
#define JSON_H

#include <stddef.h>
#include <stdint.h>

#define JSON_MAX_DEPTH 32

/* One value where it stands in its text; `at` NULL: there is none. */
struct json {
    const char *at, *end;
};

/* 1 and *out where the text is one whole value, in UTF-8; else 0 and none. */
int json_read(const char *text, size_t n, struct json *out);

/* Parts of a value that json_read has judged; none where it has no such part, or is of another kind. */
struct json json_member(struct json object, const char *name);
struct json json_element(struct json array, size_t index);

int json_is_object(struct json value);
int json_is_array(struct json value);
int json_is_true(struct json value);

/*
 * A string: how many characters it has, -1: it is none. What fits of it, decoded, is put into `to`; a half of a surrogate
 * pair and U+0000 become a `?`.
 */
long json_string(struct json value, char *to, size_t size);

/* A number without sign, fraction and exponent, or with `quoted` a string of such digits; -1: it is none up to 2^63 - 1. */
int64_t json_number(struct json value, int quoted);

#endif
