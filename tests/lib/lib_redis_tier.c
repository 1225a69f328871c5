/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_redis_tier.h"

#include "base/clock.h"
#include "base/list.h"
#include "lib_clock.h"
#include "tiers/redis/redis_slots.h"

/* PATIENCE_S: on the machine's clock. The tier shows its rows every VIEW_MS. */
enum { PATIENCE_S = 60, VIEW_MS = 100 };

/* --- life --- */

static void on_pause(struct loop_timer *timer)
{
	loop_stop((container_of(timer, struct kit, pause))->loop);
}

static void on_changed(void *arg)
{
	struct kit *kit = arg;

	kit->changes++;
	if (kit->waits)
		loop_stop(kit->loop);
}

void kit_init(struct kit *kit, uint32_t opaque_bytes)
{
	memset(kit, 0, sizeof(*kit));
	kit->geometry = (struct image_geometry){ .dtype = DTYPE_BF16,
						 .layers = 2,
						 .kv_heads = 2,
						 .head_dim_k = 8,
						 .head_dim_v = 8,
						 .block_tokens = 16,
						 .opaque_bytes = opaque_bytes };
	assert_int_equal(image_shape(&kit->geometry, CODEC_FP8, CODEC_FP8, &kit->shape, NULL), 0);
	kit->room = (kit->shape.image_bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
	kit->memory = aligned_alloc(IMAGE_ALIGN, (size_t)kit->room * KIT_SLOTS);
	kit->expected = aligned_alloc(IMAGE_ALIGN, kit->room);
	assert_true(kit->memory && kit->expected);
	kit->pause.fire = on_pause;
	kit->conf = (struct redis_tier_conf){ .key_prefix = "kv:",
					      .connections = 2,
					      .timeout_ms = KIT_TIMEOUT_MS,
					      .max_in_flight = 64,
					      .events = { .arg = kit, .changed = on_changed } };
	assert_int_equal(loop_open(0, &kit->loop), 0);
}

void kit_begin_at(struct kit *kit, struct redis_server *server, const char *options)
{
	redis_start(server, options);
	kit_init(kit, KIT_SMALL);
	kit->conf.endpoints[0] = server->address;
	kit->conf.n_endpoints = 1;
}

void kit_start(struct kit *kit)
{
	const struct tier_conf conf = { .redis = &kit->conf };
	const int r =
		tier_open(TIER_REDIS, &conf, kit->loop, &kit->tier, kit->text, sizeof(kit->text));

	if (r)
		fail_msg("tier_open: %d %s", r, kit->text);
}

void kit_start_at(struct kit *kit, const char *address)
{
	kit->conf.endpoints[0] = address;
	kit->conf.n_endpoints = 1;
	kit_start(kit);
	kit_until_state(kit, TIER_UP);
}

void kit_stop(struct kit *kit)
{
	tier_close(kit->tier);
	kit->tier = NULL;
	assert_int_equal(kit->busy, 0);
}

void kit_free(struct kit *kit)
{
	kit_stop(kit);
	loop_close(kit->loop);
	free(kit->memory);
	free(kit->expected);
	memset(kit, 0, sizeof(*kit));
}

void kit_run_ms(struct kit *kit, uint32_t ms)
{
	loop_timer_set(kit->loop, &kit->pause, clock_ns() + ms * 1000000ull);
	assert_int_equal(loop_run(kit->loop), 0);
	loop_timer_unset(kit->loop, &kit->pause);
}

bool kit_until(struct kit *kit, bool (*is)(struct kit *kit, void *arg), void *arg)
{
	const time_t end = time(NULL) + PATIENCE_S;
	bool ret;

	kit->waits = true;
	while (!(ret = is(kit, arg)) && time(NULL) <= end)
		kit_run_ms(kit, 2); /* or less, if there is news */
	kit->waits = false;
	return ret;
}

/* --- time that the test lets pass --- */

struct redis_tier_status kit_status(const struct kit *kit)
{
	struct redis_tier_status status;

	redis_status(kit->tier, &status);
	return status;
}

static bool is_viewed(struct kit *kit, void *views)
{
	return kit_status(kit).views > *(uint64_t *)views;
}

/* The view after the next has nothing in it that is older than this call. */
static void refresh(struct kit *kit)
{
	for (int i = 0; i < 2; i++) {
		uint64_t views = kit_status(kit).views;

		if (kit->busy == 0)
			clock_pass_ms(VIEW_MS);
		assert_true(kit_until(kit, is_viewed, &views));
	}
}

void kit_pass_ms(struct kit *kit, uint32_t ms)
{
	clock_pass_ms(ms);
	refresh(kit);
}

/* How long nothing will happen, as each endpoint rests that is not well; 0: one is being tried. */
static uint32_t rest_ms(struct kit *kit)
{
	struct redis_endpoint_row row;
	uint64_t ms = 0;

	for (uint32_t i = 0; redis_endpoint_row(kit->tier, i, &row); i++) {
		if (row.state != TIER_UP && row.retry_in_ms == 0)
			return 0;
		if (row.retry_in_ms > ms)
			ms = row.retry_in_ms;
	}
	return (uint32_t)ms;
}

void kit_until_state(struct kit *kit, enum tier_state state)
{
	const time_t end = time(NULL) + PATIENCE_S;

	while (tier_state(kit->tier) != state && time(NULL) <= end) {
		const uint32_t ms = kit->busy ? 0 : rest_ms(kit);

		if (ms)
			kit_pass_ms(kit, ms);
		else
			kit_run_ms(kit, 2);
	}
	if (tier_state(kit->tier) != state)
		fail_msg("the tier is %s, not %s: %s", tier_state_name(tier_state(kit->tier)),
			 tier_state_name(state), kit_status(kit).text);
}

/* --- blocks --- */

void kit_identity(uint32_t block, struct image_identity *ret)
{
	random_key(block, ret->key);
	random_key(1000000, ret->space_id);
}

void kit_name(uint32_t block, char ret[KIT_NAME_BYTES])
{
	struct image_identity identity;

	kit_identity(block, &identity);
	(void)snprintf(ret, KIT_NAME_BYTES, "kv:%.16s:", redis_test_seal.tag);
	for (size_t i = 0; i < 32; i++)
		(void)snprintf(ret + KIT_PREFIX_BYTES + REDIS_TAG_BYTES + 1 + 2 * i, 3, "%02x",
			       identity.key[i]);
}

uint32_t kit_slot_of(uint32_t block)
{
	char name[KIT_NAME_BYTES];

	kit_name(block, name);
	return redis_slot(name, strlen(name));
}

void kit_image_of(const struct kit *kit, uint32_t block, uint8_t *ret)
{
	struct random random = { .state = block };
	struct image_identity identity;
	struct image_header header;

	memset(ret, 0, kit->room);
	for (uint32_t i = 0; i < kit->shape.scale_bytes; i++)
		ret[sizeof(header) + i] = (uint8_t)random_next(&random);
	for (uint32_t i = 0; i + 8 <= kit->shape.payload_bytes; i += 8) {
		const uint64_t word =
			random_next(&random) & (kit->soft ? 0x0101010101010101 : UINT64_MAX);

		memcpy(ret + kit->shape.payload_offset + i, &word, 8);
	}
	kit_identity(block, &identity);
	image_header_fill(&header, &kit->geometry, CODEC_FP8, CODEC_FP8, &kit->shape, &identity);
	image_seal(&header, image_checksum(ret, &kit->shape));
	memcpy(ret, &header, sizeof(header));
}

uint32_t kit_value(struct kit *kit, uint32_t block, uint8_t *ret)
{
	const uint32_t head = (uint32_t)sizeof(struct image_header) + kit->shape.scale_bytes;

	kit_image_of(kit, block, kit->expected);
	memmove(kit->expected + head, kit->expected + kit->shape.payload_offset,
		kit->shape.payload_bytes);
	return (uint32_t)redis_sealed(&redis_test_seal, kit->expected, kit->shape.packed_bytes,
				      ret);
}

/* --- transfers --- */

static void on_done(struct xfer *x)
{
	struct kit_slot *slot = (struct kit_slot *)x; /* first member */

	assert_false(x->in_flight);
	slot->dones++;
	slot->kit->busy--;
	if (slot->kit->waits)
		loop_stop(slot->kit->loop);
}

struct kit_slot *kit_try_with(struct kit *kit, enum xfer_op op, uint32_t block, uint32_t room,
			      int *ret)
{
	struct kit_slot *slot = kit->slots;

	while (slot < kit->slots + KIT_SLOTS && slot->busy)
		slot++;
	assert_true(slot < kit->slots + KIT_SLOTS);
	memset(slot, 0, sizeof(*slot));
	slot->kit = kit;
	slot->block = block;
	kit_identity(block, &slot->identity);
	slot->x = (struct xfer){ .op = op, .seal = &redis_test_seal, .done = on_done };
	if (op != XFER_WRITE)
		slot->x.identity = &slot->identity;
	if (op != XFER_PROBE) {
		slot->x.buffer = kit->memory + (size_t)(slot - kit->slots) * kit->room;
		slot->x.bytes = room;
	}
	if (op == XFER_READ) {
		slot->x.geometry = &kit->geometry;
		memset(slot->x.buffer, 0xa5, kit->room);
	} else if (op == XFER_WRITE) {
		kit_image_of(kit, block, slot->x.buffer);
	}
	kit->busy++;
	*ret = tier_submit(kit->tier, &slot->x);
	if (*ret) {
		kit->busy--;
		return NULL;
	}
	slot->busy = true;
	return slot;
}

struct kit_slot *kit_try(struct kit *kit, enum xfer_op op, uint32_t block, int *ret)
{
	return kit_try_with(kit, op, block, kit->shape.image_bytes, ret);
}

struct kit_slot *kit_begin(struct kit *kit, enum xfer_op op, uint32_t block)
{
	int r;
	struct kit_slot *slot = kit_try(kit, op, block, &r);

	assert_non_null(slot);
	return slot;
}

int kit_refused(struct kit *kit, enum xfer_op op, uint32_t block)
{
	int r;

	assert_null(kit_try(kit, op, block, &r));
	return r;
}

static bool is_done(TEST_UNUSED struct kit *kit, void *arg)
{
	return ((struct kit_slot *)arg)->dones > 0;
}

int kit_settle(struct kit *kit, struct kit_slot *slot)
{
	if (!kit_until(kit, is_done, slot))
		fail_msg("an xfer has not ended");
	assert_int_equal(slot->dones, 1);
	slot->busy = false;
	if (slot->x.status || slot->x.op != XFER_READ)
		return slot->x.status;
	assert_int_equal(slot->x.bytes, kit->shape.image_bytes);
	kit_image_of(kit, slot->block, kit->expected);
	return memcmp(slot->x.buffer, kit->expected, kit->room) ? -EILSEQ : 0;
}

int kit_do(struct kit *kit, enum xfer_op op, uint32_t block)
{
	struct kit_slot *slot;
	int r;

	while ((slot = kit_try(kit, op, block, &r)) == NULL && r == -EAGAIN)
		kit_run_ms(kit, 1);
	return slot ? kit_settle(kit, slot) : r;
}

enum ends { ALL_WELL, HARMLESS, LENIENT };

static bool may_end(int status, enum ends ends)
{
	return (ends >= HARMLESS && (status == -ENOENT || status == -ENODEV)) ||
	       (ends == LENIENT &&
		(status == -ETIMEDOUT || status == -ECONNRESET || status == -EREMOTEIO));
}

/* How many ended well. */
static uint32_t each(struct kit *kit, enum xfer_op op, uint32_t from, uint32_t to, enum ends ends)
{
	struct kit_slot *slots[KIT_SLOTS];
	uint32_t n = 0, well = 0;

	while (from < to || n > 0) {
		int r = 0;

		if (from < to && n < KIT_SLOTS &&
		    ((slots[n] = kit_try(kit, op, from, &r)) != NULL ||
		     (r == -ENODEV && ends >= HARMLESS))) {
			from++;
			n += r == 0;
			continue;
		}
		if (r && r != -EAGAIN)
			fail_msg("op %d of block %u is refused: %d", (int)op, from, r);
		while (n > 0) {
			r = kit_settle(kit, slots[--n]);
			well += r == 0;
			if (r && !may_end(r, ends))
				fail_msg("op %d of block %u: %d", (int)op, slots[n]->block, r);
		}
	}
	return well;
}

void kit_store_all(struct kit *kit, uint32_t from, uint32_t to)
{
	(void)each(kit, XFER_WRITE, from, to, ALL_WELL);
}

uint32_t kit_load_each(struct kit *kit, uint32_t from, uint32_t to, bool lenient)
{
	return each(kit, XFER_READ, from, to, lenient ? LENIENT : HARMLESS);
}

/* --- the tier's rows and counters --- */

static struct redis_tier_status fresh(struct kit *kit)
{
	refresh(kit);
	return kit_status(kit);
}

bool kit_says(struct kit *kit, const char *words)
{
	return strstr(fresh(kit).text, words) != NULL;
}

/* An endpoint that answers has more and more of the machine's time for it. */
void kit_until_says(struct kit *kit, const char *words)
{
	const time_t end = time(NULL) + PATIENCE_S;

	for (uint32_t ms = 2; !kit_says(kit, words) && time(NULL) <= end; ms *= ms < 1000 ? 2 : 1) {
		kit_run_ms(kit, ms);
		clock_pass_ms(1000);
	}
	if (!kit_says(kit, words))
		fail_msg("not \"%s\": %s", words, kit_row(kit, 0).text);
}

struct redis_counters kit_counters(struct kit *kit)
{
	return fresh(kit).counters;
}

struct redis_endpoint_row kit_row(struct kit *kit, uint32_t i)
{
	struct redis_endpoint_row row;

	(void)fresh(kit);
	assert_true(redis_endpoint_row(kit->tier, i, &row));
	return row;
}
