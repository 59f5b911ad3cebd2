/* The end of a stream. */
#ifndef SHMRING_END_H
#define SHMRING_END_H

#include "handles.h"

bool consumer_is_ended(const shmring_consumer *consumer, uint64_t t);
bool end_has_to_wait(const shmring_consumer *consumer);
bool consumer_at_end(shmring_consumer *consumer, uint64_t seen, uint64_t end, uint64_t limit, bool *as_message);
bool consumer_pass_over(shmring_consumer *consumer, uint64_t seen, uint64_t end, bool marker);
void consumer_has_end(shmring_consumer *consumer);
void consumer_begins(shmring_consumer *consumer);

#endif
