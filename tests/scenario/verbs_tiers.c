/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_tiers.c - servers of Redis and values in them; damaged images; disks that fail. */
#include "scenario.h"

#include "kernels/image.h"
#include "tests/lib/lib_disk.h"
#include "tests/lib/lib_io_faults.h"
#include "tiers/host/host_memory.h"

enum { VALUE_BYTES = 1 << 20, ALWAYS = 1 << 30 };

/* --- servers --- */

void redis_does(struct call *c)
{
	struct redis_cluster_rig *rig;

	if (c->n != 2 || strcmp(c->words[1], "cluster") != 0) {
		struct its_server *s = thing_new(THING_SERVER, c->words[0]);

		s->r = calloc(1, sizeof(*s->r));
		redis_start(s->r, words_joined(c->words + 1, c->n - 1));
		return;
	}
	rig = calloc(1, sizeof(*rig));
	redis_cluster_start(rig, NULL);
	for (uint32_t i = 0; i < REDIS_CLUSTER_SERVERS; i++) {
		struct its_server *s = thing_new(THING_SERVER, run_text("%s.%u", c->words[0], i));

		s->r = &rig->server[i];
		s->cluster = rig;
	}
}

/* cluster R moves FROM TO SLOTS; cluster R fails_over MASTER */
void cluster_does(struct call *c)
{
	const struct its_server *s = thing_named(THING_SERVER, run_text("%s.0", c->words[0]));
	const uint32_t from = (uint32_t)number_of(c->words[2]);

	if (strcmp(c->words[1], "moves") == 0 && c->n == 5)
		redis_cluster_move(s->cluster, from, (uint32_t)number_of(c->words[3]),
				   (uint32_t)number_of(c->words[4]));
	else
		(void)redis_cluster_failover(s->cluster, from);
}

/* Its steps point to these words for as long as it lives: it is another process. */
void fake_does(struct call *c)
{
	const bool raw = call_has(c, "raw");
	struct fake_step steps[WORDS] = { 0 };
	struct its_fake *f = thing_new(THING_FAKE, c->words[0]);

	for (int i = 1; i < c->n; i++)
		steps[i - 1].reply = text_of(c->words[i]);
	fake_start(&f->f, steps, (uint32_t)c->n - 1, raw);
}

void ask_does(struct call *c)
{
	const struct its_server *s = thing_named(THING_SERVER, c->words[0]);
	char text[TEXT];

	redis_say(s->r, text, sizeof(text), "%s", text_of(c->words[1]));
	if (text[0] == '-')
		run_fail("%s", text);
}

void flood_does(struct call *c)
{
	shared_flood((uint32_t)(us_of(c->words[0]) / 1000000));
}

void meets_does(struct call *c)
{
	struct its_daemon *d = thing_named(THING_DAEMON, c->words[0]);
	struct its_engine *a = thing_named(THING_ENGINE, c->words[1]),
			  *b = thing_named(THING_ENGINE, c->words[2]);

	shared_meets(&d->d, &a->e, &b->e);
}

/* --- values --- */

static uint8_t value[2 * VALUE_BYTES];

static size_t value_read(const struct redis_server *r, const struct kvtier_key *key)
{
	char name[SHARED_NAME];
	long n;

	shared_name("kvtier:", key, name);
	n = redis_get(r, name, value, VALUE_BYTES);
	if (n <= 0)
		run_fail("%s has no value: store it, and await that it was written", name);
	return (size_t)n;
}

/* Returns how many bytes of `value` are the new one. */
static size_t value_spoilt(const struct redis_server *r, struct its_engine *e, const struct call *c,
			   size_t n)
{
	const char *how = c->words[3], *what = c->n > 4 ? c->words[4] : "0";
	const bool is_number = what[0] >= '0' && what[0] <= '9' && !strchr(what, '/');
	const size_t at = is_number ? number_of(what) : 0,
		     more = c->n > 5 ? number_of(c->words[5]) : 0;

	if (at > n)
		run_fail("the value has %zu bytes", n);
	if (strcmp(how, "flip") == 0) {
		value[at] ^= (uint8_t)(1u << (more & 7));
	} else if (strcmp(how, "cut") == 0) {
		n = at;
	} else if (strcmp(how, "insert") == 0) {
		memmove(value + at + more, value + at, n - at);
		memset(value + at, 0, more);
		n += more;
	} else if (strcmp(how, "zero") == 0) {
		memset(value, 0, n);
	} else if (strcmp(how, "noise") == 0) {
		for (size_t i = 0; i < n; i++)
			value[i] = (uint8_t)run_random(256);
	} else if (strcmp(how, "twice") == 0) {
		memcpy(value + n, value, n);
		n *= 2;
	} else if (strcmp(how, "of") == 0) {
		const struct kvtier_key other = spec_key(what, e);

		n = value_read(r, &other);
	} else if (strcmp(how, "text") == 0) {
		n = strlen(text_of(what));
		memcpy(value, text_of(what), n);
	} else if (strcmp(how, "good") != 0) {
		run_fail("no value is spoilt by \"%s\"", how);
	}
	return n;
}

/* The value as it was is kept for the next line about this block. */
void spoil_does(struct call *c)
{
	const struct its_server *s = thing_named(THING_SERVER, c->words[0]);
	struct its_engine *e = thing_named(THING_ENGINE, c->words[1]);
	const struct kvtier_key key = spec_key(c->words[2], e);
	static char good_name[SHARED_NAME];
	static uint8_t good[VALUE_BYTES];
	static size_t good_bytes;
	char name[SHARED_NAME];

	shared_name("kvtier:", &key, name);
	if (strcmp(name, good_name) != 0) {
		good_bytes = value_read(s->r, &key);
		memcpy(good, value, good_bytes);
		(void)snprintf(good_name, sizeof(good_name), "%s", name);
	}
	memcpy(value, good, good_bytes);
	redis_put(s->r, name, value, value_spoilt(s->r, e, c, good_bytes));
}

/* --- disks --- */

static void flip_byte(const char *file, uint64_t offset)
{
	uint8_t byte;

	disk_read(file, offset, &byte, 1);
	byte ^= 1;
	disk_write(file, offset, &byte, 1);
}

enum { LEAST = 4 << 20, LARGEST = 256 << 20 };

/* Address in the daemon of the image with this key in [from, to), or 0. Images are 4 KiB
 * aligned. */
static uint64_t image_in(int mem, uint64_t from, uint64_t to, const uint8_t key[32])
{
	struct image_header header;

	for (uint64_t at = from; at < to; at += IMAGE_ALIGN)
		if (pread(mem, &header, sizeof(header), (off_t)at) == (ssize_t)sizeof(header) &&
		    header.magic == IMAGE_MAGIC && memcmp(header.key, key, sizeof(header.key)) == 0)
			return at;
	return 0;
}

/* Its name is in the line where the kernel keeps names; else it is a mapping without a name. */
static bool may_be_host_memory(const char *line, uint64_t from, uint64_t to)
{
	if (strstr(line, HOST_MEMORY_NAME))
		return true;
	return strstr(line, " rw-p 00000000 00:00 0 \n") && to - from >= LEAST &&
	       to - from <= LARGEST;
}

static uint64_t find_image(const struct daemon *d, int mem, const uint8_t key[32])
{
	char path[64], line[512];
	uint64_t at = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", d->pid);
	f = fopen(path, "r");
	assert_non_null(f);
	while (!at && fgets(line, sizeof(line), f)) {
		unsigned long long from, to;

		if (sscanf(line, "%llx-%llx", &from, &to) == 2 &&
		    may_be_host_memory(line, from, to))
			at = image_in(mem, from, to, key);
	}
	(void)fclose(f);
	if (!at)
		fail_msg("the block's image is not in the daemon's host memory");
	return at;
}

/* One bit of the image of this block, `offset` bytes from its start, by /proc/PID/mem. */
static void damage_image(const struct daemon *d, const uint8_t key[32], long offset)
{
	char path[64];
	uint64_t at;
	uint8_t byte;
	int mem;

	snprintf(path, sizeof(path), "/proc/%d/mem", d->pid);
	mem = open(path, O_RDWR | O_CLOEXEC);
	if (mem < 0) {
		printf("skipped: %s: %s\n", path, strerror(errno));
		skip();
	}
	at = find_image(d, mem, key) + (uint64_t)offset;
	assert_int_equal(pread(mem, &byte, 1, (off_t)at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(mem, &byte, 1, (off_t)at), 1);
	(void)close(mem);
}

/* flip E BLOCK file=PATH; flip E BLOCK host=D; flip file=PATH */
void flip_does(struct call *c)
{
	const char *file = call_option(c, "file"), *host = call_option(c, "host");
	const uint64_t offset = call_number(c, "at", 0);
	struct kvtier_key key;

	if (c->n < 2) {
		flip_byte(file ? file : "file=", offset);
		return;
	}
	key = spec_key(c->words[1], thing_named(THING_ENGINE, c->words[0]));
	if (host) {
		const struct its_daemon *d = thing_named(THING_DAEMON, host);

		damage_image(&d->d, key.bytes, (long)offset);
	} else if (!file || disk_flip(file, &key, offset) == 0) {
		run_fail("no image of this block is in %s", file ? file : "file=");
	}
}

void disk_does(struct call *c)
{
	struct io_plan plan = { .kinds = (uint32_t)call_has(c, "reads") << IO_READ |
					 (uint32_t)call_has(c, "writes") << IO_WRITE |
					 (uint32_t)call_has(c, "syncs") << IO_FDATASYNC,
				.times = (uint32_t)call_number(c, "times", ALWAYS),
				.skip = (uint32_t)call_number(c, "skip", 0) };
	const char *verb = c->words[0], *error = call_option(c, "error");

	if (strcmp(verb, "holds") == 0) {
		(call_has(c, "one") ? io_hold_file : io_hold)(plan.kinds);
		return;
	}
	if (strcmp(verb, "fails") == 0)
		plan.result = status_of(error ? error : "EIO");
	else if (strcmp(verb, "cuts") == 0)
		plan.result = IO_ALIGN;
	else if (strcmp(verb, "flips") == 0)
		plan = (struct io_plan){ 1u << IO_READ, .times = plan.times, .flip = true };
	else if (strcmp(verb, "answers") == 0)
		io_hold(0);
	else if (strcmp(verb, "heals") == 0)
		io_plan_none();
	else
		run_fail("a disk does not \"%s\"", verb);
	if (plan.result || plan.flip)
		io_plan_set(plan);
}
