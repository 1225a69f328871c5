/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierd_two.h - facts about the second device of kvtierd_two.c, for tests.
 */
#pragma once

enum { TWO_DEPTH = 2 };   /* jobs at a time */
enum { TWO_UUID = 0xd2 }; /* each byte of its UUID */
