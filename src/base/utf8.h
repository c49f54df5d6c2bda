/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef BLURRY_BASE_UTF8_H
#define BLURRY_BASE_UTF8_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one character of the `length` > 0 bytes at `text`; returns its bytes, 0 when they are not valid. */
size_t utf8_decode(const char *text, size_t length, uint32_t *code);

bool utf8_valid(const char *text, size_t length);

/* Valid and of printable characters only: no control characters, no line or paragraph separators, no
 * byte-order mark. Such text can go into messages, YAML and reports as it is. */
bool utf8_printable(const char *text, size_t length);

#endif
