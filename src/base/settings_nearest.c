/* Which option somebody meant: the fewest edits; where those are many, the words of the key help. */
#include "base/settings_table.h"

#include <string.h>

enum { KEY_LONGEST = 63 }; /* longer keys are compared by their beginning */

/* Edits (insert, delete, replace, swap neighbours) that turn a into b. */
static int edit_distance(const char *a, const char *b)
{
    int n = (int)strnlen(a, KEY_LONGEST), m = (int)strnlen(b, KEY_LONGEST);
    int rows[3][KEY_LONGEST + 1]; /* the last three rows of the table, by i modulo 3 */
    for (int i = 0; i <= n; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        for (int j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                row[j] = i + j;
                continue;
            }
            int best = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best) best = above[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            int swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && above2[j - 2] + 1 < best) best = above2[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[n % 3][m];
}

static const char separators[] = "_-. ";

/* Whether `name` is a word of `key`, as in batch of batch_size. */
static bool has_word(const char *key, const char *name)
{
    size_t length = strlen(name), n;
    for (const char *word = key; *word; word += n + (word[n] != 0)) {
        n = strcspn(word, separators);
        if (n == length && !strncmp(word, name, n)) return true;
    }
    return false;
}

/* Whether every word of `name` is one of `key`, as in kv_heads of heads_kv. */
static bool has_all_words(const char *key, const char *name)
{
    char word[KEY_LONGEST + 1];
    size_t n;
    for (; *name; name += n + (name[n] != 0)) {
        n = strcspn(name, separators);
        if (n >= sizeof word) return false;
        memcpy(word, name, n);
        word[n] = 0;
        if (!has_word(key, word)) return false;
    }
    return true;
}

/* Whether `name` is made of the first letters of the key's words, as lr of learning_rate. */
static bool is_initials(const char *key, const char *name)
{
    for (; *key && *name; name++) {
        if (*key != *name) return false;
        key += strcspn(key, separators);
        key += strspn(key, separators);
    }
    return !*key && !*name;
}

const char *blurry_settings_nearest(const char *key)
{
    const char *nearest = settings_table[0].info.name, *by_words = NULL;
    int fewest = 1 << 20;
    for (size_t i = 0; key && i < settings_table_count; i++) {
        const char *name = settings_table[i].info.name;
        int edits = edit_distance(key, name);
        if (edits < fewest) fewest = edits, nearest = name;
        bool meant = is_initials(key, name) || has_all_words(key, name);
        if (meant && (!by_words || strlen(name) > strlen(by_words))) by_words = name;
    }
    int length = key ? (int)strnlen(key, KEY_LONGEST) : 0;
    bool typo = fewest <= 2 || fewest <= length / 4;
    return typo || !by_words ? nearest : by_words;
}
