/* Attaching to a ring that has no name yet. */
#ifndef SHMRING_ATTACH_H
#define SHMRING_ATTACH_H

#include "handles.h"

int attach_draft(const char *path, const char *name, shmring **ring);
void attach_by_name(shmring *ring, const char *path);

#endif
