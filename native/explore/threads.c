/* Threads: coroutines on stacks of their own. */
#include "world.h"

#ifndef __x86_64__
#error "the explorer switches stacks on x86-64 only"
#endif

_Alignas(64) uint8_t stacks[THREADS][STACK];
int running = -1;
static void *explorer_stack;

/* Saves the callee-saved registers on this stack, and continues on the stack `to`. */
void switch_stack(void **save, void *to);
__asm__(".text\n"
	"switch_stack:\n"
	"	pushq %rbp\n	pushq %rbx\n	pushq %r12\n	pushq %r13\n	pushq %r14\n	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n	popq %r14\n	popq %r13\n	popq %r12\n	popq %rbx\n	popq %rbp\n"
	"	ret\n");

/* Clears the stack below the pointer: leftovers of deeper calls would make equal states differ. */
static void clear_below(uint8_t *stack_pointer)
{
	memset(stack_pointer - 1024, 0, 1024);
}

void give_way(void)
{
	switch_stack(&world.thread[running].stack_pointer, explorer_stack);
}

static void thread_main(void)
{
	exploring->actor[running].body(running);
	world.thread[running] = (struct thread){.status = FINISHED};
	weak_end(running);
	give_way();
	abort();
}

void thread_make(int i)
{
	void **top = (void **)(stacks[i] + STACK - 64);

	memset(stacks[i], 0, STACK);
	*--top = NULL; /* return address, as if thread_main() had been called */
	*--top = (void *)(uintptr_t)thread_main;
	world.thread[i].stack_pointer = top - 6;
	world.thread[i].status = exploring->actor[i].body ? READY : FINISHED;
}

void thread_run(int i)
{
	running = i;
	clear_below(world.thread[i].stack_pointer);
	switch_stack(&explorer_stack, world.thread[i].stack_pointer);
	running = -1;
}

bool explore_is_on(void)
{
	return running >= 0;
}

int explore_thread(void)
{
	return running;
}
