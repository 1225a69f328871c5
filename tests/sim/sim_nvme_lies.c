/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 */
/*
 * sim_nvme_lies - goal: a disk that says "written" and lost it, wrote it elsewhere, or answers a
 * read with earlier bytes, costs blocks and never gives a wrong byte; the log goes on, and starts
 * again. Method: a workload of every deed of the log, with the n-th I/O a lie, n = 1, 2, ... until
 * a run has no n-th I/O, of each kind; then 10,000 lies by chance, one I/O in eight. Seed printed.
 */
#include "tests/lib/lib_nvme_lies.h"
#include "tests/lib/test.h"

enum { LIES = 10000 };

static uint64_t seed;

TEST_DO(a_write_is_lost, lies_at_every_io(SIM_LOST, seed));
TEST_DO(a_write_goes_elsewhere, lies_at_every_io(SIM_MISDIRECTED, seed));
TEST_DO(a_read_is_stale, lies_at_every_io(SIM_STALE, seed));
TEST_DO(many_lies, lies_by_chance(seed, LIES, 0));

TEST_FIRST(seed = random_seeded("sim_nvme_lies").state);
