/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_shared.h"

#include "daemon/config/secret.h"

#include "lib_clock.h"
#include "lib_disk.h"

/* Gauges follow with the daemon's heartbeat. An endpoint that was left alone is tried again after
 * up to 38 s: these pass in steps that no op's deadline minds, each followed by a quiet time, in
 * which the try may succeed. */
enum { BEAT_MS = 300, STEP_MS = 8000, QUIET_MS = 100, LOOK_MS = 20 };

static const char host_lines[] = "bytes = 16M\nslab_bytes = 1M\n";

static void secret_of(uint32_t number, char ret[64])
{
	(void)snprintf(ret, 64, "a secret that nodes share, number %u", number);
}

/* --- a node's life --- */

void node_file(const struct node *n, const char *name, const char *text, int mode, char ret[200])
{
	int fd;

	(void)snprintf(ret, 200, "%s/%s", n->d.dir, name);
	(void)unlink(ret);
	fd = open(ret, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		fail_msg("%s: %s", ret, strerror(errno));
	(void)close(fd);
}

void node_configure(struct node *n, const struct node_conf *conf)
{
	/* Without a word about time, a busy machine costs no block. */
	const bool patient = !conf->lines || !strstr(conf->lines, "timeout_ms");
	char secret[64], path[200], lines[4096];

	secret_of(conf->secret, secret);
	node_file(n, "shared", secret, 0600, path);
	if ((size_t)snprintf(lines, sizeof(lines),
			     "[host]\nhuge_pages = no\n%s\n[redis]\nendpoints = %s\nsecret_file = "
			     "%s\n%s%s\n",
			     conf->host ? conf->host : host_lines, conf->endpoints, path,
			     patient ? "timeout_ms = 20000\n" : "",
			     conf->lines ? conf->lines : "") >= sizeof(lines))
		fail_msg("configuration too long");
	daemon_configure(&n->d, lines);
	if (!patient) /* then time passes only where the test says so */
		n->d.beat = NULL;
}

void node_place(struct node *n, const struct node_conf *conf)
{
	memset(n, 0, sizeof(*n));
	daemon_place(&n->d, conf->lines && strstr(conf->lines, "[nvme]"));
	clock_hold(&n->d);
	node_configure(n, conf);
}

void node_live(struct node *n)
{
	struct look look;
	char state[64];

	daemon_restart(&n->d);
	if (n->d.disk[0])
		disk_state_becomes(&n->d, "up", SHARED_MS);
	look = look_at(&n->d, SHARED_MS);
	while (daemon_word(&n->d, "tiers.redis.state", state, sizeof(state)),
	       strcmp(state, "starting") == 0)
		if (!look_again(&look))
			fail_msg("the Redis tier is starting all the time");
}

void node_join(struct node *n, const struct kvtier_geometry *geometry)
{
	engine_open(&n->e, n->d.socket, "engine", geometry, SHARED_PAGES);
}

void node_end(struct node *n)
{
	if (n->e.client)
		engine_close(&n->e);
	if (n->d.dir[0])
		daemon_remove(&n->d);
}

void node_evict(struct node *n)
{
	if (daemon_ctl(&n->d, "evict --all", n->text, sizeof(n->text)) != 0)
		fail_msg("kvtierctl evict --all: %s", n->text);
}

void node_owes_nothing(struct node *n)
{
	const time_t end = time(NULL) + SHARED_MS / 1000; /* the daemon's clock runs ahead */

	clock_pass_ms(BEAT_MS);
	daemon_stat_becomes(&n->d, "ops.outstanding", 0, SHARED_MS);
	daemon_stat_becomes(&n->d, "tiers.redis.queued_blocks", 0, SHARED_MS);
	do {
		if (time(NULL) > end)
			fail_msg("host memory does not become empty");
		node_evict(n);
		clock_pass_ms(BEAT_MS);
	} while (daemon_stat(&n->d, "tiers.host.used_bytes") > 0);
	daemon_stat_becomes(&n->d, "leases", 0, SHARED_MS);
}

/* --- rows and gauges --- */

void node_becomes(const struct node *n, const char *state, int timeout_ms)
{
	char now[64], text[512];

	for (int ms = 0, quiet_ms = QUIET_MS; ms < timeout_ms; ms += LOOK_MS, quiet_ms -= LOOK_MS) {
		daemon_word(&n->d, "tiers.redis.state", now, sizeof(now));
		if (strcmp(now, state) == 0)
			return;
		if (quiet_ms <= 0) {
			clock_pass_ms(STEP_MS);
			quiet_ms = ms + QUIET_MS;
		}
		nap_ms(LOOK_MS);
	}
	daemon_word(&n->d, "tiers.redis.text", text, sizeof(text));
	fail_msg("the Redis tier is %s, not %s, after %d ms: %s", now, state, timeout_ms, text);
}

/* --- ops --- */

uint32_t node_prefetch(struct node *n, const struct kvtier_key *keys, uint32_t blocks)
{
	int32_t statuses[KVTIER_MAX_BLOCKS];
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = statuses,
					.blocks_max = KVTIER_MAX_BLOCKS };
	uint64_t op;

	assert_int_equal(kvtier_prefetch(n->e.space, keys, blocks, NULL, &op), 0);
	assert_int_equal(kvtier_wait(n->e.client, op, -1, &result), 0);
	for (uint32_t i = 0; i < blocks; i++)
		if (statuses[i] != 0 && statuses[i] != -ENOENT && statuses[i] != -ENOSPC)
			fail_msg("prefetch: block %u has status %d", i, statuses[i]);
	return result.prefix;
}

uint32_t node_load_each(struct node *n, const struct kvtier_key *keys, uint32_t first,
			uint32_t blocks)
{
	uint32_t hits = 0;

	for (uint32_t i = 0; i < blocks; i++) {
		const uint64_t op = chain_load_begin(&n->e, &keys[i], first + i, 1, 0);

		hits += chain_load_end(&n->e, op, &keys[i], first + i, 1, -ENOENT);
	}
	return hits;
}

static uint64_t answered(const struct node *n)
{
	return daemon_stat(&n->d, "tiers.redis.written_blocks_total") +
	       daemon_stat(&n->d, "tiers.redis.present_blocks_total");
}

void node_store_through(struct node *n, const struct kvtier_key *keys, uint32_t blocks)
{
	const uint64_t before = answered(n);
	struct look look = look_at(&n->d, SHARED_MS);

	assert_int_equal(chain_store(&n->e, keys, 0, blocks), 0);
	while (answered(n) < before + blocks)
		if (!look_again(&look))
			fail_msg("of %u blocks %llu are in Redis", blocks,
				 (unsigned long long)(answered(n) - before));
}

/* --- Redis --- */

void shared_seal(uint32_t secret, struct redis_seal *ret)
{
	uint8_t tenants[SECRET_BYTES];
	char text[64];

	secret_of(secret, text);
	secret_derive((const uint8_t *)text, strlen(text), "default", tenants);
	redis_seal_derive(tenants, sizeof(tenants), ret);
}

void shared_name(const char *prefix, const struct kvtier_key *key, char ret[SHARED_NAME])
{
	struct redis_seal seal;
	int n;

	shared_seal(0, &seal);
	n = snprintf(ret, SHARED_NAME, "%.60s%.16s:", prefix, seal.tag);

	for (size_t i = 0; i < sizeof(key->bytes); i++)
		n += snprintf(ret + n, SHARED_NAME - (size_t)n, "%02x", key->bytes[i]);
}

void shared_asks_until(const struct redis_server *s, long long value, const char *command)
{
	AWAIT(redis_ask(s, "%s", command) == value);
}

/* --- two nodes --- */

struct shared *shared_world(void)
{
	static struct shared w;

	memset(&w, 0, sizeof(w));
	return &w;
}

struct shared *shared_begin(const char *redis_options, const char *lines, uint32_t codec)
{
	return shared_begin_in(redis_options, lines, NULL, codec);
}

struct shared *shared_begin_in(const char *redis_options, const char *lines, const char *host,
			       uint32_t codec)
{
	const struct kvtier_geometry g = tiny_geometry(codec);
	struct shared *w = shared_world();
	const struct node_conf conf = { .endpoints = w->redis.address,
					.lines = lines,
					.host = host };

	redis_start(&w->redis, redis_options);
	node_place(&w->a, &conf);
	node_place(&w->b, &conf);
	node_live(&w->a);
	node_live(&w->b);
	node_join(&w->a, &g);
	node_join(&w->b, &g);
	chain_keys(&w->a.e, 1, SHARED_BLOCKS, w->keys);
	return w;
}

void shared_end(struct shared *w)
{
	node_end(&w->a);
	node_end(&w->b);
	redis_stop(&w->redis);
}
