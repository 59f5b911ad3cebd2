/* The leases of the dead. */
#ifndef SHMRING_ADOPT_H
#define SHMRING_ADOPT_H

#include "handles.h"

bool may_adopt(const shmring_consumer *consumer);
bool leases_move(shmring_consumer *consumer);
void leases_moved(shmring_consumer *consumer);
bool consumer_take_again(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
			 struct shmring_lease *lease, int *status);
bool consumer_adopt(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
		    struct shmring_lease *lease, int *status);

#endif
