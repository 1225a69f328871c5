/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_nvme_lies.h - a workload of every deed of the log, on a disk that lies: it says "written" and
 * lost it, wrote it elsewhere, or answers a read with earlier bytes. A wrong byte, or a log that
 * does not start again, ends the test.
 */
#pragma once

#include "lib_nvme.h"

/* The n-th I/O is this lie, n = 1, 2, ... until a run has no n-th I/O. */
void lies_at_every_io(enum sim_lie lie, uint64_t seed);
/* One I/O in eight is a lie: at least so many lies, and until this time of CLOCK_MONOTONIC. Prints
 * how many there were. */
void lies_by_chance(uint64_t seed, uint64_t least, uint64_t until_ns);
