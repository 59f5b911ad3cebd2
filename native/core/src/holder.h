/* Who holds seats, in words. */
#ifndef SHMRING_HOLDER_H
#define SHMRING_HOLDER_H

#include "handles.h"

void explain_seats(const shmring *ring, char *text, size_t size);

#endif
