/* For programs that bind to the shared library without a compiler (Python's cffi and ctypes, Julia, Lua).
 *
 * They read the declarations from these headers and must find a library that was built from the same ones:
 * a struct of another layout would be written past its end. */
#ifndef BLURRY_ABI_H
#define BLURRY_ABI_H
#include "blurry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* SHA-256, as 64 hexadecimal digits, of the declarations in include/blurry: of all *.h files in the order of
 * their names, one after another, each without comments and white space. */
BLURRY_API const char *blurry_abi(void);

#ifdef __cplusplus
}
#endif
#endif
