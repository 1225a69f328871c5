/* SPDX-License-Identifier: Apache-2.0 */
/* wrap.h - functions in front of the system's or the product's: fact `wrap=NAME`, see README.md. */
#pragma once

/* The head of one, which calls __real_NAME() for what is behind it. */
#define REAL(type, name, params)   \
	type __real_##name params; \
	type __wrap_##name params; \
	type __wrap_##name params
