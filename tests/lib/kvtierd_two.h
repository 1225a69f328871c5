/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierd_two.h - facts about the second device of kvtierd_two.c, for tests.
 */
#ifndef KVTIER_KVTIERD_TWO_H
#define KVTIER_KVTIERD_TWO_H

enum { TWO_DEPTH = 2 };   /* jobs at a time */
enum { TWO_UUID = 0xd2 }; /* each byte of its UUID */

#endif
