/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - the configuration: an INI file, checked against tbl_config.h, as one const struct.
 * config.c reads the file; config_table.h is the table as data, config_value.h parses a value,
 * config_derive.h fills in keys that were left out, config_print.h writes a file, --help and the
 * manual.
 *
 * The field of [host] bytes is config->host_bytes: section_key for all. The form of a value:
 *
 *	BYTES   64M, 64MiB, 64 MiB: K M G T, powers of 1024; a bare number is bytes; auto, where the
 *		row's unit says so: CONFIG_AUTO                                   uint64_t
 *	NODES   the same, or 0:8G,1:4G: of each NUMA node, in lines of their own, too
 *		                                                       struct config_nodes
 *	COUNT   a decimal number; auto, where the row's unit says so: CONFIG_COUNT_AUTO  uint32_t
 *	US      50us, 2ms, 1s, or a bare number of microseconds; -1 where allowed       int32_t
 *	SECONDS 30s, 5m, 12h, 7d, or a bare number of seconds                           uint32_t
 *	BOOL    yes no true false                                                       bool
 *	ENUM    one of the choices; the value is its position                           uint32_t
 *	STRING  text, bounded                                                           char [64]
 *	PATH    an absolute path, bounded                                               char [256]
 *	PATHS   such paths, ':' between them or in lines of their own, none twice       char [1024]
 *	ENDPOINTS  host:port, [v6]:port, unix:/path, blanks between, none twice         char [4096]
 *	HOSTS   names, .domains, addresses, networks as 10.0.0.0/8, blanks between      char [2048]
 *	MODE    octal permissions                                                       uint32_t
 *
 * Start-up order in main.c: config_load(), config_derive(), config_make_dirs(); const afterwards.
 */
#ifndef KVTIER_CONFIG_H
#define KVTIER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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
	CONFIG_MAX_OPS = 65536, /* [socket] max_clients times ring_entries, at most */
};

/* BYTES, NODES: auto */
#define CONFIG_AUTO       UINT64_MAX
#define CONFIG_COUNT_AUTO ((uint32_t)CONFIG_AUTO)

struct config_nodes {
	uint64_t bytes; /* all together; CONFIG_AUTO */
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
	CONFIG_REDIS_WRITE_OFF
};
enum config_gpu_devices { CONFIG_GPU_AUTO, CONFIG_GPU_OFF, CONFIG_GPU_REQUIRED };
enum config_gpu_mode { CONFIG_GPU_MODE_DAEMON, CONFIG_GPU_MODE_ENGINE };
enum config_kernels {
	CONFIG_KERNELS_AUTO,
	CONFIG_KERNELS_REF,
	CONFIG_KERNELS_AVX2,
	CONFIG_KERNELS_AVX512
};

#define CONFIG_FIELD_BYTES(name)     uint64_t name;
#define CONFIG_FIELD_NODES(name)     struct config_nodes name;
#define CONFIG_FIELD_COUNT(name)     uint32_t name;
#define CONFIG_FIELD_US(name)        int32_t name;
#define CONFIG_FIELD_SECONDS(name)   uint32_t name;
#define CONFIG_FIELD_BOOL(name)      bool name;
#define CONFIG_FIELD_ENUM(name)      uint32_t name;
#define CONFIG_FIELD_STRING(name)    char name[CONFIG_STRING_BYTES];
#define CONFIG_FIELD_PATH(name)      char name[CONFIG_PATH_BYTES];
#define CONFIG_FIELD_PATHS(name)     char name[CONFIG_PATHS_BYTES];
#define CONFIG_FIELD_ENDPOINTS(name) char name[CONFIG_ENDPOINTS_BYTES];
#define CONFIG_FIELD_HOSTS(name)     char name[CONFIG_HOSTS_BYTES];
#define CONFIG_FIELD_MODE(name)      uint32_t name;

struct config {
#define CONFIG(section, key, TYPE, dflt, min, max, unit, prose) CONFIG_FIELD_##TYPE(section##_##key)
#include "tbl_config.h"
	char stats_path[CONFIG_PATH_BYTES]; /* derived: runtime_dir/stats */
	bool nvme_path_derived;             /* nobody chose one */
};

/* Defaults, then the file over them. path NULL: defaults alone. 0, or -errno with text (>= 512
 * bytes) saying file:line, key, the error and the allowed values; -EINVAL for anything the file
 * says, else why it could not be read. *ret is written on success only. */
int config_load(const char *path, struct config *ret, char *text, size_t n);

/* Reads an open file; name is for messages. */
int config_parse(FILE *in, const char *name, struct config *ret, char *text, size_t n);

#endif
