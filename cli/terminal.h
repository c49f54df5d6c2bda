/* What displays on a terminal share: is it one, how wide, durations, and stopping on a signal. */
#ifndef BLURRY_CLI_TERMINAL_H
#define BLURRY_CLI_TERMINAL_H
#include <stddef.h>
#include <stdio.h>

int terminal_is(FILE *to);    /* whether lines can be refreshed there */
int terminal_width(FILE *to); /* columns; 80 where it is not known */

/* 3661 s as "1:01:01", 61 s as "1:01"; "-:--" where it is not known. */
void terminal_duration(char *text, size_t size, double seconds);

/* From now on SIGINT and SIGTERM only ask for an end; a second one ends the process at once. */
void terminal_watch_signals(void);
int terminal_stop_wanted(void);

#endif
