/* Switching fibers: on x86-64 by hand, since ucontext enters the kernel at each switch; elsewhere by
 * ucontext. */
#include "fiber.h"

#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

void fiber_entered(fiber *from)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &from->stack_bytes);
    from->stack = (char *)bottom;
#else
    (void)from;
#endif
}

#if defined(__x86_64__)
extern "C" void emulator_switch(void **save, void *load);
asm(".text\n"
    ".globl emulator_switch\n"
    ".type emulator_switch,@function\n"
    "emulator_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".globl emulator_start\n"
    ".type emulator_start,@function\n"
    "emulator_start:\n" /* r12: entry, r13: argument */
    "  movq %r13, %rdi\n"
    "  callq *%r12\n"
    "  ud2\n");
extern "C" void emulator_start(void);

void fiber_prepare(fiber *f, void (*entry)(void *), void *argument)
{
    uintptr_t top = ((uintptr_t)f->stack + f->stack_bytes) & ~(uintptr_t)15;
    void **sp = (void **)top;
    *--sp = nullptr; /* two words: the stack is aligned to 16 when entry is called */
    *--sp = nullptr;
    *--sp = (void *)emulator_start; /* return address of the first switch */
    *--sp = nullptr;                /* rbp */
    *--sp = nullptr;                /* rbx */
    *--sp = (void *)entry;          /* r12 */
    *--sp = argument;               /* r13 */
    *--sp = nullptr;                /* r14 */
    *--sp = nullptr;                /* r15 */
    f->stack_pointer = sp;
}

void fiber_switch(fiber *from, fiber *to)
{
#if defined(__SANITIZE_ADDRESS__)
    void *fake;
    __sanitizer_start_switch_fiber(&fake, to->stack, to->stack_bytes);
    emulator_switch(&from->stack_pointer, to->stack_pointer);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    emulator_switch(&from->stack_pointer, to->stack_pointer);
#endif
}
#else
#include <ucontext.h>
#include <new>

struct portable {
    ucontext_t context;
    void (*entry)(void *);
    void *argument;
};

static void start(unsigned high, unsigned low)
{
    portable *p = (portable *)(((uintptr_t)high << 32) | low);
    p->entry(p->argument);
}

void fiber_prepare(fiber *f, void (*entry)(void *), void *argument)
{
    portable *p = f->stack_pointer ? (portable *)f->stack_pointer : new portable();
    f->stack_pointer = p;
    p->entry = entry, p->argument = argument;
    getcontext(&p->context);
    p->context.uc_stack.ss_sp = f->stack;
    p->context.uc_stack.ss_size = f->stack_bytes;
    uintptr_t at = (uintptr_t)p;
    makecontext(&p->context, (void (*)())start, 2, (unsigned)((uint64_t)at >> 32), (unsigned)at);
}

void fiber_switch(fiber *from, fiber *to)
{
    if (!from->stack_pointer) from->stack_pointer = new portable();
    swapcontext(&((portable *)from->stack_pointer)->context, &((portable *)to->stack_pointer)->context);
}
#endif
