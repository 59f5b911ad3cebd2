/* A text about the holders of seats. */
#ifndef SHMRING_HOLDER_H
#define SHMRING_HOLDER_H

#include "handles.h"

void explain_seats(const shmring *ring, char *text, size_t size);

#endif
