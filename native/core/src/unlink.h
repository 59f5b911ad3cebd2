/* The path of a draft. */
#ifndef SHMRING_UNLINK_H
#define SHMRING_UNLINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool draft_path(char *path, size_t size, const char *beside, int folder_bytes, const uint8_t *uuid);

#endif
