/* fig2: what a query attends to. Upper row: the softmax, over tokens for full attention and over slots for
 * blurry attention. Lower row: the weight that each token's value has in the output. All panels share keys
 * and queries. */
#include "cli/figure.h"
#include "cli/figure_attention.h"
#include "cli/cli.h"
#include "blurry/attention.h"

#include <math.h>
#include <stdlib.h>

enum { DIM = 24 };
enum { LEFT = 52, RIGHT = 20, GAP = 58, ABOVE = 66, BELOW = 46, KEY = 52 }; /* layout, in points */

typedef struct masks {
    int64_t S, L;    /* slots; tokens of every panel but b: at least 2S and T */
    double period;   /* of the blurred case */
    double *q, *k;   /* [L, DIM] */
    double *weights; /* [L, L], reused by every panel */
    unsigned char *open;
    FILE *csv;
    double cell;   /* points per cell */
    double lowest; /* most negative weight shown */
} masks;

static double normal(uint64_t seed, uint64_t index)
{
    double u = figure_uniform(seed, 2 * index), w = figure_uniform(seed, 2 * index + 1);
    return sqrt(-2.0 * log(1.0 - u)) * cos(2.0 * 3.14159265358979323846 * w);
}

/* Random keys; each query asks for one random token so far, as in recall, with noise. */
static void draw_tokens(masks *m, int64_t length, uint64_t seed)
{
    for (int64_t i = 0; i < length * DIM; i++) m->k[i] = normal(seed, (uint64_t)i);
    for (int64_t t = 0; t < length; t++) {
        int64_t wanted = (int64_t)(figure_uniform(seed + 1, (uint64_t)t) * (double)(t + 1));
        for (int d = 0; d < DIM; d++)
            m->q[t * DIM + d] =
                0.85 * m->k[wanted * DIM + d] + 0.35 * normal(seed + 2, (uint64_t)(t * DIM + d));
    }
}

typedef struct panel {
    const char *letter, *name, *title, *ylabel, *xlabel;
    int64_t rows, columns;
    double left, top;
    int64_t tick; /* along the columns */
} panel;

static void draw_panel(masks *m, plot *p, const panel *a)
{
    for (int64_t i = 0; i < a->rows * a->columns; i++) {
        m->lowest = fmin(m->lowest, m->weights[i]);
        fprintf(m->csv, "%s,%lld,%lld,%.9g\n", a->name, (long long)(i / a->columns),
                (long long)(i % a->columns), m->weights[i]);
    }
    FILE *to = p->script.stream;
    plot_panel(p, a->left, a->top, (double)a->columns * m->cell, (double)a->rows * m->cell);
    plot_title(p, a->letter, a->title);
    fprintf(to,
            "unset grid\nset border 0\nset xtics %lld scale 0 offset 0,0.5\nset ytics %lld scale 0 offset "
            "0.6,0\n",
            (long long)a->tick, (long long)(a->rows > 20 ? 10 : 5));
    fprintf(to, "set xlabel \"%s\" offset 0,0.9 textcolor rgb ink\n", a->xlabel);
    if (a->ylabel)
        fprintf(to, "set ylabel \"%s\" offset 2.2,0 textcolor rgb ink\n", a->ylabel);
    else
        fprintf(to, "unset ylabel\n");
    plot_cells(p, m->weights, m->open, a->rows, a->columns);
    fprintf(to, "unset label\n");
}

/* Which cells may carry weight: tokens up to t and no further back than `window`; or slots once they are
 * visible. */
static void open_tokens(masks *m, int64_t length, int64_t window)
{
    for (int64_t t = 0; t < length; t++)
        for (int64_t u = 0; u < length; u++) m->open[t * length + u] = u <= t && u > t - window;
}

static void open_slots(masks *m, int64_t length)
{
    for (int64_t t = 0; t < length; t++)
        for (int64_t j = 0; j < m->S; j++) m->open[t * m->S + j] = m->weights[t * m->S + j] != 0.0;
}

static void box(plot *p, int id, const char *role, double x0, double y0, double x1, double y1)
{
    fprintf(p->script.stream,
            "set object %d rectangle from %g,%g to %g,%g front fs empty border rgb %s lw 2\n", id, x0, y0, x1,
            y1, role);
}

/* Full attention is blurry attention whose window T = S holds the whole sequence. */
static int64_t modes_for(int64_t length)
{
    return (length + 2) / 2;
}

static int upper_row(masks *m, plot *p, double top)
{
    int64_t S = m->S, L = m->L, M = (S + 1) / 2, M_full = modes_for(L);
    double left = LEFT, r = m->period / (double)S;
    attention_case full = {L, DIM, M_full, (double)(2 * M_full - 1), 0, m->q, m->k};
    double gap = (p->width - LEFT - RIGHT - (double)(L + 3 * S) * m->cell) / 3;
    if (attention_of_tokens(&full, m->weights) != CLI_OK) return CLI_FAILED;
    open_tokens(m, L, L);
    box(p, 11, "vermilion", 0, 0, (double)S, (double)S);
    double b0 = floor((double)S / 4),
           b1 = floor((double)S / 2); /* slots b0..b1 of panel d and their tokens here */
    double y0 = floor(r * b1) + 1, y1 = fmin(y0 + r * (b1 - b0), (double)L);
    box(p, 12, "green", r * b0, y0, r * b1, y1);
    panel a = {"a", "full", "full attention", "query {/:Italic t}", "token", L, L, left, top, 10};
    draw_panel(m, p, &a);
    fprintf(p->script.stream, "unset object\n");

    left += (double)L * m->cell + gap;
    attention_case exact = {S, DIM, M, (double)S, 0, m->q, m->k};
    if (attention_of_slots(&exact, m->weights) != CLI_OK) return CLI_FAILED;
    open_slots(m, S);
    box(p, 11, "vermilion", 0, 0, (double)S, (double)S);
    panel b = {
        "b", "slots_T=L=S", "{/:Italic T} = {/:Italic L} = {/:Italic S}", NULL, "slot", S, S, left, top, 5};
    draw_panel(m, p, &b);

    left += (double)S * m->cell + gap;
    attention_case wrapped = {L, DIM, M, (double)S, 0, m->q, m->k};
    if (attention_of_slots(&wrapped, m->weights) != CLI_OK) return CLI_FAILED;
    open_slots(m, L);
    panel c = {
        "c", "slots_L>T=S", "{/:Italic L} > {/:Italic T} = {/:Italic S}", NULL, "slot", L, S, left, top, 5};
    draw_panel(m, p, &c);
    fprintf(p->script.stream, "unset object\n");

    left += (double)S * m->cell + gap;
    attention_case blurred = {L, DIM, M, m->period, 0, m->q, m->k};
    if (attention_of_slots(&blurred, m->weights) != CLI_OK) return CLI_FAILED;
    open_slots(m, L);
    box(p, 12, "green", b0, y0, b1, y1);
    char title[80];
    snprintf(title, sizeof title, "{/:Italic T} = %.3g {/:Italic S}", r);
    panel d = {"d", "slots_T>S", title, NULL, "slot", L, S, left, top, 5};
    draw_panel(m, p, &d);
    fprintf(p->script.stream, "unset object\n");
    return CLI_OK;
}

static int lower_row(masks *m, plot *p, double top)
{
    int64_t S = m->S, M = (S + 1) / 2, L = m->L;
    double left = LEFT, r = m->period / (double)S;
    struct {
        const char *letter, *name, *title;
        attention_case c;
        int64_t window;
    } panels[] = {
        {"e",
         "tokens_window",
         "sliding window = {/:Italic T} = {/:Italic S} with decay",
         {L, DIM, M, (double)S, 1, m->q, m->k},
         S},
        {"f",
         "tokens_L>T=S",
         "{/:Italic T} = {/:Italic S}: past windows add up",
         {L, DIM, M, (double)S, 0, m->q, m->k},
         L},
        {"g", "tokens_T>S", "", {L, DIM, M, m->period, 0, m->q, m->k}, L},
    };
    char title[80];
    snprintf(title, sizeof title, "{/:Italic T} = %.3g {/:Italic S}: neighbours blur", r);
    panels[2].title = title;
    for (int i = 0; i < 3; i++) {
        if (attention_of_tokens(&panels[i].c, m->weights) != CLI_OK) return CLI_FAILED;
        open_tokens(m, L, panels[i].window);
        panel a = {panels[i].letter,
                   panels[i].name,
                   panels[i].title,
                   i ? NULL : "query {/:Italic t}",
                   "token",
                   L,
                   L,
                   left,
                   top,
                   10};
        draw_panel(m, p, &a);
        left += (double)L * m->cell + GAP;
    }
    return CLI_OK;
}

static void heading(plot *p, int id, double top, const char *text)
{
    fprintf(p->script.stream, "set label %d \"%s\" at screen %.6f, screen %.6f left textcolor rgb soft\n",
            50 + id, text, (double)LEFT / p->width, 1 - top / p->height);
}

static int draw(masks *m, plot *p)
{
    m->cell = 270.0 / (double)m->L;
    double panel_height = (double)m->L * m->cell;
    double width =
        LEFT + (double)(3 * m->L) * m->cell + 2 * GAP + RIGHT; /* L >= 2S: the lower row is the wider */
    int rc = plot_open(p, (int)ceil(width), (int)ceil(2 * (panel_height + ABOVE + BELOW) + KEY));
    if (rc != CLI_OK) return rc;
    double second = panel_height + ABOVE + BELOW;
    fprintf(p->script.stream, "set multiplot\n");
    heading(p, 1, 20, "What the softmax sees: tokens (a) or slots (b, c, d)");
    rc = upper_row(m, p, ABOVE);
    heading(p, 2, second + 20, "What the output holds: the weight of each token's value");
    if (rc == CLI_OK) rc = lower_row(m, p, second + ABOVE);
    if (rc != CLI_OK) return rc;
    double lowest = fmin(0.0, floor(m->lowest * 10) / 10);
    plot_cells_key(p, LEFT, p->height - 36, 240, 9, lowest, "weight");
    fprintf(p->script.stream, "unset multiplot\n");
    return CLI_OK;
}

int figure_masks(plot *p, FILE *csv, const figure_options *options)
{
    masks m = {.S = 2 * options->modes - 1, .csv = csv};
    m.period = options->resolution * (double)m.S;
    m.L = (int64_t)fmax(2.0 * (double)m.S, rint(m.period));
    size_t n = (size_t)m.L;
    m.q = malloc(n * DIM * sizeof(double));
    m.k = malloc(n * DIM * sizeof(double));
    m.weights = malloc(n * n * sizeof(double));
    m.open = malloc(n * n);
    int rc = CLI_FAILED;
    if (m.q && m.k && m.weights && m.open) {
        draw_tokens(&m, m.L, options->seed);
        fprintf(csv, "panel,query,column,weight\n");
        rc = draw(&m, p);
    } else {
        fprintf(stderr, "blurry: out of memory\n");
    }
    free(m.q);
    free(m.k);
    free(m.weights);
    free(m.open);
    return rc;
}
