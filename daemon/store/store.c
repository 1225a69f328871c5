/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - see store.h. Core thread only. */
#include "store.h"

#include "space.h"
#include "tally.h"

static struct tally *tally(void *store)
{
	return blocks_tally(((struct store *)store)->blocks);
}

static uint32_t blocks_held(void *store, uint32_t space)
{
	return tally_held(tally(store), space);
}

static void blocks_are(void *store, uint32_t space, const uint8_t index_key[16], uint32_t tenant)
{
	tally_space_is(tally(store), space, index_key, tenant);
}

static void blocks_doom(void *store, uint32_t space, bool doomed)
{
	tally_doom(tally(store), space, doomed);
}

void store_attach_spaces(struct store *store)
{
	spaces_attach(store->spaces, &(struct spaces_blocks){ .arg = store,
							      .held = blocks_held,
							      .is = blocks_are,
							      .doom = blocks_doom });
}
