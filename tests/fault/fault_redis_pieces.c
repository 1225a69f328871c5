/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/*
 * Goal: a value comes whole however it is cut into pieces, and the reply behind it, too; a server
 * that floods us before TLS is agreed on keeps no other from its turn. Method: a thread is the
 * server and sends scripted bytes, with pauses; between them the connection must sleep or wake as
 * it should (SO_RCVLOWAT).
 */
#include "tests/lib/lib_redis_conn.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

enum { PAUSE_US = 20000, MAX_CUTS = 4, HEADER = sizeof(struct image_header) };

struct server {
	pthread_t thread;
	int fd; /* listens */
	char address[64];
	const struct block *block;
	const uint8_t *packed;
	/* of the value with its CR LF, ascending; < 0: from its end; 0: none */
	int64_t cuts[MAX_CUTS];
};

static bool put(int fd, const void *bytes, size_t n)
{
	return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

static bool put_value(const struct server *s, int fd)
{
	const size_t value = block_bytes(s->block);
	uint8_t *reply = malloc(value + 32);
	const size_t head = (size_t)sprintf((char *)reply, "$%zu\r\n", value);
	size_t at = 0;
	bool good = true;

	memcpy(reply + head, s->packed, value);
	memcpy(reply + head + value, "\r\n", 2);
	for (int i = 0; i < MAX_CUTS && s->cuts[i] && good; i++) {
		const size_t to = s->cuts[i] > 0 ? head + (size_t)s->cuts[i] :
						   head + value + 2 - (size_t)-s->cuts[i];

		good = put(fd, reply + at, to - at);
		at = to;
		(void)usleep(PAUSE_US);
	}
	good = good && put(fd, reply + at, head + value + 2 - at);
	free(reply);
	return good;
}

static void *serve(void *arg)
{
	const struct server *s = arg;
	const int fd = accept(s->fd, NULL, NULL);
	char command[4096];
	ssize_t n;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
	while ((n = recv(fd, command, sizeof(command), 0)) > 0) /* one at a time */
		if (!(memmem(command, (size_t)n, "EXISTS", 6) ? put(fd, ":1\r\n", 4) :
								put_value(s, fd)))
			break;
	(void)close(fd);
	return NULL;
}

/* OpenSSL skips these without a word: HelloRequest, four to a record. */
static void *flood(void *arg)
{
	const struct server *s = arg;
	const int fd = accept(s->fd, NULL, NULL);
	static uint8_t records[64][5 + 16384];

	for (int i = 0; i < 64; i++)
		memcpy(records[i], "\x16\x03\x03\x40\x00", 5);
	while (put(fd, records, sizeof(records)))
		;
	(void)close(fd);
	return NULL;
}

static void begin(struct server *s, void *(*work)(void *))
{
	s->fd = fake_listen(s->address, NULL);
	assert_int_equal(pthread_create(&s->thread, NULL, work, s), 0);
}

static void end(struct server *s)
{
	assert_int_equal(pthread_join(s->thread, NULL), 0);
	(void)close(s->fd);
}

/* Of a value of half a MiB, which is woken for once, and one of a MiB, which is not. */
static void in_pieces(const int64_t cuts[MAX_CUTS])
{
	for (uint32_t tokens = 32; tokens <= 64; tokens *= 2) {
		const struct image_geometry geometry = {
			.dtype = DTYPE_BF16,
			.layers = 16,
			.kv_heads = 8,
			.head_dim_k = 64,
			.head_dim_v = 64,
			.block_tokens = tokens,
		};
		struct random random = random_seeded("in_pieces");
		struct block b = block_of(&geometry, CODEC_FP8, &random);
		uint8_t *packed = malloc(block_bytes(&b));
		struct server server = { .block = &b, .packed = packed };
		struct rig_command get = { 0 }, exists = { 0 };
		struct rig r;

		block_value(&b, packed);
		memcpy(server.cuts, cuts, sizeof(server.cuts));
		begin(&server, serve);
		rig_open(&r, server.address);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(rig_load(&r, &get, &b), 0);
			rig_has(&get, &b);
			rig_exists(&exists, &b);
			assert_int_equal(rig_do(&r, &exists), 0);
		}
		rig_close(&r);
		end(&server);
		rig_forget(&get);
		free(packed);
		block_free(&b);
	}
}

TEST_DO(the_end_of_line_comes_late, in_pieces((const int64_t[MAX_CUTS]){ 300000, -2 }));
TEST_DO(half_an_end_of_line, in_pieces((const int64_t[MAX_CUTS]){ 300000, -1 }));
TEST_DO(the_last_bytes_come_late, in_pieces((const int64_t[MAX_CUTS]){ 1000, 300000, -1000, -3 }));
TEST_DO(a_header_alone, in_pieces((const int64_t[MAX_CUTS]){ 5, HEADER, HEADER + 1, -2 }));

TEST(a_flood_instead_of_a_handshake)
{
	struct tls_files files;
	struct server server = { 0 };
	struct rig r;
	uint32_t iterations = 0;

	tls_make(&files);
	rig_tls_begin(&files);
	begin(&server, flood);
	rig_open_within(&r, server.address, "", "", 300);
	for (; redis_conn_state(r.conn) != REDIS_CONN_DOWN; iterations++)
		rig_run(&r, 1);
	assert_true(iterations > 5); /* each is another iteration of the loop */
	assert_string_equal(rig_goes_down(&r, -ETIMEDOUT),
			    "no TLS handshake in time; is this its TLS port?");
	rig_close(&r);
	end(&server);
	rig_tls_end(&files);
}
