/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=pread,pwrite,fdatasync,io_uring_peek_batch_cqe,tier_open */
/*
 * kvtierd_faulty.c - what makes of kvtierd one whose disks fail on command: linked in with
 * lib_io_faults.c, it takes its plan from the file that KVTIER_TEST_FAULTS names.
 * KVTIER_TEST_PROBE_MS: a disk in trouble is first probed after so long, instead of 1 s. For
 * sys_nvme_io.c and its kind; never installed.
 */
#include "lib_io_faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiers/nvme/nvme.h"

__attribute__((constructor)) static void join_the_test(void)
{
	const char *path = getenv("KVTIER_TEST_FAULTS");
	const int r = path ? io_plan_share(path, false) : -2;

	if (r) {
		fprintf(stderr, "KVTIER_TEST_FAULTS: %s\n", strerror(-r));
		_Exit(1);
	}
}

int __real_tier_open(enum tier_id id, const struct tier_conf *conf, struct loop *loop,
		     struct tier **ret, char *text, size_t n);
int __wrap_tier_open(enum tier_id id, const struct tier_conf *conf, struct loop *loop,
		     struct tier **ret, char *text, size_t n);

int __wrap_tier_open(enum tier_id id, const struct tier_conf *conf, struct loop *loop,
		     struct tier **ret, char *text, size_t n)
{
	const char *probe_ms = getenv("KVTIER_TEST_PROBE_MS");
	struct nvme_tier_conf nvme;

	if (id != TIER_NVME || !probe_ms)
		return __real_tier_open(id, conf, loop, ret, text, n);
	nvme = *conf->nvme;
	nvme.probe_ns = strtoull(probe_ms, NULL, 10) * 1000000u;
	return __real_tier_open(id, &(struct tier_conf){ .nvme = &nvme }, loop, ret, text, n);
}
