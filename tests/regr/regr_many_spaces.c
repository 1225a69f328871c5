/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=15 wrap=connect (clients are processes) */
/*
 * regr_many_spaces.c - goal: a client that opens any number of spaces does not keep others from
 * opening one. Method: an engine has a space open, with blocks. A client opens one space after
 * another, stores a block in each and closes it. Then a new engine must be able to open a space of
 * its own, to store and to load; and again after a restart, clean or not, when all those blocks are
 * found on NVMe. The first engine's blocks must all be there throughout. Once with the table's
 * usual size, once with a small one, in which spaces go for others all the time: there it finds
 * them while it has its space open, and the blocks of spaces that went are gone. Last, clients open
 * spaces and leave them open until they are refused: then others must still get their share.
 */
#include "tests/lib/lib.h"

enum { SPACES = 3000, BLOCKS = 16, FEW = 100, PATIENCE_MS = 20000 };

static struct {
	struct daemon d;
	struct engine first;
	struct kvtier_key keys[BLOCKS];
} w;

/* One head with one value, 16 tokens: 64 bytes a block. */
static struct kvtier_geometry least_geometry(char model[32], uint32_t number)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	snprintf(model, 32, "attacker-%u", number);
	g.model = model;
	g.layers = g.kv_heads = g.head_dim_k = g.head_dim_v = 1;
	return g;
}

static void fill_one(struct kvtier_client *client, const struct kvtier_region *region,
		     uint32_t number)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_segment segments[2];
	struct kvtier_space *space;
	struct kvtier_key key;
	char model[32];
	const struct kvtier_geometry g = least_geometry(model, number);
	const size_t n = engine_segments(&g, segments, 2);
	uint64_t op;

	if (kvtier_space_open(client, &g, region, 1, segments, n, &space))
		fail_msg("space %u: %s", number, kvtier_last_error());
	random_key(number, key.bytes);
	assert_int_equal(kvtier_store(space, &key, (uint32_t[]){ 0 }, 1, NULL, &op), 0);
	assert_int_equal(kvtier_wait(client, op, -1, &result), 0);
	assert_int_equal(result.status, 0);
	kvtier_space_close(space);
}

static struct kvtier_client *dial(const char *name)
{
	struct kvtier_client *client;

	assert_int_equal(client_dial(w.d.socket, name, PATIENCE_MS, &client), 0);
	return client;
}

static void fill_table(void)
{
	struct kvtier_region region = { .size = sizeof(region),
					.memory = KVTIER_MEMFD,
					.length = 4096 };
	struct kvtier_client *client = dial("attacker");

	region.fd = memfd_make(4096, F_SEAL_SHRINK | F_SEAL_GROW);
	assert_int_equal(fallocate(region.fd, 0, 0, 4096), 0);
	for (uint32_t i = 0; i < SPACES; i++)
		fill_one(client, &region, i);
	kvtier_close(client);
	(void)close(region.fd);
}

static void first_has_all(void)
{
	assert_int_equal(chain_load(&w.first, w.keys, 0, BLOCKS), BLOCKS);
}

static void open_first(void)
{
	engine_open(&w.first, w.d.socket, "first", &tiny_raw, BLOCKS);
	chain_keys(&w.first, 1, BLOCKS, w.keys);
}

static void restarted(int signal, bool survives)
{
	(void)daemon_told(&w.d, "flush");
	engine_close(&w.first);
	daemon_signal(&w.d, signal);
	daemon_restart(&w.d);
	open_first();
	if (!survives)
		assert_int_equal(chain_store(&w.first, w.keys, 0, BLOCKS), 0);
	first_has_all();
}

/* As many as may be are kept, and of the others neither blocks nor records. */
static void others_went(void)
{
	char text[2048];

	daemon_stat_reaches(&w.d, "spaces_recycled_total", SPACES - FEW);
	AWAIT(daemon_stat(&w.d, "tiers.host.blocks") <= FEW + 2 * BLOCKS);
	assert_in_range(daemon_stat(&w.d, "tiers.host.blocks"), 2 * BLOCKS, FEW + 2 * BLOCKS);
	assert_in_range(daemon_stat(&w.d, "tiers.nvme.blocks"), 0, FEW + 2 * BLOCKS);
	assert_in_range(daemon_stat(&w.d, "spaces"), FEW / 2, FEW);
	assert_in_range(daemon_stat(&w.d, "spaces_recycled_total"), SPACES - FEW, 2 * SPACES);
	assert_int_equal(daemon_ctl(&w.d, "status", text, sizeof(text)), 1);
	assert_non_null(strstr(text, "spaces_recycled"));
}

static void run(uint32_t max_spaces)
{
	const bool few = max_spaces < SPACES;
	char config[256];

	snprintf(config, sizeof(config),
		 HOST("64M", "256K") "[nvme]\nbytes = 256M\n[index]\nmax_spaces = %u\n",
		 max_spaces);
	daemon_start(&w.d, config);
	open_first();
	assert_int_equal(chain_store(&w.first, w.keys, 0, BLOCKS), 0);
	fill_table();
	engine_works_for(w.d.socket, "new@1");
	first_has_all();
	if (few)
		others_went();
	restarted(SIGTERM, !few);
	engine_works_for(w.d.socket, "new@2");
	first_has_all();
	fill_table();
	first_has_all();
	restarted(SIGKILL, !few);
	engine_works_for(w.d.socket, "new@3");
	first_has_all();
	engine_close(&w.first);
	daemon_remove(&w.d);
}

TEST_DO(a_new_model_gets_in, run(16384));
TEST_DO(a_new_model_gets_in_where_spaces_go, run(FEW));

/* --- spaces that stay open --- */

/* Opens spaces that nobody has, number first and on, until one is refused; how many. */
static uint32_t open_all(struct kvtier_client *client, uint32_t first)
{
	struct kvtier_space *space;
	uint32_t n = 0;
	int r = 0;

	while (r == 0) {
		char model[32];
		const struct kvtier_geometry g = least_geometry(model, first + n);

		r = kvtier_space_open(client, &g, NULL, 0, NULL, 0, &space);
		n += r == 0;
	}
	if (r == -EMFILE) /* KVTIER_MAX_SPACES */
		return n;
	assert_int_equal(r, -ENOSPC);
	if (!strstr(kvtier_last_error(), "max_spaces"))
		fail_msg("the limit is not named: %s", kvtier_last_error());
	return n;
}

TEST(one_client_leaves_spaces_for_others)
{
	struct kvtier_client *hog, *quiet;

	daemon_start(&w.d, SMALL_HOST "[index]\nmax_spaces = 16\n");
	hog = dial("hog");
	/* the spaces beyond all shares, and its own share */
	assert_int_equal(open_all(hog, 0), 8 + 1);
	engine_works_for(w.d.socket, "new@1");
	quiet = dial("quiet");
	assert_int_equal(open_all(quiet, 100), 1);
	kvtier_close(hog);
	daemon_stat_becomes(&w.d, "clients", 1, PATIENCE_MS);
	assert_int_equal(open_all(quiet, 200), 8);
	kvtier_close(quiet);
	daemon_remove(&w.d);
}

enum { CONNECTIONS = 16, SHARE = 2 };

TEST(all_others_leave_the_share_of_the_last)
{
	struct kvtier_client *hogs[CONNECTIONS - 1], *last;
	uint32_t n = 0;

	daemon_start(&w.d, SMALL_HOST "[socket]\nmax_clients = 16\nmax_clients_per_uid = 16\n"
				      "[index]\nmax_spaces = 64\n");
	for (uint32_t i = 0; i < CONNECTIONS - 1; i++) {
		hogs[i] = dial("hog");
		n += open_all(hogs[i], 100 * i);
	}
	assert_int_equal(n, 32 + (CONNECTIONS - 1) * SHARE);
	last = dial("last");
	assert_int_equal(open_all(last, 10000), SHARE);
	for (uint32_t i = 0; i < CONNECTIONS - 1; i++)
		kvtier_close(hogs[i]);
	kvtier_close(last);
	daemon_remove(&w.d);
}
