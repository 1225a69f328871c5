/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_fuzz_redis.c - see lib_fuzz_redis.h.
 */
#include "lib_fuzz_redis.h"

const char *const odd_replies[ODD_REPLIES + NO_REPLIES] = {
	"$-1\r\n",
	"*-1\r\n",
	"_\r\n",
	"+OK\r\n",
	":0\r\n",
	"-ERR no\r\n",
	"-\r\n",
	"-WRONGTYPE no\r\n",
	"*0\r\n",
	"*2\r\n$3\r\nabc\r\n*1\r\n:5\r\n",
	"|1\r\n+a\r\n:1\r\n:7\r\n",
	"%1\r\n+a\r\n,1.5\r\n",
	"=6\r\ntxt:ab\r\n",
	"!3\r\nERR\r\n",
	"#t\r\n",
	"(123\r\n",
	"~1\r\n:1\r\n",
	"|0\r\n$-1\r\n",
	"-MOVED 1 :1\r\n",
	">0\r\n:1\r\n",
	">2\r\n+a\r\n$1\r\nb\r\n$2\r\nab\r\n",
	"*1\r\n|1\r\n+a\r\n:1\r\n:7\r\n",
	"$5\r\nab\r\n",
	"*9\r\n*9\r\n*9\r\n*9\r\n",
	"\r\n",
	"$",
	"*1048576\r\n",
	"$3\r\nabcd\r\n",
};

const struct redis_seal fuzz_seal_of = { .key = "a key of tests, of them alone",
					 .tag = "feedfacefeedface" };

size_t memory_in_use(void)
{
	const struct mallinfo2 m = mallinfo2(); /* zeros under a sanitizer */

	return m.uordblks + m.hblkhd;
}

bool filled_with(const uint8_t *bytes, size_t n, uint8_t with)
{
	return n == 0 || (bytes[0] == with && memcmp(bytes, bytes + 1, n - 1) == 0);
}

uint8_t *image_value(const uint8_t *buffer, const struct block *b)
{
	const size_t head = sizeof(struct image_header) + b->shape.scale_bytes;
	uint8_t *packed = malloc(b->shape.packed_bytes);
	struct image_shape found;

	assert(packed);
	assert(image_header_check((const void *)buffer, &b->geometry, &b->identity, &found) == 0);
	memcpy(packed, buffer, head);
	memcpy(packed + head, buffer + b->shape.payload_offset, b->shape.payload_bytes);
	assert(filled_with(buffer + head, b->shape.payload_offset - head, 0));
	assert(filled_with(buffer + b->shape.image_bytes, -b->shape.image_bytes % IMAGE_ALIGN, 0));
	return packed;
}

static void fuzz_seal(const uint8_t *packed, size_t n, uint8_t *ret)
{
	static const struct redis_envelope envelope = { .magic = REDIS_VALUE_MAGIC,
							.form = REDIS_VALUE_FORM,
							.nonce = "constant: again" };
	struct redis_mac *mac = redis_mac_open();
	bool good;

	assert(mac);
	memcpy(ret, &envelope, sizeof(envelope));
	memcpy(ret + sizeof(envelope), packed, n);
	good = redis_mac_begin(mac, &fuzz_seal_of, &envelope, (const void *)packed) &&
	       redis_mac_add(mac, packed + sizeof(struct image_header),
			     n - sizeof(struct image_header)) &&
	       redis_mac_end(mac, ret + sizeof(envelope) + n);
	assert(good);
	redis_mac_close(mac);
}

/* Of a few hundred bytes, and more than one read takes; the last as raw as values come. */
static void make_block(struct block *b, uint64_t number)
{
	static const uint32_t opaque[FUZZ_BLOCKS] = { 10, 5000, 40000, 300 };
	const enum image_codec codec = number == FUZZ_BLOCKS - 1 ? CODEC_RAW : CODEC_FP8;
	struct random random = { .state = number };
	struct image_header header;
	uint8_t *packed;

	b->geometry = (struct image_geometry){ .dtype = DTYPE_BF16,
					       .layers = 2,
					       .kv_heads = 2,
					       .head_dim_k = 4,
					       .head_dim_v = 4,
					       .block_tokens = 20,
					       .opaque_bytes = opaque[number] };
	random_key(number, b->identity.key);
	assert(image_shape(&b->geometry, codec, codec, &b->shape, NULL) == 0);
	b->bytes = b->shape.packed_bytes + REDIS_SEAL_BYTES;
	b->value = malloc(b->bytes);
	packed = malloc(b->shape.packed_bytes);
	assert(b->value && packed);
	for (uint32_t i = sizeof(header); i < b->shape.packed_bytes; i++)
		packed[i] = (uint8_t)random_next(&random);
	image_header_fill(&header, &b->geometry, codec, codec, &b->shape, &b->identity);
	image_seal(&header, random_next(&random)); /* of the body nobody asks here */
	memcpy(packed, &header, sizeof(header));
	fuzz_seal(packed, b->shape.packed_bytes, b->value);
	free(packed);
}

static void world_tick(struct loop_timer *timer)
{
	(void)timer;
	loop_stop(the_world()->loop);
}

void world_turn(struct world *w)
{
	loop_timer_set(w->loop, &w->tick, 0);
	assert(loop_run(w->loop) == 0);
}

static void unlink_socket(void)
{
	(void)unlink(the_world()->address + 5);
}

struct world *the_world(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	static struct world w;

	if (w.loop)
		return &w;
	for (uint64_t i = 0; i < FUZZ_BLOCKS; i++)
		make_block(&w.blocks[i], i);
	w.tick.fire = world_tick;
	(void)snprintf(w.address, sizeof(w.address), "unix:/tmp/kvtier-fuzz-redis-recv-%d",
		       (int)getpid());
	(void)strcpy(a.sun_path, w.address + 5);
	(void)unlink(a.sun_path);
	w.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert(bind(w.listener, (struct sockaddr *)&a, sizeof(a)) == 0 &&
	       listen(w.listener, 1) == 0);
	assert(loop_open(0, &w.loop) == 0 && atexit(unlink_socket) == 0);
	return &w;
}
