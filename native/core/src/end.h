/* The end of a stream. */
#ifndef SHMRING_END_H
#define SHMRING_END_H

#include "handles.h"

bool member_is_ended(const shmring_member *member, uint64_t t);
bool end_has_to_wait(const shmring_member *member);
bool member_at_end(shmring_member *member, uint64_t seen, uint64_t end, uint64_t limit, bool *as_message);
bool member_pass_over(shmring_member *member, uint64_t seen, uint64_t end, bool marker);
void member_has_end(shmring_member *member);
void member_begins(shmring_member *member);

#endif
