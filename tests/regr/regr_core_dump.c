/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=25 no=thread (most of the memory that it reads is the sanitizer's) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/* make: needs=kvtierd_starting */
/*
 * regr_core_dump.c - goal: a core dump of the daemon has neither engines' bytes in it nor
 * secrets: a tenant's, the one that nodes share, what is derived of it, the Redis password. Both
 * used to be found. Method: what a dump would have is read from /proc/PID/mem, while the daemon
 * lives: all that is mapped and has not VmFlags "dd" in smaps (files that were not written to
 * apart), after stores and loads of known bytes, through Redis and through NVMe; and while it
 * starts, wherever it has just read a secret. That the same search finds them in what is left out
 * shows that it works. A dump has the registers of all threads, too: each is stopped, and its
 * vector registers are searched for 16 bytes of a secret, from right after a client has connected.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/lib_tls.h"

#include <dirent.h>
#include <elf.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#include "daemon/config/secret.h"

enum { N = SHARED_BLOCKS, ROW = 64, SHADOW_GIB = 4, MAX_NEEDLES = 64, PIECE = 16 << 20 };
#define PASSWORD "one-word-that-is-a-password-of-some-length"
enum { REGISTER = 16 }; /* bytes of the smallest vector register */

struct needle {
	const char *name;
	uint8_t bytes[ROW];
	size_t n;
	uint32_t dumped, left_out; /* times found */
	char where[128];           /* the mapping it was found in, last */
};

static struct {
	struct redis_server redis;
	struct node node;
	struct kvtier_key keys[N];
	struct needle needles[MAX_NEEDLES];
	uint32_t n;
} w;

static void look_for(const char *name, const void *bytes, size_t n)
{
	struct needle *needle = &w.needles[w.n++];

	assert_true(w.n <= MAX_NEEDLES && n <= ROW);
	*needle = (struct needle){ .name = name, .n = n };
	memcpy(needle->bytes, bytes, n);
}

/* --- the search --- */

static void search(const uint8_t *bytes, size_t n, bool dumped, const char *where)
{
	for (uint32_t i = 0; i < w.n; i++) {
		struct needle *needle = &w.needles[i];

		for (const uint8_t *at = bytes;
		     (at = memmem(at, n - (size_t)(at - bytes), needle->bytes, needle->n)) != NULL;
		     at++) {
			(*(dumped ? &needle->dumped : &needle->left_out))++;
			if (dumped)
				(void)snprintf(needle->where, sizeof(needle->where), "%s", where);
		}
	}
}

static void search_mapping(int mem, uint64_t from, uint64_t to, bool dumped, const char *where)
{
	static uint8_t piece[PIECE + ROW];

	for (uint64_t at = from; at < to; at += PIECE) {
		/* they overlap by a needle */
		const size_t want = to - at < sizeof(piece) ? (size_t)(to - at) : sizeof(piece);
		const ssize_t got = pread(mem, piece, want, (off_t)at);

		if (got <= 0)
			return;
		search(piece, (size_t)got, dumped, where);
	}
}

static void search_all(void)
{
	char path[64], where[128] = "", line[4096], perms[8] = "", file[4096] = "";
	unsigned long long from = 0, to = 0, a, b;
	FILE *maps;
	int mem;

	for (uint32_t i = 0; i < w.n; i++)
		w.needles[i].dumped = w.needles[i].left_out = 0;
	(void)snprintf(path, sizeof(path), "/proc/%d/mem", w.node.d.pid);
	mem = open(path, O_RDONLY | O_CLOEXEC);
	(void)snprintf(path, sizeof(path), "/proc/%d/smaps", w.node.d.pid);
	maps = fopen(path, "re");
	if (mem < 0 || !maps) {
		printf("skipped: the daemon's memory cannot be read: %s\n", strerror(errno));
		exit(77);
	}
	while (fgets(line, sizeof(line), maps)) {
		const bool shared_file = file[0] == '/' && strncmp(file, "/memfd:", 7) != 0 &&
					 strncmp(file, "/dev/zero", 9) != 0;

		/* "A" is hexadecimal, too */
		if (sscanf(line, "%llx-%llx %7s %*s %*s %*s %4000s", &a, &b, perms, file) >= 3) {
			(void)snprintf(where, sizeof(where), "%.120s", line);
			where[strcspn(where, "\n")] = 0;
			from = a;
			to = b;
			if (!strchr(line, '/') && !strchr(line, '['))
				file[0] = 0;
		} else if ((to - from) >> 30 >= SHADOW_GIB) { /* a sanitizer's */
			continue;
		} else if (strncmp(line, "VmFlags:", 8) == 0 && perms[0] == 'r' &&
			   !(shared_file && perms[1] != 'w') && strcmp(file, "[vvar]") != 0 &&
			   strcmp(file, "[vsyscall]") != 0) {
			search_mapping(mem, from, to, !strstr(line, " dd"), where);
		}
	}
	(void)fclose(maps);
	(void)close(mem);
}

/* --- registers --- */

static const char pages[] = "bytes of an engine's page"; /* workers have them: TRUST.md */

/* A wider register is saved in parts. */
static void search_registers(const uint8_t *saved, size_t n, pid_t thread)
{
	for (uint32_t i = 0; i < w.n; i++) {
		struct needle *needle = &w.needles[i];

		for (size_t at = 0; needle->name != pages && at + REGISTER <= needle->n; at++) {
			if (!memmem(saved, n, needle->bytes + at, REGISTER))
				continue;
			needle->dumped++;
			(void)snprintf(needle->where, sizeof(needle->where),
				       "the registers of thread %d", (int)thread);
		}
	}
}

/* False: there is no such thread, or nobody may look. */
static bool search_thread(pid_t thread)
{
	static uint8_t saved[1 << 16];
	struct iovec all = { saved, sizeof(saved) };
	bool seen = false;
	int status;

	if (ptrace(PTRACE_SEIZE, thread, NULL, NULL))
		return false;
	if (ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0 &&
	    waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status) &&
	    ptrace(PTRACE_GETREGSET, thread, (void *)NT_X86_XSTATE, &all) == 0) {
		search_registers(saved, all.iov_len, thread);
		seen = true;
	}
	(void)ptrace(PTRACE_DETACH, thread, NULL, NULL);
	return seen;
}

static void search_threads(void)
{
	const struct dirent *entry;
	uint32_t seen = 0;
	char path[64];
	DIR *tasks;

	(void)snprintf(path, sizeof(path), "/proc/%d/task", w.node.d.pid);
	tasks = opendir(path);
	assert_non_null(tasks);
	while ((entry = readdir(tasks)) != NULL)
		if (entry->d_name[0] != '.')
			seen += search_thread((pid_t)strtol(entry->d_name, NULL, 10));
	(void)closedir(tasks);
	if (seen == 0)
		print_message("registers were not looked at: no ptrace() here\n");
}

/* The first `n` needles are in memory, and none in what is dumped. */
static void nothing_is_dumped_of(uint32_t n, bool stopped)
{
	char what[4096] = "";

	search_all();
	if (!stopped)
		search_threads();
	for (uint32_t i = 0; i < w.n; i++) {
		if (w.needles[i].dumped)
			(void)snprintf(what + strlen(what), sizeof(what) - strlen(what),
				       "%s%s (%u times, in %s)", what[0] ? ", " : "",
				       w.needles[i].name, w.needles[i].dumped, w.needles[i].where);
	}
	if (what[0])
		fail_msg("a core dump would have: %s", what);
	for (uint32_t i = 0; i < n; i++) /* the search does find them, where they are */
		assert_true(w.needles[i].left_out > 0);
}

static void nothing_is_dumped(void)
{
	nothing_is_dumped_of(3, false);
}

/* --- what the daemon does before --- */

/* The beginning of an engine's keys; the daemon tells it once. */
static void look_for_the_salt(const uint8_t tenants[SECRET_BYTES])
{
	static const char label[] = "kvtier salt 1", before[] = "\"id\":\"";
	uint8_t message[sizeof(label) + SECRET_BYTES + 32], salt[32];
	const char *at = strstr(daemon_told(&w.node.d, "spaces --json"), before);

	assert_non_null(at);
	memcpy(message, label, sizeof(label));
	memcpy(message + sizeof(label), tenants, SECRET_BYTES);
	for (size_t i = 0; i < 32; i++)
		assert_int_equal(sscanf(at + sizeof(before) - 1 + 2 * i, "%2hhx",
					&message[sizeof(label) + SECRET_BYTES + i]),
				 1);
	(void)SHA256(message, sizeof(message), salt);
	look_for("the salt of an engine's keys", salt, sizeof(salt));
}

static const char shared[] = "a secret that nodes share, number 0";

static void place(const char *options, const char *lines)
{
	char path[200], all[1024];

	memset(&w, 0, sizeof(w));
	redis_start(&w.redis, options);
	redis_say(&w.redis, all, sizeof(all), "CONFIG SET requirepass %s", PASSWORD);
	node_place(&w.node, &(struct node_conf){ .endpoints = w.redis.address, .lines = lines });
	node_file(&w.node, "password", PASSWORD "\n", 0600, path);
	(void)snprintf(all, sizeof(all), "password_file = %s\n%s", path, lines ? lines : "");
	node_configure(&w.node, &(struct node_conf){ .endpoints = w.redis.address, .lines = all });
}

static void begin(const char *options, const char *lines)
{
	uint8_t tenants[SECRET_BYTES];
	struct redis_seal seal;

	place(options, lines);
	node_live(&w.node);
	node_join(&w.node, &tiny_raw);
	secret_derive((const uint8_t *)shared, strlen(shared), "default", tenants);
	redis_seal_derive(tenants, sizeof(tenants), &seal);
	look_for("the Redis password", PASSWORD, strlen(PASSWORD));
	look_for("the tenant's secret", tenants, sizeof(tenants));
	look_for("the key of its MACs", seal.key, sizeof(seal.key));
	look_for("the secret that nodes share", shared, strlen(shared));
	nothing_is_dumped(); /* a client has connected, and done nothing else */
	look_for_the_salt(tenants);
	nothing_is_dumped();
}

/* Of each page some rows, from its first to its last. */
static void look_for_pages(void)
{
	for (uint32_t i = 0; i < N && w.n < MAX_NEEDLES; i++) {
		const size_t rows = w.node.e.page_bytes / ROW;

		look_for(pages,
			 w.node.e.memory + i * w.node.e.page_bytes + i * (rows - 1) / N * ROW, ROW);
	}
}

static void use(void)
{
	chain_keys(&w.node.e, 1, N, w.keys);
	node_store_through(&w.node, w.keys, N);
	look_for_pages();
	assert_int_equal(chain_load(&w.node.e, w.keys, 0, N), N);
	node_evict(&w.node);
	assert_int_equal(node_load_each(&w.node, w.keys, 0, N), N);
}

FIXTURE_DO(end, node_end(&w.node); redis_stop(&w.redis));

TEST_EACH(NULL, end);

TEST(with_redis)
{
	begin(NULL, NULL);
	use();
	nothing_is_dumped();
}

/* AUTH is on its way all the time. */
TEST(while_redis_does_not_answer)
{
	begin(NULL, "timeout_ms = 5000\n");
	use();
	redis_signal(&w.redis, SIGSTOP);
	daemon_signal(&w.node.d, SIGTERM);
	daemon_restart(&w.node.d);
	nap_ms(300);
	nothing_is_dumped();
	redis_signal(&w.redis, SIGCONT);
}

TEST(with_nvme)
{
	if (!disk_dir())
		skip();
	begin(NULL, "[nvme]\nbytes = 64M\nsegment_bytes = 1M\n");
	use();
	(void)daemon_told(&w.node.d, "flush");
	node_evict(&w.node);
	assert_int_equal(node_load_each(&w.node, w.keys, 0, N), N);
	(void)daemon_told(&w.node.d, "verify");
	nothing_is_dumped();
}

TEST(while_it_starts)
{
	uint8_t tenants[SECRET_BYTES];
	int status;

	place(NULL, NULL);
	secret_derive((const uint8_t *)shared, strlen(shared), "default", tenants);
	look_for("the secret that nodes share", shared, strlen(shared));
	look_for("the Redis password", PASSWORD, strlen(PASSWORD));
	look_for("the tenant's secret", tenants, sizeof(tenants));
	w.node.d.program = "tests/kvtierd_starting";
	daemon_spawn(&w.node.d);
	for (uint32_t known = 1; known <= 3; known++) {
		AWAIT(waitpid(w.node.d.pid, &status, WUNTRACED | WNOHANG) == w.node.d.pid);
		assert_true(WIFSTOPPED(status));
		nothing_is_dumped_of(known, true);
		if (known < 3)
			(void)kill(w.node.d.pid, SIGCONT);
	}
	daemon_signal(&w.node.d, SIGKILL);
}

/* As DER has it, as a BIGNUM has it, and a line of the file. */
static void look_for_key(const char *path)
{
	FILE *in = fopen(path, "re");
	EVP_PKEY *key = in ? PEM_read_PrivateKey(in, NULL, NULL, NULL) : NULL;
	uint8_t all[256], turned[ROW];
	BIGNUM *number = NULL;
	char line[128];
	int whole, n;

	assert_non_null(key);
	assert_true(EVP_PKEY_get_bn_param(key, OSSL_PKEY_PARAM_PRIV_KEY, &number) ||
		    EVP_PKEY_get_bn_param(key, OSSL_PKEY_PARAM_RSA_FACTOR1, &number));
	assert_true(BN_num_bytes(number) <= (int)sizeof(all));
	whole = BN_bn2bin(number, all);
	n = whole < 32 ? whole : 32;
	for (int i = 0; i < n; i++)
		turned[i] = all[whole - 1 - i];
	look_for("the TLS key (DER)", all, (size_t)n);
	look_for("the TLS key", turned, (size_t)n);
	rewind(in);
	assert_non_null(fgets(line, sizeof(line), in));
	assert_non_null(fgets(line, sizeof(line), in));
	look_for("the TLS key's file", line, ROW);
	BN_clear_free(number);
	EVP_PKEY_free(key);
	(void)fclose(in);
}

TEST(with_tls)
{
	static struct tls_files files;
	char lines[1024];

	tls_make(&files);
	(void)snprintf(lines, sizeof(lines),
		       "tls = yes\ntls_ca_file = %s\ntls_cert_file = %s\ntls_key_file = %s\n",
		       files.ca, files.client, files.client_key);
	begin(tls_options(&files), lines);
	look_for_key(files.client_key);
	use();
	nothing_is_dumped();
	tls_remove(&files);
}

TEST_FIRST(redis_needed());
