/* Releases that await a free entry of the seat. */
#ifndef SHMRING_DEFERRED_H
#define SHMRING_DEFERRED_H

#include "handles.h"

/* Joining takes out all runs that touch [*lo, *hi), which becomes their union. */
void deferred_join(struct deferred *deferred, uint64_t *lo, uint64_t *hi);
bool deferred_reserve(struct deferred *deferred); /* room for one run; false: no memory */
void deferred_put(struct deferred *deferred, uint64_t lo, uint64_t hi);
bool deferred_take_any(struct deferred *deferred, uint64_t *lo, uint64_t *hi);
bool deferred_take_lowest(struct deferred *deferred, uint64_t *lo, uint64_t *hi);
bool deferred_overlaps(const struct deferred *deferred, uint64_t lo, uint64_t hi);
void deferred_free(struct deferred *deferred);

#endif
