/* The page's style sheet: one column on a phone, two on a desk, colours by the reader's light or dark
 * setting. */
#include "cli/report.h"

void report_write_style(FILE *to)
{
    fputs("<style>\n:root{color-scheme:light dark;", to);
    plot_palette_css(to, PLOT_LIGHT);
    fputs("--raised:#f6f8fa}\n@media (prefers-color-scheme:dark){:root{", to);
    plot_palette_css(to, PLOT_DARK);
    fputs("--raised:#1b2128}}\n", to);
    fputs(
        "*{box-sizing:border-box}\n"
        "html{-webkit-text-size-adjust:100%}\n"
        "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 "
        "system-ui,-apple-system,'Segoe UI',"
        "Roboto,'Helvetica Neue',Arial,sans-serif}\n"
        "main{max-width:1080px;margin:0 auto;padding:40px 24px 64px}\n"
        ".kicker{margin:0;color:var(--soft);font-size:14px;letter-spacing:.02em}\n"
        "h1{font-size:32px;line-height:1.2;margin:6px 0 14px;letter-spacing:-.01em}\n"
        "h2{font-size:21px;line-height:1.3;margin:52px 0 8px;letter-spacing:-.005em}\n"
        "h3{font-size:16px;margin:22px 0 0;font-weight:600}\n"
        "p{margin:8px 0;max-width:44em}\n"
        ".lead{font-size:18px}\n"
        ".note,figcaption{color:var(--soft);font-size:14px;line-height:1.5}\n"
        ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:12px;margin:24px 0 "
        "8px;"
        "padding:0;list-style:none}\n"
        ".tiles li{background:var(--raised);border-radius:10px;border-top:4px solid var(--tint);padding:12px "
        "16px 14px}\n"
        ".tiles "
        "b{display:block;font-size:30px;line-height:1.2;font-weight:650;font-variant-numeric:tabular-nums}\n"
        ".tiles span{display:block}\n"
        ".tiles .note{margin-top:2px}\n",
        to);
    fputs(
        ".legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:14px 0 "
        "4px;padding:0;list-style:none;font-size:15px}\n"
        ".legend svg{width:28px;height:10px;margin-right:7px;vertical-align:middle}\n"
        ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:20px "
        "32px}\n"
        ".masks{grid-template-columns:repeat(auto-fill,minmax(min(100%,310px),1fr))}\n"
        "figure{margin:10px 0;min-width:0}\n"
        "figure>svg{display:block;width:100%;height:auto;margin-bottom:6px}\n"
        ".masks figure>svg{max-width:420px}\n"
        ".masks figcaption{color:var(--ink);margin-bottom:4px}\n"
        ".scale{display:inline-block;width:150px;height:10px;border-radius:2px;margin:0 "
        "8px;vertical-align:middle;"
        "background:linear-gradient(to right,var(--amber),var(--cell) 33%,var(--blue))}\n"
        ".wide{overflow-x:auto;margin:12px 0}\n"
        "table{border-collapse:collapse;width:100%;font-size:15px;font-variant-numeric:tabular-nums}\n"
        "th,td{text-align:left;padding:7px 14px 7px 0;border-bottom:1px solid var(--rule);vertical-align:top;"
        "white-space:nowrap}\n"
        "th{color:var(--soft);font-weight:500}\n"
        "td.n,th.n{text-align:right}\n"
        ".dot{margin-right:8px}\n"
        "pre{background:var(--raised);border-radius:8px;padding:12px 16px;margin:8px 0 "
        "16px;white-space:pre-wrap;overflow-wrap:anywhere}\n"
        "pre,code{font:13.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}\n"
        "details{margin:10px 0}\nsummary{cursor:pointer}\n"
        "a{color:var(--blue)}\n"
        "footer{margin-top:52px;padding-top:14px;border-top:1px solid var(--rule)}\n"
        "@media (max-width:560px){main{padding:24px 16px 48px}h1{font-size:26px}h2{margin-top:40px}}\n"
        "@media print{body{background:none}h2{break-after:avoid}figure,tr{break-inside:avoid}}\n",
        to);
    fputs("</style>\n", to);
}
