/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - the configuration: an INI file, checked against tbl_config.h, as one const struct.
 * config_value.h parses and prints the values; config_redis.h reads the files of [redis].
 *
 * The field of [host] bytes is config->host_bytes: each field's name is section_key. The types,
 * what a file may say, and the type of the field:
 *
 *	BYTES   64M, 64MiB, 64 MiB: K M G T, powers of 1024; a bare number is bytes; auto, where the
 *		row's unit has it, is CONFIG_AUTO                                 uint64_t
 *	NODES   the same, or 0:8G,1:4G: the bytes of each NUMA node, also in lines of their own
 *		                                                       struct config_nodes
 *	COUNT   a decimal number; auto, where the row's unit has it, is CONFIG_COUNT_AUTO
 *		                                                                  uint32_t
 *	US      50us, 2ms, 1s, or a bare number of microseconds                         uint32_t
 *	SECONDS 30s, 5m, 12h, 7d, or a bare number of seconds                           uint32_t
 *	BOOL    yes no true false                                                       bool
 *	ENUM    one of the choices; the value is its position                           uint32_t
 *	CHOICES some of the choices, blanks between; bit 1 << position of each          uint32_t
 *	STRING  text, bounded                                                           char [64]
 *	PATH    an absolute path, bounded                                               char [256]
 *	PATHS   such paths, ':' between them or in lines of their own, none twice       char [1024]
 *	ENDPOINTS  host:port, [v6]:port, unix:/path, blanks between, none twice         char [4096]
 *	HOSTS   names, .domains, addresses, networks as 10.0.0.0/8, blanks between      char [2048]
 *	MODE    octal permissions                                                       uint32_t
 *
 * Start-up order in main.c: config_load(), config_derive(), config_make_dirs(); const afterwards,
 * but for fields that a reload applies. config_place.h has the latter two.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct tier_conf;

enum {
	CONFIG_STRING_BYTES = 64,
	CONFIG_PATH_BYTES = 256,
	CONFIG_PATHS_BYTES = 1024,
	CONFIG_PATHS_MAX = 16,
	CONFIG_SUN_PATH_MAX = 107,
	CONFIG_ENDPOINT_BYTES = 256,
	CONFIG_ENDPOINTS_MAX = 16,
	CONFIG_ENDPOINTS_BYTES = CONFIG_ENDPOINT_BYTES * CONFIG_ENDPOINTS_MAX,
	CONFIG_HOSTS_BYTES = 2048,
	CONFIG_NODES_MAX = 16,
	CONFIG_NODE_MOST = 1023,
	CONFIG_SOCKETS_MAX = 16,
	CONFIG_SHARES_MAX = 75, /* per cent: of all sockets together */
	CONFIG_NAME_BYTES = 32, /* of a tenant, of a [socket NAME] */
	/* Values that are no keys, since the daemon knows them better than an operator. */
	CONFIG_RING_ENTRIES = 256,    /* ops that a connection has at most */
	CONFIG_MAX_OPS = 65536,       /* ops that all connections have at most */
	CONFIG_ARENA_BLOCKS = 16384,  /* blocks in all ops of a connection, 76 bytes each */
	CONFIG_REDIS_CONNECTIONS = 4, /* to each endpoint */
	CONFIG_HINTS_TTL_S = 86400,   /* the longest ttl, and that of a pin without one */
	CONFIG_NOTES_MOST = 20,       /* sentences that are told in full */
	CONFIG_NOTE_BYTES = 768,      /* one of them */
};

#define CONFIG_LINE_OPERATOR UINT32_MAX /* the "line" of a value that kvtierctl gave */

#define CONFIG(section, key, ...) CONFIG_ROW_##section##_##key,
enum config_row_index {
#include "tbl_config.h"
	CONFIG_ROWS
};

/* What "auto" is for BYTES and NODES. */
#define CONFIG_AUTO       UINT64_MAX
#define CONFIG_COUNT_AUTO ((uint32_t)CONFIG_AUTO)

struct config_nodes {
	uint64_t bytes; /* of all nodes together, or CONFIG_AUTO */
	uint32_t n;     /* 0: no node is named */
	struct config_node {
		uint32_t node;
		uint64_t bytes;
	} nodes[CONFIG_NODES_MAX];
};

/* Names for the choices that code compares with; their order is that of tbl_config.h. */
enum config_huge_pages { CONFIG_HUGE_NO, CONFIG_HUGE_THP, CONFIG_HUGE_2M };
enum config_verify { CONFIG_VERIFY_ONCE, CONFIG_VERIFY_ALWAYS };
enum config_nvme_io { CONFIG_NVME_IO_AUTO, CONFIG_NVME_IO_URING, CONFIG_NVME_IO_THREADS };
enum config_redis_write {
	CONFIG_REDIS_WRITE_THROUGH,
	CONFIG_REDIS_WRITE_ON_EVICT,
	CONFIG_REDIS_WRITE_OFF,
	CONFIG_REDIS_WRITE_AUTO
};
enum config_codec {
	CONFIG_CODEC_RAW,
	CONFIG_CODEC_FP8,
	CONFIG_CODEC_INT8,
	CONFIG_CODEC_LOSSLESS,
	CONFIG_CODEC_Q4,
	CONFIG_CODEC_INT8V4,
	CONFIG_CODECS
};
enum config_tier_codec { CONFIG_TIER_CODEC_SAME, CONFIG_TIER_CODEC_Q4, CONFIG_TIER_CODEC_INT8V4 };
enum config_compress { CONFIG_COMPRESS_OFF, CONFIG_COMPRESS_AUTO };
enum config_gpu_devices { CONFIG_GPU_AUTO, CONFIG_GPU_OFF, CONFIG_GPU_REQUIRED };

#define CONFIG_FIELD_BYTES(name)     uint64_t name;
#define CONFIG_FIELD_NODES(name)     struct config_nodes name;
#define CONFIG_FIELD_COUNT(name)     uint32_t name;
#define CONFIG_FIELD_US(name)        uint32_t name;
#define CONFIG_FIELD_SECONDS(name)   uint32_t name;
#define CONFIG_FIELD_BOOL(name)      bool name;
#define CONFIG_FIELD_ENUM(name)      uint32_t name;
#define CONFIG_FIELD_CHOICES(name)   uint32_t name;
#define CONFIG_FIELD_STRING(name)    char name[CONFIG_STRING_BYTES];
#define CONFIG_FIELD_PATH(name)      char name[CONFIG_PATH_BYTES];
#define CONFIG_FIELD_PATHS(name)     char name[CONFIG_PATHS_BYTES];
#define CONFIG_FIELD_ENDPOINTS(name) char name[CONFIG_ENDPOINTS_BYTES];
#define CONFIG_FIELD_HOSTS(name)     char name[CONFIG_HOSTS_BYTES];
#define CONFIG_FIELD_MODE(name)      uint32_t name;

struct config_socket {
#define CONFIG(...)
#define SOCKET(key, TYPE, ...) CONFIG_FIELD_##TYPE(key)
#include "tbl_config.h"
	char name[CONFIG_NAME_BYTES]; /* the NAME of [socket NAME]; "" for [socket] */
};

struct config {
#define CONFIG(section, key, TYPE, ...) CONFIG_FIELD_##TYPE(section##_##key)
#define SOCKET(...)
#include "tbl_config.h"
	/* [socket] comes first. Each socket has another tenant, whose number is its place here. */
	struct config_socket sockets[CONFIG_SOCKETS_MAX];
	uint32_t n_sockets;
	char stats_path[CONFIG_PATH_BYTES]; /* derived: runtime_dir/stats */
	char admin_path[CONFIG_PATH_BYTES]; /* derived: runtime_dir/admin.sock */
	bool nvme_path_derived;             /* the file names no path */
	const char *file;                   /* its name, lent; "defaults" if there is none */
	/* the line that gave each key, 0: no line did. [0] is for all sections but [socket NAME] */
	unsigned line_of[CONFIG_SOCKETS_MAX][CONFIG_ROWS];
};

/* Sentences about a file: its mistakes, or what a reload made of it. */
struct config_notes {
	uint32_t n;
	size_t used; /* of text */
	/* a line for each of the first CONFIG_NOTES_MOST, a mistake with the file and its line, the
	 * key, the error and the allowed values; then how many more there are */
	char text[(CONFIG_NOTES_MOST + 1) * CONFIG_NOTE_BYTES];
};

/* Adds a sentence. line 0: no line is meant; file NULL: nor is a file. */
void config_note(struct config_notes *faults, const char *file, unsigned line, const char *format,
		 ...) __attribute__((format(printf, 4, 5)));

/* Takes the next sentence at *cursor, which begins as notes->text. False: there is none left. */
bool config_next_note(const char **cursor, char ret[CONFIG_NOTE_BYTES]);

/* Takes the defaults, and what the file says over them. path NULL: the defaults alone. 0, or
 * -errno with all mistakes in *faults, which is cleared first. -EINVAL: the file says something
 * wrong; another error: it could not be read. *ret is written on success only, and then has `path`
 * as its file. One thread at a time. */
int config_load(const char *path, struct config *ret, struct config_notes *faults);

/* The same of a file that is open; messages call it `name`. */
int config_parse(FILE *in, const char *name, struct config *ret, struct config_notes *faults);

/* [host], in the form that the host tier takes. */
void config_host(const struct config *config, struct tier_conf *ret);
/* [index] max_blocks; if that is 0, the number of blocks that a host tier of this size and the NVMe
 * tier may hold. */
uint64_t config_max_blocks(const struct config *config, uint64_t host_bytes);

/* The number of blocks that may have hints at once, 48 bytes each: a quarter of all blocks. */
uint32_t config_max_hinted(const struct config *config, uint64_t host_bytes);
/* How long the core thread looks for new ops before it sleeps. On one or two CPUs it does not spin,
 * since engine and workers need them. */
uint32_t config_spin_us(void);
/* The number of jobs that a device has at once. Further blocks wait until their client is next. */
uint32_t config_device_depth(void);
/* The number of ops that a connection may have outstanding, a power of two. */
uint32_t config_ring_entries(const struct config *config);

/* The number of the section's `group`; *ret stays as it is if the file names no group. -EINVAL with
 * a sentence: this machine has no such group. One thread at a time. */
int config_group(const char *section, const char *name, gid_t *ret, char *text, size_t n);

/* Fits a default segment size to a store: halves or doubles it until the store has at least 4
 * segments, and no more than it can number. Returns the nearest size if no size fits. `kvtierctl
 * format` also calls it. */
uint64_t config_fit_segment(uint64_t store_bytes, uint64_t segment_bytes);
