/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_probe.c - dump and probe: images of cached blocks, written to a file, or tried with
 * each codec here, so that the daemon only copies them. They are other users' data: memory and file
 * are this user's alone.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "client/abi/tbl_geometry.h"
#include "kernels/trial.h"
#include "kvtierctl_admin.h"

/* Names by number. */
#define CODEC_NAME(NUMBER, name) [CODECS_##NUMBER] = name,
#define DTYPE_NAME(NUMBER, name) [DTYPE_##NUMBER] = name,
static const char *const codec_names[] = { GEOMETRY_CODECS(CODEC_NAME) };
static const char *const dtype_names[] = { GEOMETRY_DTYPES(DTYPE_NAME) };
enum { CODECS = sizeof(codec_names) / sizeof(codec_names[0]) };

/* A header may have a codec that no space can ask for. */
static const char *codec_name(uint32_t codec)
{
	return codec < CODECS && codec_names[codec] ? codec_names[codec] : "another codec";
}

/* SPACE and what stands behind it, and the value of --blocks, or NULL. */
static const char *read_arguments(struct context *context, int argc, char **argv, int n,
				  const char *what)
{
	const char *blocks = NULL;

	while (context_option(context, argc, argv) != NULL)
		blocks = optarg;
	if (optind + n != argc)
		usage_error(context, "%s needs %s", context->command->name, what);
	return blocks;
}

/* --- dump --- */

struct dump {
	const struct context *context;
	const char *path;
	int fd; /* < 0: no byte has come yet */
	uint64_t bytes;
};

static bool dump_fail(const struct dump *dump)
{
	char shown[256];

	(void)tell_error(dump->context, EXIT_FAILED, "%s: %s",
			 log_escape(dump->path, shown, sizeof(shown)), strerror(errno));
	return false;
}

/* The file is made with the first bytes, so that a request that is refused leaves none. */
static bool dump_take(void *arg, const uint8_t *bytes, size_t n)
{
	struct dump *dump = arg;

	if (dump->fd < 0) {
		dump->fd = open(dump->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
				0600);
		if (dump->fd < 0)
			return dump_fail(dump);
	}
	dump->bytes += n;
	while (n > 0) {
		const ssize_t some = write(dump->fd, bytes, n);

		if (some < 0 && errno != EINTR)
			return dump_fail(dump);
		bytes += some < 0 ? 0 : some;
		n -= some < 0 ? 0 : (size_t)some;
	}
	return true;
}

int command_dump(struct context *context, int argc, char **argv)
{
	const char *blocks = read_arguments(context, argc, argv, 2, "SPACE and FILE");
	struct dump dump = { .context = context, .path = argv[optind + 1], .fd = -1 };
	char bytes[32];
	int r = ask_images(context, argv[optind], blocks, dump_take, &dump);

	if (dump.fd >= 0 && close(dump.fd) && r == EXIT_FINE) {
		(void)dump_fail(&dump);
		r = EXIT_FAILED;
	}
	if (dump.fd >= 0 && r != EXIT_FINE)
		(void)unlink(dump.path); /* a part is no dump */
	if (r == EXIT_FINE && context->json)
		printf("{\"bytes\":%" PRIu64 "}\n", dump.bytes);
	else if (r == EXIT_FINE)
		printf("%s; it is private data\n", text_bytes(dump.bytes, bytes, sizeof(bytes)));
	return r;
}

/* --- probe --- */

static const char *const kinds[TRIAL_KINDS] = { "K", "V", "TYPED" };

struct probe {
	const struct context *context;
	struct trial *trial;
};

static bool probe_take(void *arg, const uint8_t *bytes, size_t n)
{
	const struct probe *probe = arg;
	const int r = trial_feed(probe->trial, bytes, n);

	if (r)
		(void)tell_error(probe->context, EXIT_FAILED, "the images cannot be tried: %s",
				 strerror(-r));
	return r == 0;
}

static double ratio(double a, double b)
{
	return b > 0 ? a / b : 0;
}

/* How many times less error int8 has than fp8, in keys or values, whichever is more. */
static double int8_gains(const struct trial *trial)
{
	struct trial_result fp8, int8;
	double ret = 0;

	if (trial_result(trial, CODEC_FP8, &fp8) || trial_result(trial, CODEC_INT8, &int8))
		return 0;
	for (int kind = TRIAL_K; kind <= TRIAL_V; kind++)
		if (ratio(fp8.error[kind], int8.error[kind]) > ret)
			ret = ratio(fp8.error[kind], int8.error[kind]);
	return ret;
}

/* One sentence. Values that fp8 has rounded are often whole steps of int8, too, and the other way
 * round: codecs cannot be compared on them, and the daemon measures what the engine stored. */
static void recommend(const struct trial *trial, enum image_codec cached, char *ret, size_t n)
{
	const double gain = int8_gains(trial);
	struct trial_result raw, fp8, exact;

	if (trial_result(trial, CODEC_FP8, &fp8) || trial_result(trial, CODEC_LOSSLESS, &exact) ||
	    trial_result(trial, CODEC_RAW, &raw))
		snprintf(ret, n, "These values have no codec but their own: there is no choice.");
	else if (cached == CODEC_FP8)
		snprintf(ret, n,
			 "Keep fp8 unless int8_gain of `kvtierctl spaces --json`, which is "
			 "measured when blocks are stored, is 4 or more: then choose int8.");
	else if (image_codec_scales(cached))
		snprintf(ret, n,
			 "Keep %s: what another codec would cost cannot be told from values that "
			 "it has rounded.",
			 codec_name(cached));
	else if (gain >= 4)
		snprintf(ret, n,
			 "Choose int8: its error is %.1f times less than fp8's, for nearly the "
			 "same bytes.",
			 gain);
	else
		snprintf(ret, n,
			 "Choose fp8 for the most hits, or int8, which has %.1f times less error; "
			 "where every bit must stay, lossless takes %.2f of raw.",
			 gain, ratio((double)exact.image_bytes, (double)raw.image_bytes));
}

static void percent_cell(struct table *table, double value)
{
	char text[32] = "";

	if (value >= 0)
		snprintf(text, sizeof(text), "%.3f %%", 100 * value);
	table_cell(table, text);
}

static void number_cell(struct table *table, const char *format, double value)
{
	char text[32];

	snprintf(text, sizeof(text), format, value); /* NOLINT: the callers' formats */
	table_cell(table, text);
}

static double tokens_a_gib(const struct trial_result *r, uint32_t block_tokens)
{
	return ratio((double)r->blocks * block_tokens * (1 << 30), (double)r->image_bytes);
}

static void print_table(const struct trial *trial, const struct image_header *header)
{
	enum { COLUMNS = 6 + 2 * TRIAL_KINDS };
	const bool has[TRIAL_KINDS] = { header->head_dim_k > 0, header->head_dim_v > 0,
					header->typed_segments > 0 };
	char aligns[] = "lrrrrrrrrrrr", title[32];
	struct trial_result raw = { 0 }, r;
	struct table *table;

	static_assert(sizeof(aligns) == COLUMNS + 1, "a letter for each column");
	for (int kind = 0; kind < TRIAL_KINDS; kind++)
		if (!has[kind])
			aligns[strlen(aligns) - 2] = '\0';
	table = table_new(aligns, NULL);
	table_cell(table, "CODEC");
	table_cell(table, "OF RAW");
	table_cell(table, "TOKENS/GiB");
	for (int kind = 0; kind < TRIAL_KINDS; kind++)
		if (has[kind]) {
			table_cell(table, kinds[kind]);
			snprintf(title, sizeof(title), "WORST %s", kinds[kind]);
			table_cell(table, title);
		}
	table_cell(table, "ENCODE");
	table_cell(table, "DECODE");
	table_cell(table, "KEPT RAW");
	(void)trial_result(trial, CODEC_RAW, &raw);
	for (uint32_t codec = 1; codec < CODECS; codec++) {
		if (trial_result(trial, codec, &r))
			continue;
		table_cell(table, codec_names[codec]);
		number_cell(table, "%.3f", ratio((double)r.image_bytes, (double)raw.image_bytes));
		number_cell(table, "%.0f", tokens_a_gib(&r, header->tokens_total));
		for (int kind = 0; kind < TRIAL_KINDS; kind++)
			if (has[kind]) {
				percent_cell(table, r.error[kind]);
				percent_cell(table, r.worst[kind]);
			}
		number_cell(table, "%.2f GB/s", ratio((double)r.page_bytes, r.encode_s * 1e9));
		number_cell(table, "%.2f GB/s", ratio((double)r.page_bytes, r.decode_s * 1e9));
		number_cell(table, "%.0f", r.raw_blocks);
	}
	table_print(table);
}

static void add_error(struct json_object *to, const char *format, const char *kind, double error)
{
	char name[64];

	snprintf(name, sizeof(name), format, kind); /* NOLINT */
	if (error >= 0)
		json_object_object_add(to, name, json_object_new_double(error));
}

static void print_json(const struct trial *trial, const struct image_header *header,
		       uint32_t blocks, const char *sentence)
{
	static const char *const names[TRIAL_KINDS] = { "k", "v", "typed" };
	struct json_object *root = json_object_new_object(), *rows = json_object_new_array();
	struct trial_result r;

	for (uint32_t codec = 1; codec < CODECS; codec++) {
		struct json_object *row;

		if (trial_result(trial, codec, &r))
			continue;
		row = json_object_new_object();
		json_object_object_add(row, "codec", json_object_new_string(codec_names[codec]));
		json_object_object_add(row, "page_bytes", json_object_new_uint64(r.page_bytes));
		json_object_object_add(row, "image_bytes", json_object_new_uint64(r.image_bytes));
		json_object_object_add(row, "packed_bytes", json_object_new_uint64(r.packed_bytes));
		json_object_object_add(row, "raw_blocks", json_object_new_uint64(r.raw_blocks));
		for (int kind = 0; kind < TRIAL_KINDS; kind++) {
			add_error(row, "relative_error_%s", names[kind], r.error[kind]);
			add_error(row, "worst_head_%s", names[kind], r.worst[kind]);
		}
		json_object_object_add(row, "encode_s", json_object_new_double(r.encode_s));
		json_object_object_add(row, "decode_s", json_object_new_double(r.decode_s));
		json_object_array_add(rows, row);
	}
	json_object_object_add(root, "codecs", rows);
	json_object_object_add(root, "blocks", json_object_new_uint64(blocks));
	json_object_object_add(root, "cached_codec",
			       json_object_new_string(codec_name(header->codec_k)));
	json_object_object_add(root, "dtype", json_object_new_string(dtype_names[header->dtype]));
	json_object_object_add(root, "block_tokens", json_object_new_uint64(header->tokens_total));
	json_object_object_add(root, "recommendation", json_object_new_string(sentence));
	puts(json_object_to_json_string_ext(root, JSON_C_TO_STRING_PLAIN));
	json_object_put(root);
}

static int show(const struct context *context, const struct trial *trial)
{
	const struct image_header *header = trial_whole(trial);
	enum image_codec cached;
	struct trial_result raw;
	char sentence[256];

	if (!header || trial_result(trial, CODEC_RAW, &raw))
		return tell_error(context, EXIT_FAILED, "the images end in the middle of one");
	cached = (enum image_codec)header->codec_k;
	recommend(trial, cached, sentence, sizeof(sentence));
	if (context->json) {
		print_json(trial, header, raw.blocks, sentence);
		return EXIT_FINE;
	}
	printf("%" PRIu32 " blocks of %u tokens, %s, cached as %s\n", raw.blocks,
	       header->tokens_total, dtype_names[header->dtype], codec_name(cached));
	print_table(trial, header);
	if (image_codec_scales(cached))
		printf("Errors are too small here: %s has rounded these values before, so its own "
		       "shows as 0.\n",
		       codec_name(cached));
	puts(sentence);
	return EXIT_FINE;
}

int command_probe(struct context *context, int argc, char **argv)
{
	const char *blocks = read_arguments(context, argc, argv, 1, "SPACE");
	struct probe probe = { context, trial_new(codec_kernels(NULL), UINT32_MAX) };
	int r;

	if (!probe.trial)
		return tell_error(context, EXIT_FAILED, "out of memory");
	r = ask_images(context, argv[optind], blocks, probe_take, &probe);
	if (r == EXIT_FINE)
		r = show(context, probe.trial);
	trial_free(probe.trial);
	return r;
}
