/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_daemon.h"

#include "tiers/tier.h"

const struct bench_shape bench_shape_1mib = {
	.layers = BENCH_LAYERS,
	.heads = BENCH_HEADS,
	.dim = BENCH_DIM,
	.codec = KVTIER_CODEC_FP8,
};

/* --- the daemon --- */

/* kvtierd lies beside this program, and so does kvtierctl. Only a daemon of the tests is told how
 * long it spins (tests/lib/lib_tuned.c). */
static void find_programs(struct bench_daemon *d)
{
	const char *const names[] = { "/kvtierctl",
				      d->daemon_spin_us > 0 ? "/tests/kvtierd_tuned" : "/kvtierd" };
	const ssize_t n = readlink("/proc/self/exe", d->program, sizeof(d->program) - 32);
	char *slash;

	d->program[n > 0 ? n : 0] = 0;
	slash = strrchr(d->program, '/');
	d->directory = slash ? (int)(slash - d->program) : 0;
	for (int i = 0; i < 2; i++) {
		if (slash)
			strcpy(slash, names[i]);
		if (!slash || access(d->program, X_OK))
			bench_fail(-ENOENT,
				   "no %s beside this program: run the kvtier-bench of a build, or "
				   "put %s in its directory",
				   names[i] + 1, names[i] + 1);
	}
}

static void become_daemon(const struct bench_daemon *d, const char *config)
{
	char number[16];

	(void)snprintf(number, sizeof(number), "%" PRIu32, d->daemon_spin_us);
	if (d->daemon_spin_us > 0)
		(void)setenv("KVTIER_TEST_SPIN_US", number, 1);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	execl(d->program, "kvtierd", "--config", config, (char *)NULL);
	_exit(127);
}

static void spawn(struct bench_daemon *d, const char *sections)
{
	char path[128];
	FILE *f;

	find_programs(d);
	bench_dir("/tmp", d->run, sizeof(d->run));
	(void)snprintf(d->socket, sizeof(d->socket), "%s/kvtier.sock", d->run);
	(void)snprintf(path, sizeof(path), "%s/conf", d->run);
	f = fopen(path, "we");
	if (!f)
		bench_must(-errno);
	(void)fprintf(f, "[daemon]\nruntime_dir = %s\nstate_dir = %s\nlog_level = error\n%s",
		      d->run, d->state_dir ? d->state_dir : d->run, sections);
	(void)fclose(f);
	d->pid = fork();
	if (d->pid == 0)
		become_daemon(d, path);
	if (d->pid < 0)
		bench_must(-errno);
}

static void end(void *arg)
{
	const struct bench_daemon *d = arg;

	stats_unmap(d->stats);
	kvtier_close(d->client);
	if (d->pid > 0) {
		(void)kill(d->pid, SIGTERM);
		(void)waitpid(d->pid, NULL, 0);
	}
}

void bench_daemon_start(struct bench_daemon *d, const char *sections)
{
	const struct kvtier_options o = {
		.size = sizeof(o),
		.socket_path = d->socket,
		.name = "kvtier-bench",
		.timeout_ms = BENCH_PATIENCE_MS,
		.spin_us = d->spin_us,
	};
	char path[128];
	int r = -ENOENT;

	spawn(d, sections);
	bench_defer(end, d);
	for (int i = 0; i < 3000 && (r == -ENOENT || r == -ECONNREFUSED); i++) {
		r = kvtier_connect(&o, &d->client);
		if (r)
			usleep(10000);
	}
	bench_must(r);
	(void)snprintf(path, sizeof(path), "%s/stats", d->run);
	bench_must(stats_map(path, &d->stats));
}

void bench_daemon_ctl(const struct bench_daemon *d, const char *words)
{
	char command[800], text[256];
	FILE *f;

	(void)snprintf(command, sizeof(command), "%.*s/kvtierctl --socket %s %s 2>&1", d->directory,
		       d->program, d->socket, words);
	f = popen(command, "re");
	if (!f)
		bench_must(-errno);
	text[fread(text, 1, sizeof(text) - 1, f)] = 0;
	if (pclose(f))
		bench_fail(-EIO, "kvtierctl %s: %.80s", words, text);
}

void bench_daemon_await_up(const uint64_t *state)
{
	const uint64_t until = bench_now_ns() + BENCH_PATIENCE_MS * 1000000ull;

	while (stats_get(state) != STATS_TIER_STATE_BASE + TIER_UP) {
		if (bench_now_ns() > until)
			bench_must(-ETIMEDOUT);
		usleep(10000);
	}
}

double bench_daemon_cpu_seconds(const struct bench_daemon *d)
{
	clockid_t clock;

	return clock_getcpuclockid(d->pid, &clock) ? 0 : bench_cpu_seconds(clock);
}

/* --- the engine --- */

uint64_t bench_page_bytes(const struct bench_shape *s)
{
	return 2ull * s->layers * BENCH_TOKENS * s->heads * s->dim * 2;
}

struct kvtier_space *bench_space(struct kvtier_client *client, const struct bench_shape *shape,
				 const struct kvtier_region *region)
{
	const struct kvtier_geometry g = {
		.size = sizeof(g),
		.dtype = KVTIER_BF16,
		.model = "bench@1",
		.convention = "bench",
		.layers = shape->layers,
		.kv_heads = shape->heads,
		.head_dim_k = shape->dim,
		.head_dim_v = shape->dim,
		.block_tokens = BENCH_TOKENS,
		.world = 1,
		.codec = shape->codec,
	};
	const uint32_t n = 2 * shape->layers;
	struct kvtier_segment segments[2 * BENCH_LAYERS];
	struct kvtier_space *ret = NULL;

	for (uint32_t i = 0; i < n; i++)
		segments[i] = (struct kvtier_segment){
			.size = sizeof(*segments),
			.layer = i / 2,
			.kind = i % 2 ? KVTIER_V : KVTIER_K,
			.offset = i * bench_page_bytes(shape) / n,
			.page_stride = bench_page_bytes(shape),
			.head_stride = shape->dim * 2,
			.token_stride = (uint64_t)shape->heads * shape->dim * 2,
		};
	bench_must(kvtier_space_open(client, &g, region, region ? 1 : 0, segments, region ? n : 0,
				     &ret));
	return ret;
}

/* Values of ordinary size that fp8 and int8 hold exactly. compare: whether they are there already,
 * else they are written. */
static bool fill(const struct bench_daemon *d, bool compare)
{
	uint16_t *v = (uint16_t *)(void *)d->pages;
	uint64_t x = 88172645463325252u;

	for (size_t i = 0; i < d->bytes / 2; i++) {
		uint16_t value;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		value = (uint16_t)((x & 0x8000) | (124 + (x >> 20 & 3)) << 7 | (x >> 30 & 7) << 4);
		if (!compare)
			v[i] = value;
		else if (v[i] != value)
			return false;
	}
	return true;
}

void bench_daemon_spoil(struct bench_daemon *d)
{
	memset(d->pages, 0xa5, d->bytes);
}

void bench_daemon_compare(const struct bench_daemon *d)
{
	if (!fill(d, true))
		bench_must(-EBADMSG);
}

void bench_daemon_engine(struct bench_daemon *d, const struct bench_shape *shape, uint32_t blocks,
			 bool huge)
{
	struct kvtier_region region = { .size = sizeof(region), .memory = KVTIER_MEMFD };

	d->blocks = blocks / BENCH_OP * BENCH_OP;
	region.length = d->bytes = d->blocks * bench_page_bytes(shape);
	d->pages = bench_memfd(d->bytes, huge, &d->fd);
	region.fd = d->fd;
	(void)fill(d, false);
	d->space = bench_space(d->client, shape, &region);
}

void bench_daemon_open(struct bench_daemon *d, const char *sections,
		       const struct bench_shape *shape, uint32_t blocks)
{
	bench_daemon_start(d, sections);
	bench_daemon_engine(d, shape, blocks, false);
}

int bench_keys(struct kvtier_space *space, uint32_t run, uint32_t n, struct kvtier_key *ret)
{
	uint32_t tokens[BENCH_TOKENS * BENCH_OP] = { run };
	int r = 0;

	for (uint32_t i = 0; i < n && r == 0; i += BENCH_OP) {
		size_t some = n - i < BENCH_OP ? n - i : BENCH_OP;

		for (uint32_t t = 1; t < BENCH_TOKENS * BENCH_OP; t++)
			tokens[t] = i << 10 ^ t;
		r = kvtier_keys(space, NULL, tokens, BENCH_TOKENS * some, ret + i, &some);
	}
	return r;
}

void bench_daemon_keys(struct bench_daemon *d, uint32_t run)
{
	bench_must(bench_keys(d->space, run, d->blocks, d->keys));
}

int bench_wait(struct kvtier_client *client, uint64_t op, struct kvtier_result *ret)
{
	int r;

	*ret = (struct kvtier_result){ .size = sizeof(*ret) };
	r = kvtier_wait(client, op, -1, ret);
	return r ? r : ret->status;
}

int bench_move(struct kvtier_client *client, struct kvtier_space *space, bool load,
	       const struct kvtier_key *keys, uint32_t first, uint32_t n)
{
	uint64_t *ops = calloc((n + BENCH_OP - 1) / BENCH_OP, sizeof(*ops));
	uint32_t pages[BENCH_OP], begun = 0, ok = 0;
	int r = ops ? 0 : -ENOMEM;

	for (uint32_t at = 0; at < n && r == 0; at += BENCH_OP) {
		const uint32_t some = n - at < BENCH_OP ? n - at : BENCH_OP;

		for (uint32_t i = 0; i < some; i++)
			pages[i] = first + at + i;
		r = (load ? kvtier_load : kvtier_store)(space, keys + at, pages, some, NULL,
							&ops[begun]);
		begun += r == 0;
	}
	for (uint32_t i = 0; i < begun; i++) {
		struct kvtier_result result;
		const int w = bench_wait(client, ops[i], &result);

		ok += result.ok;
		r = r ? r : w;
	}
	free(ops);
	return r == 0 && ok < n ? -ENOENT : r;
}

void bench_daemon_move(struct bench_daemon *d, bool load)
{
	bench_must(bench_move(d->client, d->space, load, d->keys, 0, d->blocks));
}

void bench_daemon_await_on_nvme(const struct bench_daemon *d)
{
	const uint64_t until = bench_now_ns() + BENCH_PATIENCE_MS * 1000000ull;

	for (uint32_t i = 0; i < d->blocks;) {
		struct kvtier_hit hit = { .size = sizeof(hit) };
		const int r = kvtier_lookup(d->space, &d->keys[i], 1, &hit);

		bench_must(r || hit.blocks ? r : -ENOENT);
		if (hit.tiers & KVTIER_TIER_NVME)
			i++;
		else if (bench_now_ns() > until)
			bench_must(-ETIMEDOUT);
		else
			usleep(1000);
	}
}
