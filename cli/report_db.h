/* The part of `blurry report` that reads a results database. */
#ifndef BLURRY_CLI_REPORT_DB_H
#define BLURRY_CLI_REPORT_DB_H

typedef struct report_db_request {
    const char *database, *out;
    const char *sweep;     /* NULL: all */
    const char *figure;    /* NULL: as each sweep's file says */
    const char *png, *csv; /* folders; NULL: none */
} report_db_request;

/* Writes the page; prints its own messages. */
int report_db(const report_db_request *request);

#endif
