/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_cuda_codec.h"

#include "daemon/cuda/driver/cuda_load.h"
#include "kernels/cuda/plan.h"
#include "kernels/fp8.h"
#include "tests/gpu/host/host_kernel.h"
#include "lib_gpu.h"
#include "test.h"

enum { READ = 1, WRITE = 2 };
enum {
	IMAGE_AT = CUDA_BED_PAGES,
	FLAGS_AT = IMAGE_AT + CUDA_BED_IMAGE,
	PIECES_AT = FLAGS_AT + 4096,
};
static_assert(PIECES_AT + PAGES_MAX_PIECES * sizeof(struct cuda_piece) <= CUDA_BED_BYTES, "tables");

int cuda_bed_begin(void **state)
{
	static struct cuda_bed bed;

	bed = (struct cuda_bed){
		.random = random_seeded(program_invocation_short_name),
		.memory = aligned_alloc(4096, CUDA_BED_BYTES),
		.rights = calloc(1, CUDA_BED_BYTES),
		.twin = aligned_alloc(4096, CUDA_BED_PAGES),
		.image = aligned_alloc(4096, CUDA_BED_IMAGE),
		.max_ranges = 1,
		.max_blocks = 16,
	};
	assert_true(bed.memory && bed.rights && bed.twin && bed.image);
	memset(bed.memory, CUDA_BED_FILLER, CUDA_BED_BYTES);
	*state = &bed;
	return 0;
}

int cuda_bed_end(void **state)
{
	struct cuda_bed *bed = *state;

	free(bed->memory);
	free(bed->rights);
	free(bed->twin);
	free(bed->image);
	return 0;
}

static void *access_memory(void *arg, uint64_t address, size_t bytes, int write)
{
	struct cuda_bed *bed = arg;
	const uint64_t at = address - CUDA_BED_DEVICE;

	if (address < CUDA_BED_DEVICE || at > CUDA_BED_BYTES - bytes)
		return NULL;
	for (size_t i = 0; i < bytes; i++)
		if (!(bed->rights[at + i] & (write ? WRITE : READ)))
			return NULL;
	if (!write && at < bed->pages.bytes && bed->reads++ - bed->change_first < bed->change_n)
		bed->memory[at + 1] = (uint8_t)random_below(&bed->random, 0x7f);
	return bed->memory + at;
}

static void allow(struct cuda_bed *bed, uint64_t at, uint64_t bytes, uint8_t rights)
{
	assert_true(at + bytes <= CUDA_BED_BYTES);
	memset(bed->rights + at, rights, bytes);
}

/* Each byte of the page that is in a row, and no other. */
static void allow_rows(struct cuda_bed *bed, uint8_t rights)
{
	const struct image_geometry *g = &bed->pages.layout.geometry;
	const uint64_t e = image_element_bytes(g->dtype);

	for (uint32_t i = 0; i < bed->pages.layout.n_pieces; i++) {
		const struct page_piece *p = &bed->pages.pieces[i];
		const uint64_t at =
			(uintptr_t)p->base - CUDA_BED_DEVICE + bed->page * p->page_stride;
		const bool plane = p->kind == KIND_K || p->kind == KIND_V;
		const uint64_t bytes =
			p->kind == KIND_K ? e * g->head_dim_k :
			p->kind == KIND_V ? e * g->head_dim_v :
					    p->length * (p->kind == KIND_TYPED ? e : 1);

		for (uint32_t h = 0; h < (plane ? g->kv_heads : 1); h++)
			for (uint32_t t = 0; t < (plane || p->token_stride ? g->block_tokens : 1);
			     t++)
				allow(bed, at + h * p->head_stride + t * p->token_stride, bytes,
				      rights);
	}
}

bool cuda_bed_plan(struct cuda_bed *bed, enum image_codec codec_k, enum image_codec codec_v)
{
	struct pages *p = &bed->pages;

	bed->codec_k = codec_k;
	bed->codec_v = codec_v;
	bed->page = random_below(&bed->random, (uint32_t)p->n_pages);
	assert_int_equal(image_shape(&p->layout.geometry, codec_k, codec_v, &bed->shape, NULL), 0);
	if (p->bytes > CUDA_BED_PAGES || bed->shape.image_bytes > CUDA_BED_IMAGE)
		return false;
	if (codec_k == CODEC_LOSSLESS && !cuda_plan_takes_packs(&p->layout.geometry))
		return false;
	assert_int_equal(cuda_plan_make(&p->layout, codec_k == CODEC_LOSSLESS, &bed->plan,
					bed->table),
			 0);
	bed->plan.pieces = CUDA_BED_DEVICE + PIECES_AT;
	memcpy(bed->memory + PIECES_AT, bed->table, p->layout.n_pieces * sizeof(*bed->table));
	bed->twin_host = p->layout;
	memcpy(bed->twin_pieces, p->pieces, sizeof(p->pieces));
	for (uint32_t i = 0; i < p->layout.n_pieces; i++)
		bed->twin_pieces[i].base =
			bed->twin + ((uintptr_t)p->pieces[i].base - CUDA_BED_DEVICE);
	bed->twin_host.pieces = bed->twin_pieces;
	return true;
}

void cuda_bed_fill(struct cuda_bed *bed)
{
	const uint32_t mood = random_below(&bed->random, 8),
		       top = bed->pages.layout.geometry.dtype == DTYPE_FP16 ? 0x7b00 : 0x7f00;

	for (uint64_t i = 0; i + 2 <= bed->pages.bytes; i += 2) {
		const uint64_t r = random_next(&bed->random);
		uint32_t v = mood == 0    ? 0 :
			     mood == 1    ? (uint32_t)(r % top) :
			     r % 256 == 0 ? (uint32_t)(r >> 8 & 3) :
					    top / 2 - (uint32_t)((r >> 16) % 0x600);

		v |= (uint32_t)(r >> 60 & 1) << 15;
		bed->memory[i] = (uint8_t)v;
		bed->memory[i + 1] = (uint8_t)(v >> 8);
	}
}

static struct cuda_task task_of(const struct cuda_bed *bed, uint32_t i, uint32_t from, uint32_t to)
{
	return (struct cuda_task){
		.page = bed->page,
		.scales = CUDA_BED_DEVICE + IMAGE_AT + sizeof(struct image_header),
		.payload = CUDA_BED_DEVICE + IMAGE_AT + bed->shape.payload_offset,
		.flag = CUDA_BED_DEVICE + FLAGS_AT + 4 * i,
		.end = CUDA_BED_DEVICE + IMAGE_AT + bed->shape.image_bytes - IMAGE_PACK_SPARE,
		.first_tile = from,
		.n_tiles = to - from,
		.codec_k = (uint8_t)bed->codec_k,
		.codec_v = (uint8_t)bed->codec_v,
	};
}

/* Far parts of the packs before a tile, by the scales in the bed. */
static uint32_t far_before(const struct cuda_bed *bed, uint32_t tile)
{
	const uint8_t *scales = bed->memory + IMAGE_AT + sizeof(struct image_header);
	uint32_t sum = 0;

	for (uint32_t i = 0; i < tile && i < bed->plan.packs; i++)
		sum += (image_pack_far(scales + 3ull * i) + 7) / 8 * 8;
	return sum;
}

/* 1 .. max_ranges tasks that do each tile once, in any order. */
static void make_tasks(struct cuda_bed *bed, struct cuda_tasks *ret)
{
	const uint32_t n = 1 + random_below(&bed->random, bed->max_ranges);
	struct cuda_task *tasks = ret->task;
	uint32_t from = 0;

	for (uint32_t i = 0; i < n; i++) {
		const uint32_t left = bed->plan.n_tiles - from;
		const uint32_t to = i == n - 1 ? bed->plan.n_tiles :
						 from + random_below(&bed->random, left + 1);

		tasks[i] = task_of(bed, i, from, to);
		from = to;
	}
	for (uint32_t i = n; i > 1; i--) {
		const uint32_t j = random_below(&bed->random, i);
		const struct cuda_task t = tasks[i - 1];

		tasks[i - 1] = tasks[j];
		tasks[j] = t;
	}
	ret->n = n;
}

/* On this machine's GPU: the memory goes there and comes back, and bytes that the kernel must not
 * write to must be as they were. */
struct on_gpu {
	struct gpu gpu;
	CUdeviceptr memory;
	CUmodule module;
	uint8_t *back;
};

static struct on_gpu *on_gpu(void)
{
	static struct on_gpu g;
	const struct cuda_api *api = gpu_api();
	struct cuda_kernels_for kernels;

	if (g.back)
		return &g;
	gpu_open(&g.gpu, 0);
	GPU(cuda_kernels_ask(api, g.gpu.device, &kernels));
	GPU(cuda_kernels_load(api, kernels, &g.module));
	GPU(api->cuMemAlloc(&g.memory, CUDA_BED_BYTES));
	g.back = malloc(CUDA_BED_BYTES);
	assert_non_null(g.back);
	return &g;
}

/* Tasks and pieces get the addresses that they have on the GPU, and back. */
static void move_addresses(struct cuda_bed *bed, uint64_t by, struct cuda_tasks *tasks)
{
	struct cuda_piece *pieces = (void *)(bed->memory + PIECES_AT);

	for (uint32_t i = 0; i < tasks->n; i++) {
		tasks->task[i].scales += by;
		tasks->task[i].payload += by;
		tasks->task[i].flag += by;
		tasks->task[i].end += by;
	}
	for (uint32_t i = 0; i < bed->plan.n_pieces; i++)
		pieces[i].base += by;
	bed->plan.pieces += by;
}

static void launch_on_gpu(struct cuda_bed *bed, const char *name, struct cuda_tasks *tasks,
			  uint32_t blocks)
{
	struct on_gpu *g = on_gpu();
	const uint64_t by = g->memory - CUDA_BED_DEVICE;
	void *params[] = { &bed->plan, tasks };
	CUfunction kernel;

	GPU(gpu_api()->cuModuleGetFunction(&kernel, g->module, name));
	move_addresses(bed, by, tasks);
	gpu_write(&g->gpu, g->memory, bed->memory, CUDA_BED_BYTES);
	GPU(gpu_api()->cuLaunchKernel(kernel, blocks, 1, 1, CUDA_THREADS, 1, 1, 0, g->gpu.stream,
				      params, NULL));
	gpu_read(&g->gpu, g->back, g->memory, CUDA_BED_BYTES);
	for (uint32_t i = 0; i < CUDA_BED_BYTES; i++)
		if (bed->rights[i] & WRITE)
			bed->memory[i] = g->back[i];
		else if (bed->memory[i] != g->back[i])
			fail_msg("%s wrote to byte %u, which is not its", name, i);
	move_addresses(bed, 0 - by, tasks);
}

static void launch(struct cuda_bed *bed, const char *name, struct cuda_tasks *tasks)
{
	void *const params[] = { &bed->plan, tasks };
	const struct host_launch l = {
		.grid = { 1 + random_below(&bed->random, bed->max_blocks), 1, 1 },
		.block = { CUDA_THREADS, 1, 1 },
		.params = params,
		.seed = random_next(&bed->random),
		.access = access_memory,
		.arg = bed,
	};
	char text[256] = "";
	int r;

	tasks->mark = bed->mark;
	(void)cuda_tasks_number(tasks);
	if (gpu_is_real()) {
		launch_on_gpu(bed, name, tasks, l.grid[0]);
		return;
	}
	r = host_kernel_run(host_kernel_find(name), &l, text, sizeof(text));
	if (r) {
		pages_print(&bed->pages);
		print_error("codecs %u %u, page %llu: %s\n", bed->codec_k, bed->codec_v,
			    (unsigned long long)bed->page, text);
	}
	assert_int_equal(r, 0);
}

static void allow_table(struct cuda_bed *bed)
{
	allow(bed, PIECES_AT, bed->pages.layout.n_pieces * sizeof(struct cuda_piece), READ);
}

/* In one launch or several. */
static void launch_some(struct cuda_bed *bed, const char *name, const struct cuda_tasks *all)
{
	struct cuda_tasks some;

	for (uint32_t i = 0; i < all->n; i += some.n) {
		some.n = 1 + random_below(&bed->random, all->n - i);
		memcpy(some.task, all->task + i, some.n * sizeof(*some.task));
		launch(bed, name, &some);
	}
}

/* No byte of the payload behind the lengths that were counted. */
static void forbid_rest(struct cuda_bed *bed)
{
	const uint32_t n = bed->shape.payload_bytes;
	uint32_t scale, end;

	cuda_plan_at(&bed->plan, bed->table, bed->codec_k, bed->codec_v, bed->plan.n_tiles, &scale,
		     &end);
	end += far_before(bed, bed->plan.packs);
	allow(bed, IMAGE_AT + bed->shape.payload_offset + end, end < n ? n - end : 0, 0);
}

static void launch_all(struct cuda_bed *bed, bool encode, struct cuda_tasks *all)
{
	allow_table(bed);
	if (bed->codec_k != CODEC_LOSSLESS) {
		launch_some(bed, encode ? "kvtier_encode" : "kvtier_decode", all);
		return;
	}
	if (encode) {
		launch_some(bed, "kvtier_pack_lengths", all);
		forbid_rest(bed);
	}
	for (uint32_t i = 0; i < all->n; i++)
		all->task[i].payload += far_before(bed, all->task[i].first_tile);
	launch_some(bed, encode ? "kvtier_pack_encode" : "kvtier_pack_decode", all);
}

static void launches(struct cuda_bed *bed, bool encode)
{
	struct cuda_tasks all;

	make_tasks(bed, &all);
	launch_all(bed, encode, &all);
}

static void say_difference(struct cuda_bed *bed, const uint8_t *got, const uint8_t *want,
			   uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (got[i] != want[i]) {
			pages_print(&bed->pages);
			print_error(
				"codecs %u %u, page %llu: byte %llu of %llu is %02x, not %02x\n",
				bed->codec_k, bed->codec_v, (unsigned long long)bed->page,
				(unsigned long long)i, (unsigned long long)n, got[i], want[i]);
			fail();
		}
}

static void allow_image(struct cuda_bed *bed, uint8_t rights)
{
	const bool lossless = bed->codec_k == CODEC_LOSSLESS;

	allow(bed, IMAGE_AT + sizeof(struct image_header), bed->shape.scale_bytes,
	      lossless ? READ | WRITE : rights);
	allow(bed, IMAGE_AT + bed->shape.payload_offset,
	      bed->shape.payload_bytes - (lossless ? IMAGE_PACK_SPARE : 0), rights);
}

/* Bytes of ref.c's payload that a kernel makes. */
static uint32_t payload_bytes(const struct cuda_bed *bed)
{
	const struct image_header *header = (const void *)bed->image;

	return header->payload_bytes - (bed->codec_k == CODEC_LOSSLESS ? IMAGE_PACK_SPARE : 0);
}

/* The start of an encode: all but the image. Flags keep their values. */
static void encode_start(struct cuda_bed *bed)
{
	bed->mark++;
	memset(bed->rights, 0, CUDA_BED_BYTES);
	memset(bed->memory + IMAGE_AT, CUDA_BED_FILLER, bed->shape.image_bytes);
	allow_rows(bed, READ);
	allow(bed, FLAGS_AT, 4096, WRITE);
}

static int encode_ref(struct cuda_bed *bed)
{
	static const struct image_identity identity;

	memcpy(bed->twin, bed->memory, bed->pages.bytes);
	return codec_encode(&codec_ref, &bed->twin_host, bed->page, bed->codec_k, bed->codec_v,
			    &identity, bed->image, NULL);
}

static bool flagged(const struct cuda_bed *bed, uint32_t i)
{
	uint32_t x;

	memcpy(&x, bed->memory + FLAGS_AT + 4 * i, 4);
	return x == bed->mark;
}

int cuda_bed_encode(struct cuda_bed *bed)
{
	const uint32_t scales = sizeof(struct image_header);
	uint8_t *mine = bed->memory + IMAGE_AT;
	bool any = false;
	int r;

	encode_start(bed);
	allow_image(bed, WRITE);
	launches(bed, true);
	r = encode_ref(bed);
	for (uint32_t i = 0; i < CUDA_TASKS; i++)
		any |= flagged(bed, i);
	assert_int_equal(any, r == -ERANGE);
	if (r)
		return r;
	say_difference(bed, mine + scales, bed->image + scales, bed->shape.scale_bytes);
	say_difference(bed, mine + bed->shape.payload_offset,
		       bed->image + bed->shape.payload_offset, payload_bytes(bed));
	return 0;
}

void cuda_bed_range(struct cuda_bed *bed, uint32_t from, uint32_t to)
{
	const uint32_t scales = sizeof(struct image_header), payload = bed->shape.payload_offset;
	struct cuda_tasks tasks = { .n = 1, .task = { task_of(bed, 0, from, to) } };
	uint32_t scale[2], at[2];

	cuda_plan_at(&bed->plan, bed->table, bed->codec_k, bed->codec_v, from, &scale[0], &at[0]);
	cuda_plan_at(&bed->plan, bed->table, bed->codec_k, bed->codec_v, to, &scale[1], &at[1]);
	encode_start(bed);
	if (bed->codec_k == CODEC_LOSSLESS) { /* all scales are there, so the places are known */
		if (encode_ref(bed))
			return;
		memcpy(bed->memory + IMAGE_AT, bed->image, payload);
		at[0] += far_before(bed, from);
		at[1] += far_before(bed, to);
	}
	if (bed->shape.scale_bytes)
		allow(bed, IMAGE_AT + scales + scale[0], scale[1] - scale[0], READ | WRITE);
	allow(bed, IMAGE_AT + payload + at[0], at[1] - at[0], WRITE);
	launch_all(bed, true, &tasks);
	if (encode_ref(bed))
		return;
	say_difference(bed, bed->memory + IMAGE_AT + payload + at[0], bed->image + payload + at[0],
		       at[1] - at[0]);
}

void cuda_bed_flags(struct cuda_bed *bed, uint32_t n)
{
	struct cuda_tasks tasks = { .n = bed->plan.n_tiles };

	assert_true(bed->plan.n_tiles <= CUDA_TASKS);
	for (uint32_t i = 0; i < bed->plan.n_tiles; i++)
		tasks.task[i] = task_of(bed, i, i, i + 1);
	encode_start(bed);
	allow_table(bed);
	allow_image(bed, WRITE);
	launch(bed, "kvtier_encode", &tasks);
	for (uint32_t i = 0; i < CUDA_TASKS; i++)
		assert_int_equal(flagged(bed, i), i < n);
}

/* Unless a task has refused it, what was made of a page that changed is an image. */
static void look_at_changed(struct cuda_bed *bed)
{
	const uint32_t offset = bed->shape.payload_offset;
	struct image_shape shape = bed->shape;
	uint32_t scale, fixed;

	for (uint32_t i = 0; i < CUDA_TASKS; i++)
		if (flagged(bed, i))
			return;
	cuda_plan_at(&bed->plan, bed->table, bed->codec_k, bed->codec_v, bed->plan.n_tiles, &scale,
		     &fixed);
	image_shape_cut(&shape, fixed + far_before(bed, bed->plan.packs) + IMAGE_PACK_SPARE);
	memcpy(bed->image, bed->memory + IMAGE_AT, bed->shape.image_bytes);
	image_header_fill((void *)bed->image, &bed->pages.layout.geometry, CODEC_LOSSLESS,
			  CODEC_LOSSLESS, &shape, &(struct image_identity){ 0 });
	assert_true(shape.payload_offset == offset && scale == shape.scale_bytes);
	assert_true(image_packs_are_right(&bed->pages.layout.geometry, &shape, bed->image));
}

void cuda_bed_changing(struct cuda_bed *bed, uint32_t first, uint32_t n)
{
	const uint32_t payload = bed->shape.payload_offset;
	const uint8_t *codes = bed->memory + IMAGE_AT + payload;

	encode_start(bed);
	allow_image(bed, WRITE);
	bed->change_first = first;
	bed->change_n = n;
	bed->reads = 0;
	launches(bed, true);
	bed->change_n = 0;
	if (bed->codec_k == CODEC_LOSSLESS)
		look_at_changed(bed);
	if (bed->codec_k != CODEC_FP8 || bed->codec_v != CODEC_FP8)
		return;
	for (uint32_t i = 0; i < bed->shape.payload_bytes - bed->plan.opaque_bytes; i++)
		assert_int_not_equal(codes[i] & 0x7f, FP8_NAN);
}

void cuda_bed_decode(struct cuda_bed *bed)
{
	const int r = cuda_bed_decode_any(bed);

	if (r) {
		pages_print(&bed->pages);
		assert_int_equal(r, 0);
	}
}

int cuda_bed_decode_any(struct cuda_bed *bed)
{
	const struct image_shape shape = bed->shape;
	bool any = false;
	int r;

	bed->mark++;
	if (bed->codec_k == CODEC_LOSSLESS)
		image_shape_cut(&bed->shape,
				((struct image_header *)(void *)bed->image)->payload_bytes);
	memset(bed->rights, 0, CUDA_BED_BYTES);
	memcpy(bed->memory + IMAGE_AT, bed->image, bed->shape.image_bytes);
	memset(bed->memory, CUDA_BED_FILLER, bed->pages.bytes);
	memset(bed->twin, CUDA_BED_FILLER, bed->pages.bytes);
	allow_rows(bed, WRITE);
	allow_image(bed, READ);
	allow(bed, FLAGS_AT, 4096, WRITE);
	launches(bed, false);
	bed->shape = shape;
	r = codec_decode(&codec_ref, &bed->twin_host, bed->page, bed->image, NULL);
	for (uint32_t i = 0; i < CUDA_TASKS; i++)
		any |= flagged(bed, i);
	assert_int_equal(any, r == -EBADMSG);
	if (!r)
		say_difference(bed, bed->memory, bed->twin, bed->pages.bytes);
	return r;
}

int cuda_bed_both(struct cuda_bed *bed, enum image_codec codec_k, enum image_codec codec_v)
{
	int r;

	assert_true(cuda_bed_plan(bed, codec_k, codec_v));
	r = cuda_bed_encode(bed);
	if (!r)
		cuda_bed_decode(bed);
	return r;
}
