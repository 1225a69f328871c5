/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=pread,pwrite,fdatasync,io_uring_peek_batch_cqe */
/* make: wrap=clock_gettime,epoll_wait,stats_open,stats_heartbeat,pthread_cond_timedwait */
/*
 * kvtierd_faulty.c - a kvtierd whose disks fail on command: linked in with lib_io_faults.c, it
 * takes its plan from the file that KVTIER_TEST_FAULTS names. The test holds its clock, too
 * (lib_clock.h). For sys_nvme_io.kvt and its kind; never installed.
 */
#include "lib_io_faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void join_the_test(void)
{
	const char *path = getenv("KVTIER_TEST_FAULTS");
	const int r = path ? io_plan_share(path, false) : -2;

	if (r) {
		fprintf(stderr, "KVTIER_TEST_FAULTS: %s\n", strerror(-r));
		_Exit(1);
	}
}
