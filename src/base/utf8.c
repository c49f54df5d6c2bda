#include "base/utf8.h"

size_t utf8_decode(const char *text, size_t length, uint32_t *code)
{
    const uint8_t *b = (const uint8_t *)text;
    if (b[0] < 0x80) {
        *code = b[0];
        return 1;
    }
    size_t n = b[0] >= 0xf0 ? 4 : b[0] >= 0xe0 ? 3 : 2;
    if (b[0] < 0xc2 || b[0] > 0xf4 || length < n) return 0;
    uint32_t c = b[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((b[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (b[i] & 0x3fu);
    }
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return 0;
    *code = c;
    return n;
}

bool utf8_valid(const char *text, size_t length)
{
    uint32_t code;
    for (size_t i = 0, n; i < length; i += n)
        if (!(n = utf8_decode(text + i, length - i, &code))) return false;
    return true;
}

bool utf8_printable(const char *text, size_t length)
{
    uint32_t c;
    for (size_t i = 0, n; i < length; i += n) {
        if (!(n = utf8_decode(text + i, length - i, &c))) return false;
        if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe ||
            c == 0xffff)
            return false;
    }
    return true;
}
