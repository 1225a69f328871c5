/* SPDX-License-Identifier: Apache-2.0 */
/* lib_clock_until.c - the part of lib_clock.h that reads a daemon's gauges: lib_clock.c is in the
 * daemons, too, and they can have nothing of lib.c. */
#include "lib_clock.h"

#include "lib.h"

enum { LOOKS = 1000 };

void clock_pass_until(const struct daemon *d, uint64_t ms, const char *path, uint64_t value)
{
	for (int i = 0; daemon_stat(d, path) != value; i++) {
		if (i == LOOKS)
			fail_msg("%s is %llu, and does not become %llu", path,
				 (unsigned long long)daemon_stat(d, path),
				 (unsigned long long)value);
		clock_pass_ms(ms);
		nap_ms(10);
	}
}
