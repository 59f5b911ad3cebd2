/* Whether a participant's process is stopped: by SIGSTOP, a terminal, or a debugger. It lives, and
 * holds what it holds, until somebody lets it go on or ends it.
 *
 * The kernel says so in /proc, for a number that may be another process's in this namespace. So a
 * process counts only if it has mapped the ring's file.
 */
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "locks.h"
#include "stopped.h"

static bool has_mapped(uint32_t pid, dev_t device, ino_t inode)
{
	char line[512];
	bool found = false;
	FILE *maps;

	snprintf(line, sizeof line, "/proc/%u/maps", pid);
	maps = fopen(line, "re");
	while (maps && !found && fgets(line, sizeof line, maps)) {
		unsigned high, low;
		unsigned long number;

		found = sscanf(line, "%*x-%*x %*s %*x %x:%x %lu", &high, &low, &number) == 3 &&
			makedev(high, low) == device && number == inode;
	}
	if (maps)
		fclose(maps);
	return found;
}

bool is_stopped(const shmring *r, uint32_t pid)
{
	char line[512];
	const char *state = NULL;
	dev_t device;
	ino_t inode;
	FILE *stat;

	snprintf(line, sizeof line, "/proc/%u/stat", pid);
	stat = fopen(line, "re");
	if (!stat)
		return false;
	if (fgets(line, sizeof line, stat))
		state = strrchr(line, ')'); /* the name before it may hold anything */
	fclose(stat);
	if (!state || strncmp(state, ") ", 2) != 0 || (state[2] != 'T' && state[2] != 't'))
		return false;
	lock_file_identity(r->locks, &device, &inode);
	return has_mapped(pid, device, inode);
}
