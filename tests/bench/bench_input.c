/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_input.c - codec.input.*: each codec on real pages, which `kvtierctl dump` wrote to the file
 * of --input: bytes, error, and speed against a non-temporal copy of the same pages.
 *
 * One thread, and its CPU time. A run tries all blocks of the file, one after the other
 * (kernels/trial.h). If the file has lossy images, errors are beside values that were rounded
 * before. A codec that does not take the file's values is skipped.
 */
#include "bench.h"
#include "client/abi/tbl_geometry.h"
#include "client/kvtier.h"
#include "kernels/trial.h"

enum { RUNS = 5, CHUNK = 1 << 20 };
enum figure { OF_RAW, ENCODE, DECODE, ERROR_K, ERROR_V, ERROR_TYPED };

struct input {
	uint32_t codec;
	enum figure figure;
};

static void close_fd(void *fd)
{
	(void)close(*(int *)fd);
}

static void free_trial(void *trial)
{
	trial_free(trial);
}

/* All blocks of the file, with this codec and raw. */
static const struct trial *try_file(const char *path, uint32_t codec)
{
	const struct codec_kernels *k = codec_kernels(getenv("KERNELS"));
	struct trial *trial = k ? trial_new(k, 1u << codec | 1u << CODEC_RAW) : NULL;
	uint8_t *chunk = bench_alloc(CHUNK);
	int *fd = bench_alloc(sizeof(*fd));
	ssize_t n;

	bench_must(trial ? 0 : k ? -ENOMEM : -ENOTSUP);
	bench_defer(free_trial, trial);
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	if (*fd < 0)
		bench_fail(-errno, "%.90s: %s", path, strerror(errno));
	bench_defer(close_fd, fd);
	while ((n = read(*fd, chunk, CHUNK)) > 0)
		if (trial_feed(trial, chunk, (size_t)n))
			bench_fail(-EBADMSG, "%.90s: no images of one space", path);
	bench_must(n < 0 ? -errno : 0);
	if (!trial_whole(trial))
		bench_fail(-EBADMSG, "%.90s: it ends within an image", path);
	return trial;
}

static void run_input(const struct bench_case *self, struct bench_result *ret)
{
	const struct input *input = self->arg;
	const char *path = getenv("KVTIER_BENCH_INPUT");
	const bool timed = input->figure == ENCODE || input->figure == DECODE;

	if (!path || !path[0])
		bench_fail(-ENOTSUP, "--input FILE names a file of kvtierctl dump");
	for (int run = 0; run < (timed ? RUNS : 1); run++) {
		const uint32_t mark = bench_mark();
		const struct trial *trial = try_file(path, input->codec);
		struct trial_result r, raw;
		double gb, limit;

		if (trial_result(trial, input->codec, &r) || trial_result(trial, CODEC_RAW, &raw))
			bench_fail(-ENOTSUP, "the codec does not take these values");
		gb = (double)r.page_bytes * 1e-9;
		limit = gb / r.copy_s;
		if (input->figure == OF_RAW)
			bench_add(ret, (double)r.image_bytes, (double)raw.image_bytes);
		else if (timed)
			bench_add(ret, gb / (input->figure == ENCODE ? r.encode_s : r.decode_s),
				  limit);
		else if (r.error[input->figure - ERROR_K] < 0)
			bench_fail(-ENOTSUP, "the blocks have no such values");
		else
			bench_add(ret, 100 * r.error[input->figure - ERROR_K], 100);
		if (input->figure >= ERROR_K)
			bench_note(ret, "worst head %.3f %%; cached in codec %u",
				   100 * r.worst[input->figure - ERROR_K],
				   trial_whole(trial)->codec_k);
		else
			bench_note(ret, "%u blocks, %u of them kept raw", r.blocks, r.raw_blocks);
		bench_end(mark);
	}
}

/* clang-format off */
#define CASE(NUMBER, name, figure, prose, better, unit) \
	{ "codec.input." name, run_input, prose, 0, better, unit, \
	  &(const struct input){ KVTIER_CODEC_##NUMBER, figure } },
#define CASES(NUMBER, name) \
	CASE(NUMBER, name ".bytes", OF_RAW, "bytes of images, beside raw ones", BENCH_LESS, "B") \
	CASE(NUMBER, name ".encode", ENCODE, "of a non-temporal copy of the pages", BENCH_MORE, \
	     "GB/s") \
	CASE(NUMBER, name ".decode", DECODE, "the same", BENCH_MORE, "GB/s") \
	CASE(NUMBER, name ".error.k", ERROR_K, "relative RMS error of keys", BENCH_LESS, "%") \
	CASE(NUMBER, name ".error.v", ERROR_V, "of values", BENCH_LESS, "%") \
	CASE(NUMBER, name ".error.typed", ERROR_TYPED, "of typed values", BENCH_LESS, "%")

const struct bench_case bench_input_cases[] = {
	GEOMETRY_CODECS(CASES)
	{ 0 },
};
/* clang-format on */
