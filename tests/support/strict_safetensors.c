#include "support/strict_safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct text {
    uint8_t *bytes; /* unescaped */
    size_t length;
} text;

typedef struct span {
    uint64_t begin, end;
} span;

typedef struct cursor {
    const uint8_t *at, *end;
} cursor;

static bool same(text a, const char *b)
{
    return a.length == strlen(b) && !memcmp(a.bytes, b, a.length);
}

static void blanks(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) c->at++;
}

/* Skips blanks, then expects this character. */
static bool take(cursor *c, char wanted)
{
    blanks(c);
    if (c->at == c->end || *c->at != (uint8_t)wanted) return false;
    c->at++;
    return true;
}

static bool peek(cursor *c, char wanted)
{
    blanks(c);
    return c->at < c->end && *c->at == (uint8_t)wanted;
}

static int hex4(cursor *c)
{
    int value = 0;
    for (int i = 0; i < 4; i++, c->at++) {
        if (c->at == c->end) return -1;
        int d = *c->at, digit = d >= '0' && d <= '9'   ? d - '0'
                                : d >= 'a' && d <= 'f' ? d - 'a' + 10
                                : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                                       : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void emit(text *t, uint32_t code)
{
    uint8_t *out = t->bytes + t->length;
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        t->length += 1;
    } else if (code < 0x800) {
        out[0] = (uint8_t)(0xc0 | code >> 6), out[1] = (uint8_t)(0x80 | (code & 63));
        t->length += 2;
    } else if (code < 0x10000) {
        out[0] = (uint8_t)(0xe0 | code >> 12), out[1] = (uint8_t)(0x80 | (code >> 6 & 63));
        out[2] = (uint8_t)(0x80 | (code & 63));
        t->length += 3;
    } else {
        out[0] = (uint8_t)(0xf0 | code >> 18), out[1] = (uint8_t)(0x80 | (code >> 12 & 63));
        out[2] = (uint8_t)(0x80 | (code >> 6 & 63)), out[3] = (uint8_t)(0x80 | (code & 63));
        t->length += 4;
    }
}

static bool escape(cursor *c, text *t)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (c->at == c->end) return false;
    int kind = *c->at++;
    const char *known = kind ? strchr(from, kind) : NULL;
    if (known) {
        emit(t, (uint8_t)to[known - from]);
        return true;
    }
    if (kind != 'u') return false;
    int code = hex4(c);
    if (code <= 0 || (code >= 0xdc00 && code <= 0xdfff)) return false; /* zero, or a low surrogate alone */
    if (code >= 0xd800 && code <= 0xdbff) {
        if (c->end - c->at < 2 || c->at[0] != '\\' || c->at[1] != 'u') return false;
        c->at += 2;
        int low = hex4(c);
        if (low < 0xdc00 || low > 0xdfff) return false;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    emit(t, (uint32_t)code);
    return true;
}

/* One well-formed UTF-8 character of two to four bytes, by the ranges of the Unicode standard's table 3-7. */
static bool wide(cursor *c, text *t)
{
    static const uint8_t rows[][4] = {/* first byte from, to; second byte from, to */
                                      {0xc2, 0xdf, 0x80, 0xbf}, {0xe0, 0xe0, 0xa0, 0xbf},
                                      {0xe1, 0xec, 0x80, 0xbf}, {0xed, 0xed, 0x80, 0x9f},
                                      {0xee, 0xef, 0x80, 0xbf}, {0xf0, 0xf0, 0x90, 0xbf},
                                      {0xf1, 0xf3, 0x80, 0xbf}, {0xf4, 0xf4, 0x80, 0x8f}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        if (c->at[0] < rows[r][0] || c->at[0] > rows[r][1]) continue;
        ptrdiff_t n = rows[r][0] < 0xe0 ? 2 : rows[r][0] < 0xf0 ? 3 : 4;
        if (c->end - c->at < n || c->at[1] < rows[r][2] || c->at[1] > rows[r][3]) return false;
        for (ptrdiff_t i = 2; i < n; i++)
            if (c->at[i] < 0x80 || c->at[i] > 0xbf) return false;
        memcpy(t->bytes + t->length, c->at, (size_t)n);
        t->length += (size_t)n;
        c->at += n;
        return true;
    }
    return false;
}

/* A string; the caller frees t->bytes in every case. */
static bool string(cursor *c, text *t)
{
    *t = (text){malloc((size_t)(c->end - c->at) + 8), 0};
    if (!take(c, '"')) return false;
    while (c->at < c->end && *c->at != '"') {
        if (*c->at == '\\') {
            c->at++;
            if (!escape(c, t)) return false;
        } else if (*c->at >= 0x80) {
            if (!wide(c, t)) return false;
        } else {
            if (*c->at < 0x20) return false;
            t->bytes[t->length++] = *c->at++;
        }
    }
    return take(c, '"');
}

/* A whole number from 0 to the largest int64. */
static bool whole(cursor *c, uint64_t *value)
{
    blanks(c);
    bool minus = c->at < c->end && *c->at == '-';
    c->at += minus;
    const uint8_t *first = c->at;
    unsigned __int128 sum = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        sum = sum * 10 + (unsigned)(*c->at - '0');
        if (sum > INT64_MAX) return false;
    }
    if (c->at == first || (*first == '0' && c->at - first > 1) || (minus && sum)) return false;
    if (c->at < c->end && strchr(".eE", *c->at) && *c->at) return false;
    *value = (uint64_t)sum;
    return true;
}

/* [n, n, ...]; at most `most` numbers. */
static bool numbers(cursor *c, uint64_t *values, size_t most, size_t *count)
{
    *count = 0;
    if (!take(c, '[')) return false;
    if (peek(c, ']')) return take(c, ']');
    do {
        if (*count == most || !whole(c, &values[(*count)++])) return false;
    } while (take(c, ','));
    return take(c, ']');
}

static uint64_t width_of(text t)
{
    static const char *const names[][10] = {
        {"F64", "I64", "U64"},
        {"F32", "I32", "U32"},
        {"F16", "BF16", "I16", "U16"},
        {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}};
    for (size_t w = 0; w < 4; w++)
        for (size_t i = 0; names[w][i]; i++)
            if (same(t, names[w][i])) return 8u >> w;
    return 0;
}

/* {"dtype": ..., "shape": ..., "data_offsets": ...} in any order, each once. */
static bool tensor(cursor *c, span *place)
{
    uint64_t shape[32], offsets[2] = {0}, width = 0;
    size_t rank = 0, two = 0;
    int seen = 0;
    if (!take(c, '{')) return false;
    do {
        text key, value;
        bool good = string(c, &key) && take(c, ':');
        int bit = !good                       ? 0
                  : same(key, "dtype")        ? 1
                  : same(key, "shape")        ? 2
                  : same(key, "data_offsets") ? 4
                                              : 0;
        free(key.bytes);
        if (!bit || (seen & bit)) return false;
        seen |= bit;
        if (bit == 1) {
            good = string(c, &value);
            width = good ? width_of(value) : 0;
            free(value.bytes);
            good = good && width;
        } else {
            good = bit == 2 ? numbers(c, shape, 32, &rank) : numbers(c, offsets, 2, &two);
        }
        if (!good) return false;
    } while (take(c, ','));
    if (!take(c, '}') || seen != 7 || two != 2) return false;
    unsigned __int128 size = width, count = 1;
    bool empty = false;
    for (size_t i = 0; i < rank; i++) {
        if (shape[i]) count *= shape[i];
        if (count > INT64_MAX) return false;
        empty = empty || !shape[i];
    }
    size = empty ? 0 : size * count;
    *place = (span){offsets[0], offsets[1]};
    return offsets[0] <= offsets[1] && offsets[1] - offsets[0] == size;
}

static bool metadata(cursor *c);

static int order(const void *a, const void *b)
{
    const text *x = a, *y = b;
    size_t n = x->length < y->length ? x->length : y->length;
    int o = n ? memcmp(x->bytes, y->bytes, n) : 0;
    return o ? o : (x->length > y->length) - (x->length < y->length);
}

static int order_spans(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* {"key": value, ...}; all keys distinct. With `spans`, values are tensors (and the metadata); else strings.
 */
static bool object(cursor *c, span *spans, size_t *span_count)
{
    size_t most = (size_t)(c->end - c->at) / 2 + 1, count = 0;
    text *keys = calloc(most, sizeof *keys);
    bool good = take(c, '{'), more = good && !peek(c, '}');
    while (good && more) {
        text *key = &keys[count++];
        good = string(c, key) && take(c, ':');
        if (good && !spans) {
            text value;
            good = string(c, &value);
            free(value.bytes);
        } else if (good) {
            good = same(*key, "__metadata__") ? metadata(c) : tensor(c, &spans[(*span_count)++]);
        }
        more = good && take(c, ',');
    }
    good = good && take(c, '}');
    qsort(keys, count, sizeof *keys, order);
    for (size_t i = 1; i < count && good; i++) good = order(&keys[i - 1], &keys[i]) != 0;
    for (size_t i = 0; i < count; i++) free(keys[i].bytes);
    free(keys);
    return good;
}

static bool metadata(cursor *c)
{
    return object(c, NULL, NULL);
}

bool strict_safetensors(const void *data, size_t length)
{
    const uint8_t *bytes = data;
    if (length < 9) return false;
    unsigned __int128 n = 0;
    for (int i = 7; i >= 0; i--) n = n * 256 + bytes[i];
    if (n > 100000000 || n > length - 8 || bytes[8] != '{') return false;
    cursor c = {bytes + 8, bytes + 8 + (size_t)n};
    if (c.at == c.end) return false;
    span *spans = calloc((size_t)n / 2 + 1, sizeof *spans);
    size_t count = 0;
    bool good = object(&c, spans, &count);
    blanks(&c);
    good = good && c.at == c.end;
    qsort(spans, count, sizeof *spans, order_spans);
    uint64_t reached = 0;
    for (size_t i = 0; i < count && good; i++) {
        good = spans[i].begin == reached;
        reached = spans[i].end;
    }
    free(spans);
    return good && reached == length - 8 - (size_t)n;
}
