/* The progress display: see progress.h. */
#include "cli/progress.h"
#include "cli/terminal.h"

#include <math.h>
#include <string.h>

void progress_open(progress_view *view, FILE *to, const char *title, int quiet)
{
    *view = (progress_view){.to = to, .title = title, .quiet = quiet, .drawn_at = -1};
    view->terminal = terminal_is(to);
    terminal_watch_signals();
}

static void draw(progress_view *view, const blurry_progress *p)
{
    enum { BAR = 16 };
    char bar[BAR + 1], eta[32], accuracy[32] = "", line[512];
    int filled = p->steps > 0 ? (int)(BAR * p->step / p->steps) : 0;
    for (int i = 0; i < BAR; i++) bar[i] = i < filled ? '#' : '.';
    bar[BAR] = 0;
    terminal_duration(eta, sizeof eta, p->eta_seconds);
    if (isfinite(p->accuracy)) snprintf(accuracy, sizeof accuracy, "  accuracy %.2f%%", 100 * p->accuracy);
    int length = snprintf(line, sizeof line, "%s [%s] %lld/%lld  loss %.4f%s  %.1fk tokens/s  ETA %s",
                          view->title, bar, (long long)p->step, (long long)p->steps, view->smooth_loss,
                          accuracy, p->tokens_per_second / 1000, eta);
    int width = terminal_width(view->to) - 1; /* a full line would wrap and not be refreshed */
    if (length > width) line[width] = 0;
    fprintf(view->to, "\r%s\033[K", line);
    fflush(view->to);
    view->line_open = 1;
    view->drawn_at = p->seconds;
}

int progress_show(void *context, const blurry_progress *p)
{
    progress_view *view = context;
    enum { SMOOTHING = 20 };
    if (p->event == BLURRY_EVENT_STEP && isfinite(p->loss)) {
        view->smooth_loss =
            view->have_loss ? view->smooth_loss + (p->loss - view->smooth_loss) / SMOOTHING : p->loss;
        view->have_loss = 1;
    }
    if (p->event == BLURRY_EVENT_END && p->reason)
        snprintf(view->end_reason, sizeof view->end_reason, "%s", p->reason);
    view->last = *p;
    view->last.metrics = NULL;
    view->last.json = view->last.reason = NULL;
    view->begun = 1;
    int stop = terminal_stop_wanted() || (view->pause_at > 0 && p->step >= view->pause_at);
    if (view->quiet) return stop;
    if (!view->terminal) {
        if (p->json) {
            fprintf(view->to, "%s\n", p->json);
            fflush(view->to);
        }
    } else if (view->have_loss && (p->event != BLURRY_EVENT_STEP || p->seconds > view->drawn_at + 0.1))
        draw(view, p);
    return stop;
}

void progress_close(progress_view *view)
{
    if (view->line_open) fputc('\n', view->to);
    view->line_open = 0;
}
