/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_gpu_raw.h"

enum { MAX_SEGMENTS = 64 };

/* --- memory --- */

void gpu_uuid(const struct gpu *g, uint8_t ret[WIRE_UUID_BYTES])
{
	CUuuid uuid;

	GPU(gpu_api()->cuDeviceGetUuid(&uuid, g->device));
	memcpy(ret, uuid.bytes, WIRE_UUID_BYTES);
}

struct wire_region gpu_region(const struct gpu *g, CUdeviceptr memory, uint64_t offset,
			      uint64_t length)
{
	struct wire_region ret = { .memory = WIRE_DEVICE_HANDLE,
				   .offset = offset,
				   .length = length };
	CUipcMemHandle handle;

	GPU(gpu_api()->cuIpcGetMemHandle(&handle, memory));
	memcpy(ret.handle, &handle, sizeof(handle));
	gpu_uuid(g, ret.device);
	return ret;
}

struct wire_region gpu_raw_region(const struct gpu_raw *e)
{
	return gpu_region(e->gpu, e->memory, e->offset, e->pages * e->page_bytes);
}

/* --- the space --- */

void gpu_raw_dial(struct gpu_raw *e, const char *socket, const struct gpu *g,
		  const struct kvtier_geometry *geometry, uint32_t pages)
{
	memset(e, 0, sizeof(*e));
	e->gpu = g;
	e->geometry = *geometry;
	e->pages = pages;
	e->page_bytes = engine_page_bytes(geometry);
	e->offset = 512;
	raw_open(&e->raw, socket);
	GPU(gpu_api()->cuMemAlloc(&e->own, e->offset + pages * e->page_bytes));
	e->memory = e->own;
}

static void space_open(struct gpu_raw *e, const struct wire_region *regions, uint32_t n, void *ret)
{
	const struct kvtier_geometry *g = &e->geometry;
	struct kvtier_segment segments[MAX_SEGMENTS];
	const size_t n_segments = engine_segments(g, segments, MAX_SEGMENTS);
	struct wire_space_open *open = ret;
	struct wire_region *to = (struct wire_region *)(void *)(open + 1);
	struct wire_segment *segment = (struct wire_segment *)(void *)(to + n);
	const size_t bytes = sizeof(*open) + n * sizeof(*to) + n_segments * sizeof(*segment);

	*open = (struct wire_space_open){
		.head = raw_head(&e->raw, WIRE_SPACE_OPEN, bytes),
		.n_regions = n,
		.n_segments = (uint32_t)n_segments,
		.geometry = { .dtype = g->dtype,
			      .codec = g->codec,
			      .layers = g->layers,
			      .kv_heads = g->kv_heads,
			      .head_dim_k = g->head_dim_k,
			      .head_dim_v = g->head_dim_v,
			      .block_tokens = g->block_tokens,
			      .world = 1,
			      .model = "gpu@1" },
	};
	memcpy(to, regions, n * sizeof(*to));
	for (size_t i = 0; i < n_segments; i++)
		segment[i] = (struct wire_segment){
			.layer = segments[i].layer,
			.kind = segments[i].kind,
			.offset = segments[i].offset,
			.page_stride = segments[i].page_stride,
			.head_stride = segments[i].head_stride,
			.token_stride = segments[i].token_stride,
		};
}

int gpu_raw_space(struct gpu_raw *e, const struct wire_region *regions, uint32_t n, const int *fds,
		  uint32_t n_fds, char *text)
{
	static _Thread_local uint64_t message[WIRE_MAX_MESSAGE / 8];
	union {
		struct wire_head head;
		struct wire_space_ok ok;
		struct wire_error error;
	} answer = { 0 };
	size_t bytes;

	(void)space_open(e, regions, n, message);
	bytes = raw_space_narrow(&e->raw, (struct wire_space_open *)(void *)message);
	assert_int_equal(raw_send(&e->raw, message, bytes, fds, n_fds), 0);
	assert_true(raw_receive(&e->raw, &answer, sizeof(answer)) > 0);
	if (answer.head.type == WIRE_ERROR) {
		if (text)
			memcpy(text, answer.error.text, sizeof(answer.error.text));
		return answer.error.error;
	}
	assert_int_equal(answer.head.type, WIRE_SPACE_OK);
	e->space = answer.ok.space;
	return 0;
}

int gpu_raw_ask(struct gpu_raw *e, char *text)
{
	const struct wire_region region = gpu_raw_region(e);

	return gpu_raw_space(e, &region, 1, NULL, 0, text);
}

/* On a busy machine a driver that is played takes its time: the first answer is late, and until it
 * is there the GPU takes no other request. Then again, while that is all that is wrong. */
void gpu_raw_space_open(struct gpu_raw *e, const struct wire_region *regions, uint32_t n,
			const int *fds, uint32_t n_fds)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	char text[232] = "";
	int r;

	for (; (r = gpu_raw_space(e, regions, n, fds, n_fds, text)) != 0; nap_ms(10))
		if ((r != -ETIMEDOUT && r != -EBUSY) || now_ns() > until)
			fail_msg("SPACE_OPEN was refused: %s", text);
}

void gpu_raw_space_refused(struct gpu_raw *e, const struct wire_region *region, int fd, int error,
			   const char *words)
{
	char text[232] = "";
	const int r = gpu_raw_space(e, region, 1, &fd, fd >= 0, text);

	if (r != error || !strstr(text, words))
		fail_msg("%d \"%s\"; expected %d with \"%s\"", r, text, error, words);
}

void gpu_raw_open_again(struct gpu_raw *e)
{
	const struct wire_region region = gpu_raw_region(e);

	gpu_raw_space_open(e, &region, 1, NULL, 0);
}

void gpu_raw_open(struct gpu_raw *e, const char *socket, const struct gpu *g,
		  const struct kvtier_geometry *geometry, uint32_t pages)
{
	gpu_raw_dial(e, socket, g, geometry, pages);
	gpu_raw_open_again(e);
}

void gpu_raw_open_host(struct gpu_raw *e, const char *socket,
		       const struct kvtier_geometry *geometry, uint32_t pages)
{
	struct wire_region region = { .memory = WIRE_MEMFD };
	uint64_t bytes;

	*e = (struct gpu_raw){ .geometry = *geometry, .pages = pages };
	e->page_bytes = engine_page_bytes(geometry);
	region.length = bytes = (pages * e->page_bytes + 4095) / 4096 * 4096;
	e->host_fd = memfd_make(bytes, F_SEAL_SHRINK);
	e->host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, e->host_fd, 0);
	assert_true(e->host != MAP_FAILED);
	memset(e->host, 0, bytes);
	raw_open(&e->raw, socket);
	gpu_raw_space_open(e, &region, 1, &e->host_fd, 1);
}

int gpu_raw_order(struct gpu_raw *e)
{
	struct wire_order m = { .head = raw_head(&e->raw, WIRE_ORDER, sizeof(m)) };
	union {
		struct wire_head head;
		struct wire_order_ok ok;
		struct wire_error error;
	} answer = { 0 };
	const int fd = memfd_make(sizeof(*e->words), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);

	gpu_uuid(e->gpu, m.device);
	assert_int_equal(raw_send(&e->raw, &m, sizeof(m), &fd, 1), 0);
	assert_true(raw_receive(&e->raw, &answer, sizeof(answer)) > 0);
	if (answer.head.type == WIRE_ORDER_OK)
		e->words = mmap(NULL, sizeof(*e->words), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	(void)close(fd);
	return answer.head.type == WIRE_ORDER_OK ? 0 : answer.error.error;
}

void gpu_raw_close_space(struct gpu_raw *e)
{
	raw_space_close(&e->raw, e->space);
}

void gpu_raw_close(struct gpu_raw *e)
{
	raw_close(&e->raw);
	if (e->host)
		(void)close(e->host_fd);
	else
		GPU(gpu_api()->cuMemFree(e->own));
}

void gpu_raw_close_all(struct gpu_raw *e)
{
	gpu_raw_close_space(e);
	gpu_raw_close(e);
}

/* --- ops --- */

struct wire_sqe gpu_raw_sqe_at(struct gpu_raw *e, uint32_t slot, enum wire_op op, uint32_t chain,
			       uint32_t first, uint32_t n)
{
	struct wire_sqe sqe = raw_sqe(op, e->space);

	sqe.first = slot;
	sqe.n = n;
	sqe.deadline_ns = now_ns() + 60000000000u;
	for (uint32_t i = 0; i < n; i++) {
		random_key((uint64_t)chain << 32 | (i + 1), raw_keys(&e->raw) + 32 * (slot + i));
		raw_pages(&e->raw)[slot + i] = first + i;
	}
	return sqe;
}

struct wire_sqe gpu_raw_sqe(struct gpu_raw *e, enum wire_op op, uint32_t chain, uint32_t first,
			    uint32_t n)
{
	return gpu_raw_sqe_at(e, 0, op, chain, first, n);
}

int32_t gpu_raw_status(const struct gpu_raw *e, uint32_t slot)
{
	return raw_status(&e->raw, slot);
}

void gpu_raw_send(struct gpu_raw *e, const struct wire_sqe *sqe)
{
	raw_push(&e->raw, e->position++, sqe);
}

struct wire_cqe gpu_raw_await(struct gpu_raw *e)
{
	struct wire_cqe cqe;

	raw_await(&e->raw, e->position);
	cqe = *raw_cqe(&e->raw, e->position - 1);
	raw_taken(&e->raw, e->position);
	return cqe;
}

bool gpu_raw_completed(const struct gpu_raw *e)
{
	return __atomic_load_n(&e->raw.complete->cq_tail, __ATOMIC_ACQUIRE) == e->position;
}

void gpu_raw_start(struct gpu_raw *e, enum wire_op op, uint32_t chain, uint32_t first, uint32_t n)
{
	const struct wire_sqe sqe = gpu_raw_sqe(e, op, chain, first, n);

	gpu_raw_send(e, &sqe);
}

struct wire_cqe gpu_raw_run(struct gpu_raw *e, enum wire_op op, uint32_t chain, uint32_t first,
			    uint32_t n)
{
	gpu_raw_start(e, op, chain, first, n);
	return gpu_raw_await(e);
}

/* --- bytes --- */

/* Whole numbers below 16: E4M3 holds them exactly, beside any values in their group. */
static uint16_t value_at(uint32_t chain, uint32_t block, size_t at)
{
	const uint32_t n = (uint32_t)((chain * 2654435761u + block * 40503u + at * 97u) >> 3) % 16;
	const float value = (float)n;
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static void page_write(struct gpu_raw *e, uint32_t page, const void *from, size_t bytes)
{
	if (e->host)
		memcpy(e->host + page * e->page_bytes, from, bytes);
	else
		gpu_write(e->gpu, e->memory + e->offset + page * e->page_bytes, from, bytes);
}

void gpu_raw_fill(struct gpu_raw *e, uint32_t chain, uint32_t first, uint32_t n)
{
	uint16_t *bytes = malloc(e->page_bytes);

	assert_non_null(bytes);
	for (uint32_t i = 0; i < n; i++) {
		for (size_t k = 0; k < e->page_bytes / 2; k++)
			bytes[k] = value_at(chain, i, k);
		page_write(e, first + i, bytes, e->page_bytes);
	}
	free(bytes);
}

void gpu_raw_poison(struct gpu_raw *e, uint32_t first, uint32_t n)
{
	uint8_t *bytes = malloc(n * e->page_bytes);

	assert_non_null(bytes);
	memset(bytes, 0xa5, n * e->page_bytes);
	page_write(e, first, bytes, n * e->page_bytes);
	free(bytes);
}

static uint16_t *read_page(struct gpu_raw *e, uint32_t page)
{
	uint16_t *bytes = malloc(e->page_bytes);

	assert_non_null(bytes);
	if (e->host)
		memcpy(bytes, e->host + page * e->page_bytes, e->page_bytes);
	else
		gpu_read(e->gpu, bytes, e->memory + e->offset + page * e->page_bytes,
			 e->page_bytes);
	return bytes;
}

bool gpu_raw_holds(struct gpu_raw *e, uint32_t chain, uint32_t block, uint32_t page)
{
	return gpu_raw_holds_layers(e, chain, block, page, e->geometry.layers);
}

bool gpu_raw_holds_layers(struct gpu_raw *e, uint32_t chain, uint32_t block, uint32_t page,
			  uint32_t layers)
{
	uint16_t *bytes = read_page(e, page);
	bool ret = true;

	for (size_t k = 0; k < e->page_bytes / 2 / e->geometry.layers * layers; k++)
		ret &= bytes[k] == value_at(chain, block, k);
	free(bytes);
	return ret;
}

bool gpu_raw_is_poison(struct gpu_raw *e, uint32_t page)
{
	uint16_t *bytes = read_page(e, page);
	bool ret = true;

	for (size_t k = 0; k < e->page_bytes / 2; k++)
		ret &= bytes[k] == 0xa5a5;
	free(bytes);
	return ret;
}

void gpu_raw_all_hold(struct gpu_raw *e, uint32_t chain, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!gpu_raw_holds(e, chain, i, first + i))
			fail_msg("block %u of chain %u has other bytes", i, chain);
}

void gpu_raw_all_poison(struct gpu_raw *e, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++)
		if (!gpu_raw_is_poison(e, i))
			fail_msg("page %u was touched", i);
}

void gpu_raw_store(struct gpu_raw *e, uint32_t chain, uint32_t first, uint32_t n)
{
	gpu_raw_fill(e, chain, first, n);
	assert_int_equal(gpu_raw_run(e, WIRE_OP_STORE, chain, first, n).status, 0);
}

void gpu_raw_load(struct gpu_raw *e, uint32_t chain, uint32_t first, uint32_t n)
{
	gpu_raw_poison(e, first, n);
	assert_int_equal(gpu_raw_run(e, WIRE_OP_LOAD, chain, first, n).status, 0);
	gpu_raw_all_hold(e, chain, first, n);
}

void gpu_raw_round_trip(struct gpu_raw *e, uint32_t chain, uint32_t n)
{
	gpu_raw_store(e, chain, 0, n);
	gpu_raw_load(e, chain, n, n);
}

static bool devices_say(const struct daemon *d, const char *words)
{
	char text[4096];

	return daemon_ctl(d, "devices --json", text, sizeof(text)) == 0 && strstr(text, words);
}

void gpu_devices_have(const struct daemon *d, const char *what, uint32_t n)
{
	char words[48];

	snprintf(words, sizeof(words), "\"%s\":%u,", what, n);
	AWAIT(devices_say(d, words));
}

int gpu_daemon_begin(struct daemon *d, struct gpu *gpu, const char *config)
{
	gpu_open(gpu, 0);
	daemon_start(d, config);
	return 0;
}

int gpu_daemon_end(struct daemon *d, struct gpu *gpu)
{
	daemon_stat_becomes(d, "gpu.regions", 0, PATIENT_MS);
	daemon_stat_becomes(d, "ops.outstanding", 0, PATIENT_MS);
	daemon_remove(d);
	gpu_close(gpu);
	gpu_report_clean("kvtierd");
	return 0;
}
