/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numbers.h - which numbers of blocks are given out, and the key that each stands for. For block.c.
 * Core thread only; nothing is allocated after open.
 */
#ifndef KVTIER_NUMBERS_H
#define KVTIER_NUMBERS_H

#include <stdint.h>

enum {
	NUMBERS_NONE = 0xffffffff,
	NUMBERS_BYTES = 32, /* memory of each that was given out: its key */
};

/* The key, or of a number on a list the next one. */
union numbers_name {
	uint8_t key[NUMBERS_BYTES];
	uint32_t next;
};

struct numbers {
	union numbers_name *name;
	uint32_t max, used; /* numbers >= used were never given out */
	uint32_t free;      /* a list */
};

int numbers_open(struct numbers *n, uint32_t max); /* 0, -ENOMEM; touched as used */
void numbers_close(struct numbers *n);             /* of zeros: nothing happens */

/* NUMBERS_NONE: all are given out. The lowest that never was, unless one came back. */
uint32_t numbers_take(struct numbers *n);
void numbers_give_back(struct numbers *n, uint32_t number);

/* A number whose key nobody needs any more can stand on a list of the caller's, which costs
 * nothing: *list is its head, NUMBERS_NONE: empty. */
void numbers_push(struct numbers *n, uint32_t *list, uint32_t number);
uint32_t numbers_pop(struct numbers *n, uint32_t *list); /* NUMBERS_NONE: it was empty */

/* 32 bytes, the caller's to write and to read until the number goes back or on a list. */
static inline uint8_t *numbers_key(const struct numbers *n, uint32_t number)
{
	return n->name[number].key;
}

#endif
