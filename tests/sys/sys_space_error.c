/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_space_error.c - goal: `kvtierctl spaces` shows the error of fp8 in a space's values, measured
 * on stored blocks, and none where nothing is lost. Method: stores of random values.
 */
#include "tests/lib/lib.h"

#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4 };

static const char config[] = "[host]\nbytes = 16M\nslab_bytes = 1M\nhuge_pages = no\n";

/* Of the only space; NAN: it has none. */
static double relative_error(const struct daemon *d)
{
	static char text[8192];
	struct json_object *root, *rows = NULL, *value = NULL;
	double ret = NAN;

	assert_int_equal(daemon_ctl(d, "spaces --json", text, sizeof(text)), 0);
	root = json_tokener_parse(text);
	assert_true(json_object_object_get_ex(root, "spaces", &rows));
	assert_int_equal(json_object_array_length(rows), 1);
	if (json_object_object_get_ex(json_object_array_get_idx(rows, 0), "relative_error", &value))
		ret = json_object_get_double(value);
	json_object_put(root);
	return ret;
}

/* BF16 values of [1, 2) in random order. */
static void fill(struct engine *e, uint32_t page)
{
	struct random random = random_seeded("sys_space_error");
	uint16_t *at = (uint16_t *)(void *)(e->memory + page * e->page_bytes);

	for (uint64_t i = 0; i < e->page_bytes / 2; i++)
		at[i] = (uint16_t)(0x3f80 + random_below(&random, 128));
}

static double error_of(enum kvtier_codec codec)
{
	const struct kvtier_geometry g = large_geometry(codec);
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
	struct engine e;
	struct daemon d;
	uint64_t op;
	double ret;

	daemon_start(&d, config);
	engine_open(&e, d.socket, "engine", &g, BLOCKS);
	assert_true(isnan(relative_error(&d)));
	chain_keys(&e, 1, BLOCKS, keys);
	pages_from(0, pages, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		fill(&e, i);
	assert_int_equal(kvtier_store(e.space, keys, pages, BLOCKS, NULL, &op), 0);
	assert_int_equal(kvtier_wait(e.client, op, -1, &result), 0);
	assert_int_equal(result.ok, BLOCKS);
	ret = relative_error(&d);
	engine_close(&e);
	daemon_remove(&d);
	return ret;
}

/* Three bits of mantissa, rounded: steps of 1/8, so 1/8/sqrt(12) beside 1.53. */
TEST(of_fp8_it_is_what_rounding_costs)
{
	assert_true(fabs(error_of(KVTIER_CODEC_FP8) - 0.0236) <= 0.001);
}

TEST(of_raw_there_is_none)
{
	assert_true(isnan(error_of(KVTIER_CODEC_RAW)));
}
