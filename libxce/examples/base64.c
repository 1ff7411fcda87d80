/* See base64.h. */
#include "base64.h"

#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(char *to, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t n = strlen(text);

    for (; n > 0; n -= n < 3 ? n : 3, at += 3) {
        unsigned three = (unsigned)at[0] << 16 | (unsigned)(n > 1 ? at[1] : 0) << 8 | (unsigned)(n > 2 ? at[2] : 0);

        *to++ = digits[three >> 18];
        *to++ = digits[three >> 12 & 63];
        *to++ = n > 1 ? digits[three >> 6 & 63] : '=';
        *to++ = n > 2 ? digits[three & 63] : '=';
    }
    *to = '\0';
}

long base64_decode(char *text)
{
    size_t n = strlen(text), padding = 0, i;
    char *to = text;

    if (n % 4 != 0)
        return -1;
    while (padding < 2 && padding < n && text[n - 1 - padding] == '=')
        padding++;
    for (i = 0; i < n; i += 4) {
        unsigned four = 0;
        size_t j;

        for (j = i; j < i + 4; j++) {
            const char *digit = j < n - padding ? strchr(digits, text[j]) : digits;

            if (digit == NULL)
                return -1;
            four = four << 6 | (unsigned)(digit - digits);
        }
        *to++ = (char)(four >> 16 & 0xff);
        *to++ = (char)(four >> 8 & 0xff);
        *to++ = (char)(four & 0xff);
    }
    return (long)(n / 4 * 3 - padding);
}
