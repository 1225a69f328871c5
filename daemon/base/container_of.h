/* SPDX-License-Identifier: Apache-2.0 */
/*
 * container_of.h - from a member, which a callback was given, to the struct that embeds it.
 */
#ifndef KVTIER_CONTAINER_OF_H
#define KVTIER_CONTAINER_OF_H

#include <stddef.h>

#define container_of(pointer, type, member) \
	((type *)(void *)((char *)(pointer)-offsetof(type, member)))

#endif
