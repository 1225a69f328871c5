/* SPDX-License-Identifier: Apache-2.0 */
/* bench_daemon.c - see bench_daemon.h. */
#include "bench_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OP_BLOCKS = 32, PROGRAM_BYTES = sizeof(((struct bench_daemon *)NULL)->program) };

static size_t region_bytes(const struct bench_daemon *d)
{
	return (size_t)d->blocks * BENCH_PAGE;
}

/* --- the daemon --- */

/* kvtierd lies beside this program, and so does kvtierctl. NULL, or which of them does not. */
static const char *find_programs(char path[PROGRAM_BYTES])
{
	static const char *const names[] = { "/kvtierctl", "/kvtierd" };
	const ssize_t n = readlink("/proc/self/exe", path, PROGRAM_BYTES - 16);

	path[n > 0 ? n : 0] = 0;
	for (int i = 0; i < 2; i++) {
		char *slash = strrchr(path, '/');

		if (slash)
			strcpy(slash, names[i]);
		if (!slash || access(path, X_OK))
			return names[i] + 1;
	}
	return NULL;
}

void bench_daemon_explain(int r, char *note, size_t n)
{
	const char *words = kvtier_last_error();
	char path[PROGRAM_BYTES];
	const char *missing = find_programs(path);

	if (missing)
		(void)snprintf(note, n,
			       "no %s beside this program: run the kvtier-bench of a build, or put "
			       "%s in its directory",
			       missing, missing);
	else
		(void)snprintf(note, n, "%.60s%s%s", words, words[0] ? "; " : "", strerror(-r));
}

static int spawn(struct bench_daemon *d, const char *state_dir, const char *sections)
{
	char path[128];
	FILE *f;

	if (find_programs(d->program))
		return -ENOENT;
	strcpy(d->run, "/tmp/kvtier-bench-XXXXXX");
	if (!mkdtemp(d->run)) {
		d->run[0] = 0;
		return -errno;
	}
	(void)snprintf(d->socket, sizeof(d->socket), "%s/kvtier.sock", d->run);
	(void)snprintf(path, sizeof(path), "%s/conf", d->run);
	f = fopen(path, "we");
	if (!f)
		return -errno;
	(void)fprintf(f, "[daemon]\nruntime_dir = %s\nstate_dir = %s\nlog_level = error\n%s",
		      d->run, state_dir ? state_dir : d->run, sections);
	(void)fclose(f);
	d->pid = fork();
	if (d->pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(d->program, "kvtierd", "--config", path, (char *)NULL);
		_exit(127);
	}
	return d->pid < 0 ? -errno : 0;
}

int bench_daemon_ctl(const struct bench_daemon *d, const char *words, char *ret, size_t n)
{
	char command[800];
	FILE *f;
	size_t got;

	(void)snprintf(command, sizeof(command), "%.*sctl --socket %s %s 2>&1",
		       (int)(strlen(d->program) - 1), d->program, d->socket, words);
	f = popen(command, "re");
	if (!f)
		return -errno;
	got = fread(ret, 1, n - 1, f);
	ret[got] = 0;
	return pclose(f) ? -EIO : 0;
}

int bench_daemon_await_up(const struct bench_daemon *d, const char *tier)
{
	char words[64], text[512];

	(void)snprintf(words, sizeof(words), "stats -f tiers.%s.state", tier);
	for (int i = 0; i < BENCH_PATIENCE_MS / 20; i++) {
		if (bench_daemon_ctl(d, words, text, sizeof(text)) == 0 && strstr(text, " up"))
			return 0;
		usleep(20000);
	}
	return -ETIMEDOUT;
}

double bench_daemon_cpu_seconds(const struct bench_daemon *d)
{
	char path[64];
	unsigned long user = 0, system = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", d->pid);
	f = fopen(path, "re");
	if (f) {
		(void)!fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
			      &user, &system);
		(void)fclose(f);
	}
	return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* --- the pages --- */

/* Values of ordinary size that E4M3 holds exactly. compare: whether they are there already, else
 * they are written. */
static bool fill(const struct bench_daemon *d, bool compare)
{
	const size_t n = region_bytes(d) / 2;
	uint16_t *v = (uint16_t *)(void *)d->pages;
	uint64_t x = 88172645463325252u;

	for (size_t i = 0; i < n; i++) {
		uint16_t value;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		value = (uint16_t)((x & 0x8000) | (122 + (x >> 20 & 7)) << 7 | (x >> 30 & 7) << 4);
		if (!compare)
			v[i] = value;
		else if (v[i] != value)
			return false;
	}
	return true;
}

void bench_daemon_spoil(struct bench_daemon *d)
{
	memset(d->pages, 0xa5, region_bytes(d));
}

bool bench_daemon_intact(const struct bench_daemon *d)
{
	return fill(d, true);
}

static int open_pages(struct bench_daemon *d)
{
	d->fd = memfd_create("pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (d->fd < 0 || ftruncate(d->fd, (off_t)region_bytes(d)) ||
	    fcntl(d->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		return -errno;
	d->pages = mmap(NULL, region_bytes(d), PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
	if (d->pages == MAP_FAILED) {
		d->pages = NULL;
		return -ENOMEM;
	}
	(void)fill(d, false);
	return 0;
}

/* --- the engine --- */

static int connect_soon(struct bench_daemon *d)
{
	const struct kvtier_options o = {
		.size = sizeof(o),
		.socket_path = d->socket,
		.name = "kvtier-bench",
		.timeout_ms = BENCH_PATIENCE_MS,
	};
	int r = -ENOENT;

	for (int i = 0; i < 3000 && (r == -ENOENT || r == -ECONNREFUSED); i++) {
		r = kvtier_connect(&o, &d->client);
		if (r)
			usleep(10000);
	}
	return r;
}

int bench_space(struct kvtier_client *client, const struct bench_shape *shape,
		const struct kvtier_region *region, struct kvtier_space **ret)
{
	const struct kvtier_geometry g = {
		.size = sizeof(g),
		.dtype = KVTIER_BF16,
		.model = shape->model,
		.convention = "bench",
		.layers = shape->layers,
		.kv_heads = shape->heads,
		.head_dim_k = shape->dim,
		.head_dim_v = shape->dim,
		.block_tokens = shape->tokens,
		.world = 1,
		.codec = shape->codec,
	};
	const uint64_t row = (uint64_t)shape->heads * shape->dim * 2, plane = shape->tokens * row;
	const uint32_t n = 2 * shape->layers;
	struct kvtier_segment segments[2 * BENCH_LAYERS];

	for (uint32_t i = 0; i < n; i++)
		segments[i] = (struct kvtier_segment){
			.size = sizeof(*segments),
			.layer = i / 2,
			.kind = i % 2 ? KVTIER_V : KVTIER_K,
			.offset = i * plane,
			.page_stride = n * plane,
			.head_stride = shape->dim * 2,
			.token_stride = row,
		};
	return kvtier_space_open(client, &g, region, 1, segments, n, ret);
}

int bench_daemon_space(const struct bench_daemon *d, const struct kvtier_region *region,
		       struct kvtier_space **ret)
{
	const struct bench_shape shape = {
		.model = "bench@1",
		.layers = BENCH_LAYERS,
		.tokens = BENCH_TOKENS,
		.heads = BENCH_HEADS,
		.dim = BENCH_DIM,
		.codec = KVTIER_CODEC_FP8,
	};

	return bench_space(d->client, &shape, region, ret);
}

static int open_space(struct bench_daemon *d)
{
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = KVTIER_MEMFD,
		.fd = d->fd,
		.length = region_bytes(d),
	};

	return bench_daemon_space(d, &region, &d->space);
}

int bench_daemon_keys(struct bench_daemon *d, uint32_t run)
{
	for (uint32_t i = 0; i < d->blocks; i += OP_BLOCKS) {
		uint32_t tokens[BENCH_TOKENS * OP_BLOCKS];
		size_t n = OP_BLOCKS;
		int r;

		for (uint32_t t = 0; t < BENCH_TOKENS * OP_BLOCKS; t++)
			tokens[t] = run << 20 ^ i << 10 ^ t;
		r = kvtier_keys(d->space, NULL, tokens, (size_t)BENCH_TOKENS * OP_BLOCKS,
				d->keys + i, &n);
		if (r)
			return r;
	}
	return 0;
}

int bench_daemon_move(struct bench_daemon *d, bool load)
{
	uint64_t ops[BENCH_BLOCKS / OP_BLOCKS];
	uint32_t pages[BENCH_BLOCKS], n = 0;
	int r = 0;

	for (uint32_t i = 0; i < d->blocks; i++)
		pages[i] = i;
	for (uint32_t i = 0; i < d->blocks && r == 0; i += OP_BLOCKS) {
		r = load ? kvtier_load(d->space, d->keys + i, pages + i, OP_BLOCKS, NULL, &ops[n]) :
			   kvtier_store(d->space, d->keys + i, pages + i, OP_BLOCKS, NULL, &ops[n]);
		n += r == 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct kvtier_result result = { .size = sizeof(result) };
		const int w = kvtier_wait(d->client, ops[i], -1, &result);

		if (r == 0)
			r = w ? w : result.status;
		if (r == 0 && result.ok != OP_BLOCKS)
			r = -ENOENT;
	}
	return r;
}

/* --- life --- */

int bench_daemon_open(struct bench_daemon *d, uint32_t blocks, const char *state_dir,
		      const char *sections)
{
	int r;

	d->fd = -1;
	d->blocks = blocks / OP_BLOCKS * OP_BLOCKS;
	r = spawn(d, state_dir, sections);
	if (r == 0)
		r = open_pages(d);
	if (r == 0)
		r = connect_soon(d);
	return r ? r : open_space(d);
}

void bench_daemon_close(struct bench_daemon *d)
{
	char command[128];

	if (!d->run[0])
		return;
	kvtier_close(d->client);
	if (d->pid > 0) {
		(void)kill(d->pid, SIGTERM);
		(void)waitpid(d->pid, NULL, 0);
	}
	if (d->pages)
		(void)munmap(d->pages, region_bytes(d));
	if (d->fd >= 0)
		(void)close(d->fd);
	(void)snprintf(command, sizeof(command), "rm -rf %s", d->run);
	if (system(command))
		(void)fprintf(stderr, "cannot remove %s\n", d->run);
}
