/* Sampling from a model, one token after another, with constant memory for the bounded mixers.
 *
 * A session holds a generator (blurry/model.h) and the way to draw. What it draws depends on the model, the
 * tokens fed, the sampling and the position alone, so a session saved and restored continues exactly as if it
 * had never stopped. */
#ifndef BLURRY_GENERATE_H
#define BLURRY_GENERATE_H
#include "blurry/model.h"
#include "blurry/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct blurry_session blurry_session;

typedef struct blurry_sampling {
    double temperature; /* 0: always the most probable token */
    double top_p;       /* draw from the fewest tokens that hold this much probability; 1: from all */
    uint64_t seed;
} blurry_sampling;

/* `max_length` as in blurry_generator_create; the model must outlive the session. */
BLURRY_API blurry_status blurry_session_create(blurry_session **session, const blurry_model *model,
                                               const blurry_sampling *sampling, int64_t max_length);
BLURRY_API void blurry_session_destroy(blurry_session **session);
/* Appends tokens [count] to the text so far. */
BLURRY_API blurry_status blurry_session_feed(blurry_session *session, const int32_t *tokens, int64_t count);
/* Draws the next token and appends it. At least one token must have been fed. */
BLURRY_API blurry_status blurry_session_next(blurry_session *session, int32_t *token);

BLURRY_API void blurry_session_get_sampling(const blurry_session *session, blurry_sampling *sampling);
BLURRY_API blurry_status blurry_session_set_sampling(blurry_session *session,
                                                     const blurry_sampling *sampling);

/* The session as a file: state, last token and sampling. Restoring refuses (BLURRY_E_FORMAT,
 * BLURRY_E_INVALID) a file that is cut or altered, of another version, or of another model, and leaves the
 * session as it was. */
BLURRY_API blurry_status blurry_session_save(const blurry_session *session, const char *path);
BLURRY_API blurry_status blurry_session_restore(blurry_session *session, const char *path);

#ifdef __cplusplus
}
#endif
#endif
