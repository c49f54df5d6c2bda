/* Slot attention in bf16 on tensor cores, for the shapes that fit. */
#ifndef BLURRY_KERNELS_SLOTS_CUDA_FAST_H
#define BLURRY_KERNELS_SLOTS_CUDA_FAST_H
#include "kernels/slots/slots.h"

/* element: bytes of an activation. The other functions are for shapes that fit. */
bool slots_fast_fits(const slots_args *a, size_t element);
void slots_fast_sizes(const slots_args *a, kernel_sizes *sizes);
void slots_fast_forward(const kernel_run *run, const slots_args *a);
void slots_fast_backward(const kernel_run *run, const slots_args *a);

#endif
