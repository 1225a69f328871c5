/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_block.h - a small table of blocks, the client's view of its index, and blocks with copies by
 * number. For cmocka tests. The numbers of blocks are a test's own; each stands for a key, an
 * address in host memory and one on disk.
 */
#pragma once

#include "client/lib/base/map.h"
#include "daemon/table/block.h"
#include "test.h"

enum { MAX = 64, SPACE = 5, CLASS = 1, HOST = 1 << TIER_HOST, NVME = 1 << TIER_NVME };

/* Of SPACE. */
static const uint8_t index_key_bytes[16] = { 0xc0, 0xff, 0xee };

extern struct index *table;
extern struct blocks *blocks;

/* Around a case: the table is empty at first. */
int table_set_up(void **state);
int table_tear_down(void **state);
struct extent table_host_at(uint32_t slot);
/* A new block in host memory; in both; on disk alone. */
int table_try(uint64_t number, uint32_t parent, uint32_t *ret);
uint32_t table_commit(uint64_t number, uint32_t parent);
int table_try_away(uint32_t number, uint64_t tick, uint32_t *ret);
uint32_t table_commit_away(uint32_t number, uint64_t tick);
void table_set_nvme(uint32_t block, uint32_t number);
void table_promote(uint32_t block, uint32_t parent, uint32_t slot);
uint32_t table_commit_both(uint32_t number);
/* A block that was in host and is away now. */
uint32_t table_demoted(uint32_t number);
uint32_t table_find(uint64_t number);
/* Asserts the client's view of a block, and the counts. */
void table_is_seen(uint32_t number, uint32_t tiers, uint32_t in_host, uint32_t in_nvme);
void table_is_nvme(uint32_t block, uint32_t number);
