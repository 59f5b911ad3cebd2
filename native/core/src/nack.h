/* Messages that a consumer keeps, to deliver them again itself. */
#ifndef SHMRING_NACK_H
#define SHMRING_NACK_H

#include "handles.h"

int keep_to_give_again(shmring_consumer *consumer, uint64_t first, uint64_t end);

#endif
