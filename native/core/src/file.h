/* A ring file. */
#ifndef SHMRING_FILE_H
#define SHMRING_FILE_H

#include "handles.h"

const char *base_name(const char *path);
void lay_out(struct header *header);
uint32_t header_crc(const struct header *header);
int open_flags(bool read_only);
int open_checked(const char *path, const char *name, uint32_t flags, int how, int *fd_out, struct header *h);
int map_ring(shmring *ring, int fd);
int copy_ring(shmring *ring, int fd);
int copy_range(shmring *ring, int fd, uint64_t offset, uint64_t bytes);
bool is_others(int fd);

#endif
