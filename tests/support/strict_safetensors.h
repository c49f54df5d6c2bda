/* A second opinion on safetensors files, written apart from the library's reader and without a JSON library:
 * a recogniser of exactly the files the format allows. Tests and fuzzers compare the two. */
#ifndef BLURRY_TEST_STRICT_SAFETENSORS_H
#define BLURRY_TEST_STRICT_SAFETENSORS_H
#include <stdbool.h>
#include <stddef.h>

bool strict_safetensors(const void *data, size_t length);

#endif
