#include "cli/html.h"

#include <string.h>

/* Length of the well-formed UTF-8 sequence at `s` (shortest form, no surrogates, up to U+10FFFF), 0: not one.
 */
static size_t utf8_length(const unsigned char *s)
{
    if (s[0] < 0x80) return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf) return (s[1] & 0xc0) == 0x80 ? 2 : 0;
    if ((s[0] & 0xf0) == 0xe0) {
        if ((s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80) return 0;
        if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)) return 0;
        return 3;
    }
    if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        if ((s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80 || (s[3] & 0xc0) != 0x80) return 0;
        if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
        return 4;
    }
    return 0;
}

void html_text(FILE *to, const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t n = utf8_length(s);
        if (n == 0) {
            fputs("\xef\xbf\xbd", to);
            s++;
            continue;
        }
        int c1_control = n == 2 && s[0] == 0xc2 && s[1] < 0xa0;
        switch (*s) {
        case '&':
            fputs("&amp;", to);
            break;
        case '<':
            fputs("&lt;", to);
            break;
        case '>':
            fputs("&gt;", to);
            break;
        case '"':
            fputs("&quot;", to);
            break;
        case '\'':
            fputs("&#39;", to);
            break;
        default:
            if ((*s >= 0x20 && *s != 0x7f && !c1_control) || *s == '\n' || *s == '\t') fwrite(s, 1, n, to);
        }
        s += n;
    }
}

void html_shell_word(FILE *to, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,=:+@%";
    if (*word && strspn(word, plain) == strlen(word)) {
        html_text(to, word);
        return;
    }
    html_text(to, "'");
    for (const char *c = word; *c;) {
        size_t n = strcspn(c, "'");
        char piece[256];
        if (n == 0) {
            html_text(to, "'\\''");
            c++;
            continue;
        }
        if (n >= sizeof piece) n = sizeof piece - 1;
        /* do not cut inside a UTF-8 sequence */
        while (c[n] && n > 1 && ((unsigned char)c[n] & 0xc0) == 0x80) n--;
        memcpy(piece, c, n);
        piece[n] = 0;
        html_text(to, piece);
        c += n;
    }
    html_text(to, "'");
}

void html_data_address(FILE *to, const char *type, const char *bytes, size_t size)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,=:/";
    fprintf(to, "data:%s;charset=utf-8,", type);
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] && strchr(plain, bytes[i]))
            fputc(bytes[i], to);
        else
            fprintf(to, "%%%02X", (unsigned)(unsigned char)bytes[i]);
    }
}
