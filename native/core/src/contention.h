/* Back-off after a lost race. */
#ifndef SHMRING_CONTENTION_H
#define SHMRING_CONTENTION_H

#include "handles.h"

/* Another handle has been faster. `messages`: the number that this one has got so far. */
void keep_out(struct contention *contention, uint64_t messages) __attribute__((cold));

#endif
