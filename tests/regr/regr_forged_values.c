/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * regr_forged_values.c - goal: a value in Redis is a hit only with the secret that it was written
 * with. Method: a real redis-server and two daemons; values are changed in the server, as anyone
 * can who can write there. Another tenant, and another secret: sys_redis_share.kvt.
 */
#include "tests/lib/lib_shared.h"

#include "kernels/image.h"

enum { N = SHARED_BLOCKS, ROOM = 1 << 16 };

static const char magic[4] = { 'K', 'V', 'I', 'M' }; /* an image's first bytes */

struct value {
	char name[SHARED_NAME];
	uint8_t bytes[ROOM];
	size_t n, image; /* image: where it begins */
	struct image_shape shape;
};

/* All names that the server has. */
static uint32_t names_of(const struct shared *w, char (*ret)[SHARED_NAME])
{
	static char list[SHARED_NAME * (N + 1)];
	uint32_t n = 0;

	redis_say(&w->redis, list, sizeof(list), "KEYS *");
	for (const char *line = strtok(list, "\n"); line && n < N; line = strtok(NULL, "\n"))
		(void)snprintf(ret[n++], SHARED_NAME, "%s", line);
	return n;
}

static void read_value(const struct shared *w, const char *name, struct value *v)
{
	struct image_identity identity;
	struct image_geometry geometry;
	struct image_header header;
	const uint8_t *at;

	(void)snprintf(v->name, sizeof(v->name), "%s", name);
	v->n = (size_t)redis_get(&w->redis, name, v->bytes, sizeof(v->bytes));
	at = memmem(v->bytes, v->n, magic, sizeof(magic));
	assert_non_null(at);
	v->image = (size_t)(at - v->bytes);
	memcpy(&header, at, sizeof(header));
	memcpy(identity.space_id, header.space_id, sizeof(identity.space_id));
	memcpy(identity.key, header.key, sizeof(identity.key));
	image_header_geometry(&header, &geometry);
	assert_int_equal(image_header_check(&header, &geometry, &identity, &v->shape), 0);
}

/* Other bytes, and both sums made anew. */
static void forge(const struct shared *w, const char *name)
{
	static uint8_t image[ROOM];
	struct value v;
	struct image_header header;
	uint8_t *scales, *payload;

	read_value(w, name, &v);
	scales = v.bytes + v.image + sizeof(header);
	payload = scales + v.shape.scale_bytes;
	for (uint32_t i = 0; i < v.shape.payload_bytes; i++)
		payload[i] ^= 0x11;
	memcpy(image + sizeof(header), scales, v.shape.scale_bytes);
	memcpy(image + v.shape.payload_offset, payload, v.shape.payload_bytes);
	memcpy(&header, v.bytes + v.image, sizeof(header));
	image_seal(&header, image_checksum(image, &v.shape));
	memcpy(v.bytes + v.image, &header, sizeof(header));
	redis_put(&w->redis, name, v.bytes, v.n);
}

/* Of A's blocks: how many B loads, each by an op of its own, since an op ends at its first miss. */
static uint32_t hits(struct shared *w)
{
	uint32_t pages[N], n = 0;
	int32_t status;

	pages_from(0, pages, N);
	for (uint32_t i = 0; i < N; i++) {
		(void)engine_load(&w->b.e, &w->keys[i], &pages[i], 1, &status);
		assert_true(status == 0 || status == -ENOENT);
		n += status == 0;
	}
	return n;
}

static struct shared *begin(void)
{
	struct shared *w = shared_begin(NULL, NULL, KVTIER_CODEC_RAW);

	node_store_through(&w->a, w->keys, N);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), N);
	return w;
}

TEST(forged_values_are_misses)
{
	struct shared *w = begin();
	char names[N][SHARED_NAME];

	assert_int_equal(names_of(w, names), N);
	for (uint32_t i = 0; i < N; i++)
		forge(w, names[i]);
	assert_int_equal(hits(w), 0);
	daemon_stat_reaches(&w->b.d, "tiers.redis.forged_blocks_total", N);
	assert_int_equal(daemon_stat(&w->b.d, "tiers.redis.corrupt_blocks_total"), 0);
	/* a forged value goes, and the next store mends it */
	shared_asks_until(&w->redis, 0, "DBSIZE");
	shared_end(w);
}

/* The image alone, as earlier versions wrote it; and the value under the name that they gave it. */
TEST(values_of_the_old_form_are_misses_and_stay)
{
	struct shared *w = begin();
	char names[N][SHARED_NAME];

	assert_int_equal(names_of(w, names), N);
	for (uint32_t i = 0; i < N; i++) {
		struct value v;

		read_value(w, names[i], &v);
		redis_put(&w->redis, names[i], v.bytes + v.image, v.shape.packed_bytes);
	}
	assert_int_equal(hits(w), 0);
	daemon_stat_reaches(&w->b.d, "tiers.redis.other_form_blocks_total", N);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), N);
	shared_end(w);
}

TEST_FIRST(redis_needed());
