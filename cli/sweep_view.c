/* The display of a sweep: see sweep_view.h. */
#include "cli/sweep_view.h"
#include "blurry/ranks.h"
#include "cli/terminal.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { ROWS_MAX = 40 };

void sweep_view_open(sweep_view *view, const blurry_sweep *sweep, int quiet)
{
    *view = (sweep_view){.sweep = sweep, .to = stdout, .quiet = quiet};
    /* mpirun gives its ranks a terminal of its own and passes on what they write line by line. */
    view->terminal = terminal_is(stdout) && blurry_ranks_size() < 2;
    terminal_watch_signals();
}

static void entry_name(const sweep_view *view, int64_t index, char *text, size_t size)
{
    blurry_sweep_entry entry;
    if (blurry_sweep_at(view->sweep, index, &entry) != BLURRY_OK)
        snprintf(text, size, "?");
    else
        snprintf(text, size, "%s%s%s", entry.group, *entry.label ? " " : "", entry.label);
}

/* ---- lines, for files and pipes ---- */
static void print_event(const sweep_view *view, const blurry_sweep_progress *p)
{
    char name[256], eta[32], best[32] = "-";
    entry_name(view, p->entry, name, sizeof name);
    terminal_duration(eta, sizeof eta, p->eta_seconds);
    if (isfinite(p->best)) snprintf(best, sizeof best, "%.4f", p->best);
    long long ended = (long long)(p->done + p->diverged + p->failed);
    if (p->event == BLURRY_SWEEP_REQUEUED)
        fprintf(view->to, "again    %s: %s\n", name, p->reason);
    else
        fprintf(view->to, "%lld/%lld %s  %s  best %s  %s  %.1f s  ETA %s\n", ended, (long long)p->total,
                p->state, name, best, p->reason, p->entry_seconds, eta);
    fflush(view->to);
}

/* ---- the block on a terminal ---- */
typedef struct block {
    sweep_view *view;
    int width, lines;
} block;

static void row(block *b, const char *text)
{
    fprintf(b->view->to, "%.*s\033[K\n", b->width, text);
    b->lines++;
}

static void head_row(block *b, const blurry_sweep_progress *p)
{
    char text[512], eta[32], spent[32], extra[160] = "";
    terminal_duration(eta, sizeof eta, p->eta_seconds);
    terminal_duration(spent, sizeof spent, p->seconds);
    size_t n = 0;
    if (p->diverged)
        n += (size_t)snprintf(extra + n, sizeof extra - n, ", %lld diverged", (long long)p->diverged);
    if (p->failed) n += (size_t)snprintf(extra + n, sizeof extra - n, ", %lld failed", (long long)p->failed);
    if (p->elsewhere)
        snprintf(extra + n, sizeof extra - n, ", %lld in other processes", (long long)p->elsewhere);
    snprintf(text, sizeof text, "%s: %lld of %lld done, %lld running%s  %s  ETA %s",
             blurry_sweep_name(b->view->sweep), (long long)p->done, (long long)p->total,
             (long long)p->running, extra, spent, eta);
    row(b, text);
}

static void group_row(block *b, const blurry_sweep_group *group)
{
    char text[512], name[256] = "";
    if (group->total == 0) return;
    if (group->best_entry >= 0) {
        entry_name(b->view, group->best_entry, name, sizeof name);
        snprintf(text, sizeof text, "  %-12s %4lld/%-4lld best %.4f  %s", group->name, (long long)group->done,
                 (long long)group->total, group->best, name + strlen(group->name));
    } else
        snprintf(text, sizeof text, "  %-12s %4lld/%-4lld", group->name, (long long)group->done,
                 (long long)group->total);
    row(b, text);
}

static void run_row(block *b, const blurry_sweep_running *run)
{
    enum { BAR = 10 };
    char text[512], name[256], bar[BAR + 1], accuracy[32] = "";
    int filled = run->steps > 0 ? (int)(BAR * run->step / run->steps) : 0;
    for (int i = 0; i < BAR; i++) bar[i] = i < filled ? '#' : '.';
    bar[BAR] = 0;
    entry_name(b->view, run->entry, name, sizeof name);
    if (isfinite(run->accuracy)) snprintf(accuracy, sizeof accuracy, "  %.2f%%", 100 * run->accuracy);
    snprintf(text, sizeof text, "  [%s] %s%s  %.0f s", bar, name, accuracy, run->seconds);
    row(b, text);
}

static void draw(sweep_view *view, const blurry_sweep_progress *p)
{
    struct winsize size;
    int known = ioctl(fileno(view->to), TIOCGWINSZ, &size) == 0 && size.ws_col > 20 && size.ws_row > 4;
    int rows = known && size.ws_row - 1 < ROWS_MAX ? size.ws_row - 1 : known ? ROWS_MAX : 20;
    block b = {.view = view, .width = known ? size.ws_col - 1 : 79};
    if (view->lines) fprintf(view->to, "\033[%dA", view->lines);
    head_row(&b, p);
    for (int64_t i = 0; i < p->group_count && b.lines < rows; i++) group_row(&b, &p->groups[i]);
    for (int64_t i = 0; i < p->running && b.lines < rows; i++) run_row(&b, &p->active[i]);
    fprintf(view->to, "\033[J");
    fflush(view->to);
    view->lines = b.lines;
}

int sweep_view_show(void *context, const blurry_sweep_progress *p)
{
    sweep_view *view = context;
    if (view->quiet) return terminal_stop_wanted();
    if (view->terminal)
        draw(view, p);
    else if (p->event != BLURRY_SWEEP_TICK)
        print_event(view, p);
    return terminal_stop_wanted();
}
