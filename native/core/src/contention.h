/* Keeping out of each other's way. */
#ifndef SHMRING_CONTENTION_H
#define SHMRING_CONTENTION_H

#include "handles.h"

/* Another one has been faster. `messages`: those that this one has got so far. */
void keep_out(struct contention *contention, uint64_t messages) __attribute__((cold));

#endif
