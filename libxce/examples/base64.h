/* Base64 (RFC 4648, section 4): etcd's gateway has keys and values in it. */
#ifndef BASE64_H
#define BASE64_H

#define BASE64_SIZE(n) (((n) + 2) / 3 * 4 + 1) /* of so many bytes, encoded */

/* `to` has BASE64_SIZE of the text's length. */
void base64_encode(char *to, const char *text);

/* Decode a string in place; the number of bytes, -1: it is not base64, or not whole. */
long base64_decode(char *text);

#endif
