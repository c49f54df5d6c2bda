/* The log keep weight of the first token of all: e^ of it is far below one unit in the last place of 1, so
 * the write weight is exactly 1, and what it keeps is an empty state. Finite, so that sums and differences of
 * gates stay finite. */
#ifndef BLURRY_KERNELS_GATES_FIRST_H
#define BLURRY_KERNELS_GATES_FIRST_H

#define SLOTS_FIRST_GATE ((real)-45)

#endif
