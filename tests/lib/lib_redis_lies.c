/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_redis_lies.h"

#include "lib_clock.h"
#include "lib_redis_tier.h"

/* DEPTH: of a nesting. WAIT_MS: real time for an answer, before the clock goes on. */
enum { STEPS = 12, XFERS = 16, NAMES = 4, BYTES = 32768, DEPTH = 1000, WAIT_MS = 10 };

static struct kit kit;
static char text[STEPS][BYTES];

static const char *const odd[] = {
	":7\r\n",
	",3.14\r\n",
	"#t\r\n",
	"_\r\n",
	"(12345678901234567890\r\n",
	"*0\r\n",
	"*-1\r\n",
	"$-2\r\n",
	"$0\r\n\r\n",
	"$99999999999999\r\n",
	"$4294967297\r\nabc\r\n",
	"*2147483647\r\n",
	"%1\r\n+a\r\n+b\r\n",
	"+late\r\n$-1\r\n",
	"$-1\r\n$-1\r\n",
	"-BUSY a script runs\r\n",
	"-OOM command not allowed\r\n",
	"-LOADING the data set\r\n",
	"-READONLY a replica\r\n",
	"-CLUSTERDOWN The cluster is down\r\n",
	"-TRYAGAIN later\r\n",
	"-MOVED 1 127.0.0.1:1\r\n",
	"-ASK 99999 unix:/etc/passwd\r\n",
	"-\r\n",
	"HTTP/1.1 400 Bad Request\r\n\r\n",
};

/* The value of a block as a bulk, whole or with a bit flipped. */
static size_t put_value(struct random *random, bool flipped, char *to)
{
	static uint8_t value[BYTES];
	const uint32_t n = kit_value(&kit, random_below(random, NAMES), value);
	const int head = snprintf(to, BYTES, "$%u\r\n", n);

	assert_true((size_t)head + n + 2 <= BYTES);
	if (flipped)
		value[random_below(random, n)] ^= (uint8_t)(1u << random_below(random, 8));
	memcpy(to + head, value, n);
	memcpy(to + head + n, "\r\n", 2);
	return (size_t)head + n + 2;
}

static size_t put_noise(struct random *random, char *to)
{
	const size_t n = 1 + random_below(random, 200);

	for (size_t i = 0; i < n; i++)
		to[i] = (char)random_next(random);
	return n;
}

static size_t put_nesting(char *to)
{
	for (int i = 0; i < DEPTH; i++)
		memcpy(to + 4 * (size_t)i, "*1\r\n", 4);
	return (size_t)DEPTH * 4;
}

static struct fake_step lie(struct random *random, char *to)
{
	struct fake_step step = { .reply = to };

	switch (random_below(random, 8)) {
	case 0:
		step.bytes = put_value(random, false, to);
		break;
	case 1:
		step.bytes = put_value(random, true, to);
		break;
	case 2:
		step.bytes = put_noise(random, to);
		break;
	case 3:
		step.bytes = put_nesting(to);
		break;
	case 4:
		step.reply = "\1"; /* the value stored last, of any block */
		break;
	case 5:
		step.reply = random_below(random, 4) ? "$-1\r\n" : NULL;
		break;
	default:
		step.reply = odd[random_below(random, sizeof(odd) / sizeof(*odd))];
	}
	if (random_below(random, 4) == 0)
		step.cut = 1 + random_below(random, 4096);
	if (random_below(random, 4) == 0)
		step.delay_ms = random_below(random, 2 * WAIT_MS);
	step.endless = random_below(random, 16) == 0;
	return step;
}

/* Until it has ended: by an answer, or at its deadline. */
static int settle(struct kit_slot *slot)
{
	while (slot->dones == 0) {
		kit_run_ms(&kit, WAIT_MS);
		if (slot->dones == 0)
			clock_pass_ms(KIT_TIMEOUT_MS / 4);
	}
	return kit_settle(&kit, slot);
}

static void ask(struct random *random)
{
	const enum xfer_op op = random_below(random, 4) ? XFER_READ : XFER_WRITE;
	int r;
	struct kit_slot *slot = kit_try(&kit, op, random_below(random, NAMES), &r);

	if (slot)
		r = settle(slot);
	else
		kit_pass_ms(&kit, KIT_TIMEOUT_MS / 4); /* it is left alone for a while */
	if (r == -EILSEQ || r > 0)
		fail_msg("a lie was believed: %d", r);
}

uint64_t redis_lies_by_chance(struct random *random, uint32_t servers)
{
	uint64_t lies = 0;

	for (uint32_t i = 0; i < servers; i++) {
		struct fake_step steps[STEPS] = { { .reply = "$-1\r\n" } };
		struct fake_server fake;

		kit_init(&kit, KIT_SMALL);
		for (int k = 1; k < STEPS; k++)
			steps[k] = lie(random, text[k]);
		fake_start(&fake, steps, STEPS, false);
		kit.conf.connections = 1;
		kit.conf.endpoints[0] = fake.address;
		kit.conf.n_endpoints = 1;
		kit_start(&kit);
		kit_until_state(&kit, TIER_UP);
		for (int k = 0; k < XFERS; k++)
			ask(random);
		lies += fake_commands(&fake) - 1;
		kit_free(&kit);
		fake_stop(&fake);
	}
	return lies;
}
