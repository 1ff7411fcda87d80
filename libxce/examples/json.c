/* See json.h. */
#include "json.h"

#include <string.h>

static const struct json none = {NULL, NULL};

/* ---- the end of a value: NULL where there is none ----------------------------------------------------------------- */

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }

static int hex_of(char c)
{
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Four hexadecimal digits; -1: they are none. */
static long unit_at(const char *at, const char *end)
{
    long unit = 0;
    int i;

    if (end - at < 4)
        return -1;
    for (i = 0; i < 4; i++) {
        if (hex_of(at[i]) < 0)
            return -1;
        unit = 16 * unit + hex_of(at[i]);
    }
    return unit;
}

/* Bytes of the UTF-8 character at `at`, as RFC 3629 has it; 0: there is none. */
static int character(const char *at, const char *end)
{
    unsigned char first = (unsigned char)*at, second;
    int length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2, i;

    if (length == 1)
        return 1;
    if (first < 0xc2 || first > 0xf4 || end - at < length)
        return 0;
    for (i = 1; i < length; i++)
        if (((unsigned char)at[i] & 0xc0) != 0x80)
            return 0;
    second = (unsigned char)at[1];
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90)
        || (first == 0xf4 && second > 0x8f))
        return 0; /* too long a form, half of a surrogate pair, beyond U+10FFFF */
    return length;
}

static const char *end_of_string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"';) {
        int n = character(at, end);

        if (n == 0 || (unsigned char)*at < 0x20)
            return NULL;
        if (*at == '\\') {
            if (end - at < 2 || memchr("\"\\/bfnrtu", at[1], 9) == NULL || (at[1] == 'u' && unit_at(at + 2, end) < 0))
                return NULL;
            n = at[1] == 'u' ? 6 : 2;
        }
        at += n;
    }
    return at < end ? at + 1 : NULL;
}

static const char *end_of_digits(const char *at, const char *end)
{
    const char *from = at;

    while (at < end && is_digit(*at))
        at++;
    return at > from ? at : NULL;
}

static const char *end_of_number(const char *at, const char *end)
{
    if (*at == '-')
        at++;
    at = at < end && *at == '0' ? at + 1 : end_of_digits(at, end);
    if (at != NULL && at < end && *at == '.')
        at = end_of_digits(at + 1, end);
    if (at != NULL && at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            at++;
        at = end_of_digits(at, end);
    }
    return at;
}

static const char *end_of_word(const char *at, const char *end, const char *word)
{
    size_t n = strlen(word);

    return (size_t)(end - at) >= n && memcmp(at, word, n) == 0 ? at + n : NULL;
}

static const char *end_of_value(const char *at, const char *end, int depth);

/* A member's name and the colon after it, with the space around them. */
static const char *end_of_name(const char *at, const char *end)
{
    if (at == end || *at != '"' || (at = end_of_string(at, end)) == NULL)
        return NULL;
    at = skip_space(at, end);
    return at < end && *at == ':' ? skip_space(at + 1, end) : NULL;
}

/* An object or an array: what stands between its brackets, parted by commas. */
static const char *end_of_many(const char *at, const char *end, int depth)
{
    char close = *at == '{' ? '}' : ']';

    at = skip_space(at + 1, end);
    if (at < end && *at == close)
        return at + 1;
    for (;; at = skip_space(at + 1, end)) {
        if (close == '}' && (at = end_of_name(at, end)) == NULL)
            return NULL;
        if ((at = end_of_value(at, end, depth)) == NULL)
            return NULL;
        at = skip_space(at, end);
        if (at < end && *at == close)
            return at + 1;
        if (at == end || *at != ',')
            return NULL;
    }
}

static const char *end_of_value(const char *at, const char *end, int depth)
{
    if (at == end)
        return NULL;
    switch (*at) {
    case '{':
    case '[':
        return depth < JSON_MAX_DEPTH ? end_of_many(at, end, depth + 1) : NULL;
    case '"':
        return end_of_string(at, end);
    case 't':
        return end_of_word(at, end, "true");
    case 'f':
        return end_of_word(at, end, "false");
    case 'n':
        return end_of_word(at, end, "null");
    default:
        return *at == '-' || is_digit(*at) ? end_of_number(at, end) : NULL;
    }
}

/* ---- the interface ------------------------------------------------------------------------------------------------ */

int json_read(const char *text, size_t n, struct json *out)
{
    const char *end = text + n;

    out->at = skip_space(text, end);
    out->end = end_of_value(out->at, end, 0);
    if (out->end != NULL && skip_space(out->end, end) == end)
        return 1;
    *out = none;
    return 0;
}

int json_is_object(struct json value) { return value.at != NULL && *value.at == '{'; }
int json_is_array(struct json value) { return value.at != NULL && *value.at == '['; }
int json_is_true(struct json value) { return value.at != NULL && *value.at == 't'; }

/* Whether the string that begins here is this name. Names of the gateway have no escapes. */
static int is_named(const char *at, const char *name)
{
    size_t n = strlen(name);

    return strncmp(at + 1, name, n) == 0 && at[1 + n] == '"';
}

struct json json_member(struct json object, const char *name)
{
    struct json found = none;
    const char *at, *value;

    if (!json_is_object(object))
        return none;
    for (at = skip_space(object.at + 1, object.end); *at == '"'; at = skip_space(at + 1, object.end)) {
        value = end_of_name(at, object.end);
        if (is_named(at, name)) {
            found.at = value;
            found.end = end_of_value(value, object.end, 0);
        }
        at = skip_space(end_of_value(value, object.end, 0), object.end);
        if (*at != ',')
            break;
    }
    return found;
}

struct json json_element(struct json array, size_t index)
{
    struct json found = none;
    const char *at;

    if (!json_is_array(array))
        return none;
    for (at = skip_space(array.at + 1, array.end); *at != ']'; at = skip_space(at + 1, array.end)) {
        const char *end = end_of_value(at, array.end, 0);

        if (index-- == 0) {
            found.at = at;
            found.end = end;
            break;
        }
        at = skip_space(end, array.end);
        if (*at != ',')
            break;
    }
    return found;
}

static size_t encode(unsigned long point, char *to)
{
    if (point < 0x80) {
        to[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        to[0] = (char)(0xc0 | point >> 6);
        to[1] = (char)(0x80 | (point & 0x3f));
        return 2;
    }
    if (point < 0x10000) {
        to[0] = (char)(0xe0 | point >> 12);
        to[1] = (char)(0x80 | (point >> 6 & 0x3f));
        to[2] = (char)(0x80 | (point & 0x3f));
        return 3;
    }
    to[0] = (char)(0xf0 | point >> 18);
    to[1] = (char)(0x80 | (point >> 12 & 0x3f));
    to[2] = (char)(0x80 | (point >> 6 & 0x3f));
    to[3] = (char)(0x80 | (point & 0x3f));
    return 4;
}

/* Decode the escape at `at`; returns what follows it. */
static const char *unescape(const char *at, const char *end, unsigned long *point)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    long unit, low;

    if (at[1] != 'u') {
        *point = (unsigned char)meant[strchr(letters, at[1]) - letters];
        return at + 2;
    }
    unit = unit_at(at + 2, end);
    at += 6;
    if (unit >= 0xd800 && unit < 0xdc00 && at[0] == '\\' && at[1] == 'u') {
        low = unit_at(at + 2, end);
        if (low >= 0xdc00 && low < 0xe000) {
            *point = 0x10000ul + ((unsigned long)(unit - 0xd800) << 10) + (unsigned long)(low - 0xdc00);
            return at + 6;
        }
    }
    *point = unit == 0 || (unit >= 0xd800 && unit < 0xe000) ? '?' : (unsigned long)unit;
    return at;
}

long json_string(struct json value, char *to, size_t size)
{
    const char *at, *end;
    long count = 0;
    size_t used = 0;

    to[0] = '\0';
    if (value.at == NULL || *value.at != '"')
        return -1;
    for (at = value.at + 1, end = value.end - 1; at < end; count++) {
        char one[4];
        size_t n;

        if (*at == '\\') {
            unsigned long point;

            at = unescape(at, end, &point);
            n = encode(point, one);
        } else {
            n = (size_t)character(at, end);
            memcpy(one, at, n);
            at += n;
        }
        if (used + n < size) {
            memcpy(to + used, one, n);
            used += n;
            to[used] = '\0';
        } else {
            size = 0; /* nothing after what did not fit */
        }
    }
    return count;
}

int64_t json_number(struct json value, int quoted)
{
    const char *at = value.at, *end = value.end;
    uint64_t n = 0;

    if (at == NULL)
        return -1;
    if (quoted && *at == '"') {
        at++;
        end--;
    }
    if (at == end || end - at > 19)
        return -1;
    for (; at < end; at++) {
        if (!is_digit(*at))
            return -1;
        n = 10 * n + (uint64_t)(*at - '0'); /* 19 digits fit in 64 bits */
    }
    return n > INT64_MAX ? -1 : (int64_t)n;
}
