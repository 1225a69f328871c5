/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_man.h - a part of a manual page equals the text that the tables make. For cmocka tests.
 */
#ifndef KVTIER_LIB_MAN_H
#define KVTIER_LIB_MAN_H

#include <stdio.h>

/* Asserts that the page has the text of print(); `test` prints it when called with "man". Skips the
 * case where the page is not to be found: the test was not run from the source's top directory. */
void man_has(const char *page, void (*print)(FILE *out), const char *test);

#endif
