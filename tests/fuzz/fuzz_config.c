/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_config - goal: no configuration file makes the parser crash, read or write out of bounds, or
 * accept a value that it then cannot print and read back. Method: files built of the parser's own
 * words and random bytes, then mutated; seed printed ($SEED sets it, $FUZZ_RUNS how many, 20,000).
 * With -DKVTIER_LIBFUZZER the same check under libFuzzer. Worth most with SAN=address,undefined.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/config_value.h"
#include "tests/lib/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An accepted configuration prints as a file that says the same. */
static void check_round_trip(const struct config *config)
{
	static char file[32768];
	struct config again;
	static struct config_notes faults;
	FILE *f = fmemopen(file, sizeof(file), "w");
	int r;

	assert(f);
	config_print(config, f);
	(void)fclose(f);
	f = fmemopen(file, strlen(file), "r");
	assert(f);
	r = config_parse(f, "printed", &again, &faults);
	(void)fclose(f);
	/* text may hold characters that no value in a file has, blanks at its ends or " ;": the
	 * rest must be the same */
	if (r == 0)
		assert(again.host_bytes.bytes == config->host_bytes.bytes &&
		       again.host_bytes.n == config->host_bytes.n &&
		       again.sockets[0].mode == config->sockets[0].mode &&
		       again.nvme_segment_bytes == config->nvme_segment_bytes);
}

/* Each is a path that fits where it goes, and the paths agree with the field. */
static void check_paths(const char *paths)
{
	char path[CONFIG_PATH_BYTES];
	size_t bytes = 0;
	int n = 0;

	assert(strlen(paths) < CONFIG_PATHS_BYTES);
	for (const char *cursor = paths; config_next_item(&cursor, ":", path); n++) {
		assert(path[0] == '/');
		bytes += strlen(path) + (n > 0);
	}
	assert(n <= CONFIG_PATHS_MAX && bytes == strlen(paths));
}

/* Each has a port or is a path, and the endpoints agree with the field. */
static void check_endpoints(const char *endpoints)
{
	char endpoint[CONFIG_ENDPOINT_BYTES];
	size_t bytes = 0;
	int n = 0;

	assert(strlen(endpoints) < CONFIG_ENDPOINTS_BYTES);
	for (const char *cursor = endpoints; config_next_item(&cursor, " ", endpoint); n++) {
		assert(strncmp(endpoint, "unix:/", 6) == 0 || atoi(strrchr(endpoint, ':') + 1) > 0);
		bytes += strlen(endpoint) + (n > 0);
	}
	assert(n <= CONFIG_ENDPOINTS_MAX && bytes == strlen(endpoints));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct config_notes faults;
	struct config config;
	FILE *in;
	int r;

	if (size == 0)
		return 0;
	in = fmemopen((void *)(uintptr_t)data, size, "r");
	assert(in);
	memset(&faults, 'x', sizeof(faults));
	memset(&config, 0, sizeof(config));
	r = config_parse(in, "fuzz", &config, &faults);
	(void)fclose(in);
	assert(r == 0 || r == -EINVAL);
	if (r == 0) {
		assert(config.host_bytes.bytes >= 65536 &&
		       config.host_slab_bytes <= config.host_bytes.bytes);
		assert(config.nvme_bytes == 0 || config.nvme_bytes > 4 * config.nvme_segment_bytes);
		check_paths(config.nvme_path);
		check_endpoints(config.redis_endpoints);
		check_round_trip(&config);
	} else {
		assert(memcmp(faults.text, "fuzz:", 5) == 0 &&
		       memchr(faults.text, '\0', sizeof(faults.text)) != NULL);
		for (const char *c = faults.text; *c != '\0'; c++)
			assert(((unsigned char)*c >= 0x20 && *c != 0x7f) || *c == '\n');
	}
	return 0;
}

#ifndef KVTIER_LIBFUZZER
static struct random choices;

static uint32_t below(uint32_t n)
{
	return random_below(&choices, n);
}

static const char *const pieces[] = {
	"[host]\n",
	"[socket]\n",
	"[daemon]\n",
	"[",
	"]",
	"\n",
	" = ",
	"=",
	":",
	"1G",
	"64K",
	"64KiB",
	"0600",
	"yes",
	"-1",
	"99999999999999999999",
	"thp",
	" ; ",
	"#",
	"\t",
	"\r\n",
	"\xef\xbb\xbf",
	"\xff",
	"\x1b[0m",
	"50us",
	"/tmp/x",
	"default",
	"\n\n",
	"[hots]\n",
	"[nvme]\n",
	"path = ",
	"/a:/b",
	"::",
	"[redis]\n",
	"endpoints = ",
	"[::1]:7 ",
	"a.b:1",
	"unix:/x ",
	"12h",
};
enum { PIECES = sizeof(pieces) / sizeof(pieces[0]) };

static void append(char *file, size_t *used, size_t room, const char *piece)
{
	const size_t n = strlen(piece);

	if (*used + n <= room) {
		memcpy(file + *used, piece, n);
		*used += n;
	}
}

static size_t make_file(char *file, size_t room)
{
	size_t used = 0;

	for (uint32_t i = below(12); i > 0; i--) {
		const struct config_row *row = &config_rows[below(CONFIG_ROWS)];

		if (below(3) > 0) { /* mostly well-formed: errors end the parsing */
			append(file, &used, room, "[");
			append(file, &used, room, row->section);
			append(file, &used, room, "]\n");
			append(file, &used, room, row->key);
			append(file, &used, room, " = ");
			append(file, &used, room, below(2) ? row->dflt : pieces[below(PIECES)]);
			append(file, &used, room, "\n");
		} else {
			append(file, &used, room, pieces[below(PIECES)]);
		}
	}
	for (uint32_t i = below(3); i > 0 && used > 0; i--)
		file[below((uint32_t)used)] = (char)below(256);
	return used;
}

int main(void)
{
	const uint64_t n = env_number("FUZZ_RUNS", 20000);
	static char file[4096];

	choices = random_seeded("fuzz_config");
	for (uint64_t i = 0; i < n; i++) {
		const size_t size = make_file(file, sizeof(file));

		(void)LLVMFuzzerTestOneInput((const uint8_t *)file, size);
	}
	return 0;
}
#endif
