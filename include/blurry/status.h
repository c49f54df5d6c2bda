/* Status codes and error messages. Every public function that can fail returns a blurry_status; the message
 * that names the field, the value and the remedy is kept per thread and read with blurry_last_error(). */
#ifndef BLURRY_STATUS_H
#define BLURRY_STATUS_H

#if defined(BLURRY_BUILD) && defined(__GNUC__)
#define BLURRY_API __attribute__((visibility("default")))
#else
#define BLURRY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum blurry_status {
    BLURRY_OK = 0,
    BLURRY_E_INVALID,     /* an argument or option is wrong: null, out of range, inconsistent */
    BLURRY_E_MEMORY,      /* an allocation failed, or sizes overflow */
    BLURRY_E_IO,          /* the operating system refused to read, write or rename a file */
    BLURRY_E_FORMAT,      /* a file's content breaks its format's rules */
    BLURRY_E_UNSUPPORTED, /* valid, but not available in this build, device or combination */
    BLURRY_E_NUMERIC,     /* a value that must be finite is not */
    BLURRY_E_DEVICE,      /* an accelerator is missing or failed */
    BLURRY_E_CANCELLED,   /* a callback asked to stop */
    BLURRY_E_INTERNAL     /* a defect of this library: please report it */
} blurry_status;

/* The code as a word, for example "invalid". Never NULL, also for unknown codes. */
BLURRY_API const char *blurry_status_name(blurry_status status);

/* The message of this thread's latest failure, "" before any. Valid until this thread's next failing call. */
BLURRY_API const char *blurry_last_error(void);

/* The library's version, for example "0.1.0". */
BLURRY_API const char *blurry_version(void);

#ifdef __cplusplus
}
#endif
#endif
