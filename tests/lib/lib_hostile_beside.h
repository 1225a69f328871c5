/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_hostile_beside.h - an honest engine beside a hostile client (lib_hostile.h): it stores and
 * loads, compares every byte, and no op of it may fail.
 */
#ifndef KVTIER_TESTS_LIB_HOSTILE_BESIDE_H
#define KVTIER_TESTS_LIB_HOSTILE_BESIDE_H

#include <stdint.h>

/* A daemon of its own, for at least so long. Ends the test if anything is wrong. */
void hostile_beside(const char *test, uint32_t seconds);

#endif
