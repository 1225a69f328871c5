/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierd_two.h - what a test knows of the second device of kvtierd_two.c.
 */
#ifndef KVTIER_TESTS_KVTIERD_TWO_H
#define KVTIER_TESTS_KVTIERD_TWO_H

enum { TWO_DEPTH = 2 };   /* jobs at a time */
enum { TWO_UUID = 0xd2 }; /* each byte of its UUID */

#endif
