/* Numbers to and from text, the same in every locale: "1.5" is one and a half wherever the program runs. */
#ifndef BLURRY_BASE_NUMBER_H
#define BLURRY_BASE_NUMBER_H
#include <stdbool.h>
#include <stdint.h>

enum { NUMBER_TEXT = 32 }; /* bytes that hold any number's text */

/* The whole text must be one decimal number: no blanks, no hexadecimal, no infinity, no overflow. */
bool number_parse_int(const char *text, int64_t *value);
bool number_parse_real(const char *text, double *value);

/* The shortest of %.15g, %.16g, %.17g that reads back to the same bits. */
void number_format_real(double value, char text[NUMBER_TEXT]);

#endif
