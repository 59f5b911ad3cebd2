/* How arrays over a leased message let it go. */
#ifndef SHMRING_BINDING_MAPPED_H
#define SHMRING_BINDING_MAPPED_H

#include <stdbool.h>

/* mapped.c */
bool mapped_prepare(void);
void let_lease_go(void *lease);

#endif
