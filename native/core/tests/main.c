#include "check.h"

int main(void)
{
	return run_tests();
}
