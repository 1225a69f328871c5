/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_tenants.c - goal: equal tokens of equal spaces have unequal keys for unequal tenants, so that
 * no tenant can ask for another one's blocks. Method: two daemons, each with its own secret; one
 * daemon under two tenants' names.
 */
#include "tests/lib/lib.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4 };

static const char config[] = "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n";

static void keys_at(const struct daemon *d, struct kvtier_key *ret)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct engine e;

	engine_open(&e, d->socket, "engine", &g, BLOCKS);
	chain_keys(&e, 1, BLOCKS, ret);
	engine_close(&e);
}

/* Not one fingerprint in common: the index compares the first 16 bytes. */
static void assert_strangers(const struct kvtier_key *a, const struct kvtier_key *b)
{
	for (int i = 0; i < BLOCKS; i++)
		for (int k = 0; k < BLOCKS; k++)
			assert_memory_not_equal(a[i].bytes, b[k].bytes, 16);
}

TEST(two_secrets_two_sets_of_keys)
{
	struct kvtier_key a[BLOCKS], b[BLOCKS];
	struct daemon one, other;

	daemon_start(&one, config);
	daemon_start(&other, config);
	keys_at(&one, a);
	keys_at(&other, b);
	assert_strangers(a, b);
	daemon_remove(&one);
	daemon_remove(&other);
}

/* The same directory, served for another tenant: another secret is made, the first one's is
 * kept. */
TEST(tenant_of_the_socket_decides)
{
	struct kvtier_key first[BLOCKS], second[BLOCKS], again[BLOCKS];
	char line[256];
	struct daemon d;

	daemon_start(&d, "[socket]\ntenant = default\n[host]\nbytes = 1M\nhuge_pages = no\n");
	keys_at(&d, first);
	daemon_signal(&d, SIGTERM);
	snprintf(line, sizeof(line), "sed -i 's/^tenant = .*/tenant = team-b.2/' %s", d.config);
	assert_int_equal(system(line), 0);
	daemon_restart(&d);
	keys_at(&d, second);
	assert_strangers(first, second);
	daemon_signal(&d, SIGTERM);
	snprintf(line, sizeof(line), "sed -i 's/^tenant = .*/tenant = default/' %s", d.config);
	assert_int_equal(system(line), 0);
	daemon_restart(&d);
	keys_at(&d, again);
	assert_memory_equal(first, again, sizeof(first));
	daemon_remove(&d);
}

/* A message cannot say whose it is: spaces that differ in any string differ in their keys. */
TEST(another_space_another_set_of_keys)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key a[BLOCKS], b[BLOCKS];
	struct engine e;
	struct daemon d;

	daemon_start(&d, config);
	keys_at(&d, a);
	g.extras = "lora=7";
	engine_open(&e, d.socket, "engine", &g, BLOCKS);
	chain_keys(&e, 1, BLOCKS, b);
	assert_strangers(a, b);
	engine_close(&e);
	daemon_remove(&d);
}
