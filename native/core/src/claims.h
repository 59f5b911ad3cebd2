/* Claims that are not published. */
#ifndef SHMRING_CLAIMS_H
#define SHMRING_CLAIMS_H

#include "handles.h"

void publish_aborted(shmring *ring, uint64_t lo, uint64_t n, uint8_t seat);
bool settle_claim(shmring *ring, struct seat *seat, uint32_t index); /* of a dead owner */

#endif
