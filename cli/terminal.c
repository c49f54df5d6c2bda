/* Terminals and signals: see terminal.h. */
#include "cli/terminal.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int terminal_is(FILE *to)
{
    const char *kind = getenv("TERM");
    return isatty(fileno(to)) && (!kind || strcmp(kind, "dumb"));
}

int terminal_width(FILE *to)
{
    struct winsize size;
    if (ioctl(fileno(to), TIOCGWINSZ, &size) == 0 && size.ws_col > 20) return size.ws_col;
    return 80;
}

void terminal_duration(char *text, size_t size, double seconds)
{
    if (!isfinite(seconds) || seconds < 0) {
        snprintf(text, size, "-:--");
        return;
    }
    long long s = (long long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, size, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, size, "%lld:%02lld", s / 60, s % 60);
}

static volatile sig_atomic_t stop_wanted;

static void on_signal(int number)
{
    stop_wanted = 1;
    signal(number, SIG_DFL); /* a second one ends the process at once */
}

void terminal_watch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int terminal_stop_wanted(void)
{
    return stop_wanted;
}
