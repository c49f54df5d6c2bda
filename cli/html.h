/* Text into HTML. Whatever comes from a file or the command line goes through here. */
#ifndef BLURRY_CLI_HTML_H
#define BLURRY_CLI_HTML_H
#include <stddef.h>
#include <stdio.h>

/* Escapes markup and quotes; drops control characters but newline and tab; bytes that are not UTF-8 become
 * U+FFFD. */
void html_text(FILE *to, const char *text);

/* The same for a word of a POSIX shell command shown in the page: quoted where it needs to be. */
void html_shell_word(FILE *to, const char *word);

/* bytes as a percent-encoded data: address of the given type. */
void html_data_address(FILE *to, const char *type, const char *bytes, size_t size);

#endif
