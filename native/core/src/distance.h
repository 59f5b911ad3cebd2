/* How far behind the producers a consumer waits. */
#ifndef SHMRING_DISTANCE_H
#define SHMRING_DISTANCE_H

#include "adopt.h"
#include "handles.h"

/* Before a wait. */
void keep_away(shmring_consumer *consumer);

/* Does a consumer have something to do besides new messages? */
static inline bool has_news(const shmring_consumer *consumer)
{
	const struct branch *b = consumer->branch;

	return load_relaxed(&b->d.state) != BRANCH_ACTIVE ||
	       (load_relaxed(&b->d.orphans) && may_adopt(consumer)) || load_relaxed(&consumer->gives_again);
}

#endif
