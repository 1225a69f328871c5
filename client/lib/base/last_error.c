/* SPDX-License-Identifier: Apache-2.0 */
/*
 * last_error.c - the sentence behind a failure, for which each thread has a buffer; and the rule
 * for the size of structs that may grow.
 */
#include "last_error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "client/kvtier.h"

/* a larger size is a wild number, as no struct of ours comes near this */
enum { STRUCT_BYTES_MAX = 4096 };

static _Thread_local char last_error[320];

int error_set(int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(last_error, sizeof(last_error), format, args);
	va_end(args);
	return error;
}

const char *kvtier_last_error(void)
{
	return last_error;
}

int error_struct_of(void *ret, size_t known, const void *in, uint32_t size, const char *name)
{
	const uint8_t *bytes = in;

	if (size < sizeof(size))
		return error_set(-EINVAL, "%s.size is %u: set it to sizeof the struct, %zu", name,
				 size, known);
	if (size > STRUCT_BYTES_MAX)
		return error_set(-E2BIG, "%s.size is %u, at most %d", name, size, STRUCT_BYTES_MAX);
	for (size_t i = known; i < size; i++)
		if (bytes[i])
			return error_set(
				-E2BIG,
				"%s.size is %u, this library knows %zu bytes, and byte %zu is set",
				name, size, known, i);
	memset(ret, 0, known);
	memcpy(ret, in, size < known ? size : known);
	return 0;
}

int error_struct_in(void *ret, size_t known, const void *in, const char *name)
{
	uint32_t size;

	if (!in)
		return error_set(-EINVAL, "%s is NULL", name);
	memcpy(&size, in, sizeof(size));
	return error_struct_of(ret, known, in, size, name);
}
