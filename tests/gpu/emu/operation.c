/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operation.c - one operation: whether its turn can come, and the work of a turn.
 *
 * A copy takes several turns, with the turns of other streams between them. In the first one its
 * destination may be made void: until the copy is done, no program may rely on the bytes there, not
 * even on the old ones.
 */

#include "emu.h"

enum { PIECE = 256 << 10, SCRIBBLE_MAX = 1 << 20 };

/* --- waits --- */

static bool word_is(uint64_t word, uint64_t value, unsigned how)
{
	switch (how & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH) {
	case CU_STREAM_WAIT_VALUE_GEQ:
		return (int64_t)(word - value) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return word == value;
	case CU_STREAM_WAIT_VALUE_AND:
		return word & value;
	default: /* CU_STREAM_WAIT_VALUE_NOR */
		return ~(word | value) != 0;
	}
}

bool operation_ready(const struct operation *op, const struct device *gpu)
{
	const _Atomic uint64_t *word;
	char text[256];

	if (op->kind == OPERATION_WAIT_EVENT)
		return event_done(op->event, op->number);
	if (op->kind != OPERATION_WAIT_WORD)
		return true;
	word = (const _Atomic uint64_t *)(void *)translate(gpu, op->to, 8, false, text,
							   sizeof(text));
	/* An address that is no more: its turn comes, and says so. */
	return !word || word_is(atomic_load(word), op->value, op->flags);
}

static bool touches(const struct range *r, CUdeviceptr at, size_t bytes)
{
	return bytes && at < r->base + r->bytes && r->base < at + bytes;
}

bool operation_uses(const struct operation *op, const struct range *range)
{
	const size_t before_last = op->height - 1;

	return touches(range, op->to, op->width + before_last * op->to_pitch) ||
	       (op->from && !op->staged &&
		touches(range, op->from, op->width + before_last * op->from_pitch));
}

/* --- turns --- */

struct place {
	uint8_t *at;
	size_t pitch;
};

static bool host_memory_gone(CUdeviceptr address, const uint8_t *at, size_t bytes)
{
	const struct range *r = range_at(address);

	return r && r->kind == RANGE_REGISTERED && !host_is_mapped(at, bytes);
}

/* Where the rows of a side are; at: NULL, and text says why. */
static struct place find_place(const struct operation *op, const struct device *gpu, bool write,
			       char *text, size_t n)
{
	struct place p = { .pitch = write ? op->to_pitch : op->from_pitch };
	const size_t bytes = (op->height - 1) * p.pitch + op->width;

	if (write && op->pageable)
		p.at = op->pageable;
	else if (!write && op->staged)
		p.at = op->staged;
	else
		p.at = translate(gpu, write ? op->to : op->from, bytes, write, text, n);
	if (p.at && host_memory_gone(write ? op->to : op->from, p.at, bytes)) {
		snprintf(text, n, "registered host memory at %p was unmapped", (void *)p.at);
		p.at = NULL;
	}
	return p;
}

static bool overlap(const struct operation *op, struct place to, struct place from)
{
	const size_t to_bytes = (op->height - 1) * to.pitch + op->width;
	const size_t from_bytes = (op->height - 1) * from.pitch + op->width;

	return to.at < from.at + from_bytes && from.at < to.at + to_bytes;
}

static void scribble(const struct operation *op, struct place to)
{
	size_t row;

	for (row = 0; row < op->height; row++)
		memset(to.at + row * to.pitch, 0xb5, op->width);
}

/* The next rows, or the next bytes of the only one. */
static enum step copy_some(struct operation *op, struct place to, struct place from,
			   uint64_t random)
{
	const size_t whole = op->height > 1 ? op->height : op->width;
	const size_t unit = op->height > 1 ? op->width : 1;
	size_t some = (random % PIECE + PIECE) / unit + 1, i;

	if (some > whole - op->at)
		some = whole - op->at;
	if (op->height == 1)
		memmove(to.at + op->at, from.at + op->at, some);
	for (i = op->at; op->height > 1 && i < op->at + some; i++)
		memmove(to.at + i * to.pitch, from.at + i * from.pitch, op->width);
	op->at += some;
	return op->at == whole ? STEP_DONE : STEP_MORE;
}

static enum step copy(struct operation *op, struct device *gpu, uint64_t random, char *text,
		      size_t n)
{
	const struct place to = find_place(op, gpu, true, text, n);
	struct place from;

	if (!to.at)
		return STEP_BROKEN;
	from = find_place(op, gpu, false, text, n);
	if (!from.at)
		return STEP_BROKEN;
	if (!op->scribbled && emu.settings.late && random & 1 << 20 &&
	    op->width * op->height <= SCRIBBLE_MAX && !overlap(op, to, from)) {
		scribble(op, to);
		op->scribbled = true;
		return STEP_MORE;
	}
	op->scribbled = true;
	return copy_some(op, to, from, random);
}

static enum step fill(struct operation *op, struct device *gpu, char *text, size_t n)
{
	const struct place to = find_place(op, gpu, true, text, n);

	if (!to.at)
		return STEP_BROKEN;
	memset(to.at, (int)op->value, op->width);
	return STEP_DONE;
}

static enum step word(struct operation *op, struct device *gpu, char *text, size_t n)
{
	const bool write = op->kind == OPERATION_WRITE_WORD;
	_Atomic uint64_t *at =
		(_Atomic uint64_t *)(void *)translate(gpu, op->to, 8, write, text, n);

	if (!at)
		return STEP_BROKEN;
	if (host_memory_gone(op->to, (const uint8_t *)at, 8)) {
		snprintf(text, n, "registered host memory at %p was unmapped", (void *)at);
		return STEP_BROKEN;
	}
	if (write)
		atomic_store(at, op->value);
	return STEP_DONE;
}

enum step operation_run(struct operation *op, struct device *gpu, uint64_t random, char *text,
			size_t n)
{
	switch (op->kind) {
	case OPERATION_COPY:
		return copy(op, gpu, random, text, n);
	case OPERATION_FILL:
		return fill(op, gpu, text, n);
	case OPERATION_KERNEL:
		return function_run(op, gpu, random, text, n) ? STEP_BROKEN : STEP_DONE;
	case OPERATION_WRITE_WORD:
	case OPERATION_WAIT_WORD:
		return word(op, gpu, text, n);
	default: /* the executor does the others itself */
		return STEP_DONE;
	}
}
