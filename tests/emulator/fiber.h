/* Fibers: stacks that hand the processor to each other. */
#ifndef BLURRY_EMULATOR_FIBER_H
#define BLURRY_EMULATOR_FIBER_H
#include <stddef.h>

struct fiber {
    void *stack_pointer;
    char *stack;
    size_t stack_bytes;
};

/* A fiber that will call entry(argument) when first switched to; entry must not return. */
void fiber_prepare(fiber *f, void (*entry)(void *), void *argument);
/* Saves the running context in `from` and continues `to`. */
void fiber_switch(fiber *from, fiber *to);
/* To be called first by entry; `from` is the fiber that switched to it. Sanitizers learn of the switch. */
void fiber_entered(fiber *from);

#endif
