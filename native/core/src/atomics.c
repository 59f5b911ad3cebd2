/* The heavy half of a Dekker handshake, see atomics.h. */
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomics.h"

bool asymmetric_barriers_available(void)
{
	/* Registering again is cheap and harmless. */
	return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void heavy_barrier(bool asymmetric)
{
	if (asymmetric)
		syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
	else
		fence_seq_cst();
}
