/* SPDX-License-Identifier: Apache-2.0 */
/* config_derive.c - see config_derive.h. */
#include "config_derive.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/runtime_dir.h"
#include "tiers/nvme/nvme_format.h"
#include "config_value.h"

enum {                               /* [index] max_blocks = 0 */
       HOST_BLOCK_BYTES = 4096,      /* as if all blocks in memory were this small */
       NVME_BLOCK_BYTES = 256 << 10, /* and all on NVMe */
       MAX_BLOCKS = 64 << 20,
};

static int path_set(char ret[CONFIG_PATH_BYTES], const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static int path_set(char ret[CONFIG_PATH_BYTES], const char *format, ...)
{
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(ret, CONFIG_PATH_BYTES, format, args);
	va_end(args);
	return length < 0 || length >= CONFIG_PATH_BYTES ? -ENAMETOOLONG : 0;
}

/* systemd lists several directories with ':' between; the first is ours. NULL: unset, empty, or
 * relative (the XDG specification says to ignore relative paths). */
static const char *directory_from(const char *variable, int *ret_length)
{
	const char *value = getenv(variable);

	if (!value || value[0] != '/')
		return NULL;
	*ret_length = (int)strcspn(value, ":");
	return value;
}

static int derive_runtime_dir(char dir[CONFIG_PATH_BYTES])
{
	const char *from;
	int length;

	if (dir[0] != '\0')
		return 0;
	if ((from = directory_from("RUNTIME_DIRECTORY", &length)) != NULL)
		return path_set(dir, "%.*s", length, from);
	return runtime_dir(dir, CONFIG_PATH_BYTES) < 0 ? -ENAMETOOLONG : 0;
}

static int derive_state_dir(char dir[CONFIG_PATH_BYTES])
{
	const char *from;
	int length;

	if (dir[0] != '\0')
		return 0;
	if ((from = directory_from("STATE_DIRECTORY", &length)) != NULL)
		return path_set(dir, "%.*s", length, from);
	if (geteuid() == 0)
		return path_set(dir, "/var/lib/kvtier");
	if ((from = directory_from("XDG_STATE_HOME", &length)) != NULL)
		return path_set(dir, "%s/kvtier", from);
	if ((from = directory_from("HOME", &length)) != NULL)
		return path_set(dir, "%s/.local/state/kvtier", from);
	return -ENOENT;
}

static int derive_socket(char path[CONFIG_PATH_BYTES], const char *dir, const char *name)
{
	if (path[0] == '\0' && path_set(path, "%s/%s", dir, name) < 0)
		return -ENAMETOOLONG;
	return strlen(path) > CONFIG_SUN_PATH_MAX ? -ENAMETOOLONG : 0;
}

/* On one or two CPUs a spinning daemon takes them from the engine it waits for. */
static int32_t derive_spin_us(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 0;
	return CPU_COUNT(&set) <= 2 ? 0 : 50;
}

static int too_long(char *text, size_t n, const char *path, const char *key)
{
	snprintf(text, n,
		 "%s: a socket's path may have %d bytes at most; set %s or [daemon] runtime_dir to "
		 "something shorter",
		 path, (int)CONFIG_SUN_PATH_MAX, key);
	return -ENAMETOOLONG;
}

static_assert((int)TIER_MAX_NODES == (int)CONFIG_NODES_MAX && TIER_BYTES_AUTO == CONFIG_AUTO,
	      "the same limits");

void config_host(const struct config *config, struct tier_conf *ret)
{
	*ret = (struct tier_conf){
		.bytes = config->host_bytes.bytes,
		.slab_bytes = config->host_slab_bytes,
		.huge_pages = config->host_huge_pages,
		.lock = config->host_lock,
		.prefault_threads = config->host_prefault_threads,
		.n_nodes = config->host_bytes.n,
	};
	for (uint32_t i = 0; i < ret->n_nodes; i++)
		ret->nodes[i] =
			(struct tier_node){ .node = (int32_t)config->host_bytes.nodes[i].node,
					    .bytes = config->host_bytes.nodes[i].bytes };
}

uint64_t config_max_blocks(const struct config *config, uint64_t host_bytes)
{
	const char *cursor = config->nvme_path;
	char path[CONFIG_PATH_BYTES];
	uint64_t max = host_bytes / HOST_BLOCK_BYTES;

	if (config->index_max_blocks > 0)
		return config->index_max_blocks;
	while (config_paths_next(&cursor, path))
		max += config->nvme_bytes / NVME_BLOCK_BYTES;
	return max < MAX_BLOCKS ? max : MAX_BLOCKS;
}

int config_derive(struct config *config, char *text, size_t n)
{
	if (derive_runtime_dir(config->daemon_runtime_dir) < 0) {
		snprintf(text, n,
			 "the runtime directory's name is too long; set [daemon] runtime_dir");
		return -ENAMETOOLONG;
	}
	if (derive_state_dir(config->daemon_state_dir) < 0) {
		snprintf(text, n,
			 "cannot make out a state directory from $XDG_STATE_HOME or $HOME; set "
			 "[daemon] state_dir");
		return -ENOENT;
	}
	if (derive_socket(config->socket_path, config->daemon_runtime_dir, RUNTIME_DIR_SOCKET) < 0)
		return too_long(text, n, config->socket_path, "[socket] path");
	if (derive_socket(config->admin_path, config->daemon_runtime_dir, "admin.sock") < 0)
		return too_long(text, n, config->admin_path, "[admin] path");
	if (path_set(config->stats_path, "%s/stats", config->daemon_runtime_dir) < 0)
		return too_long(text, n, config->daemon_runtime_dir, "[daemon] runtime_dir");
	config->nvme_path_derived = config->nvme_path[0] == '\0';
	if (config->nvme_path_derived &&
	    path_set(config->nvme_path, "%s/nvme.store", config->daemon_state_dir) < 0) {
		snprintf(text, n,
			 "%s/nvme.store: a path may have %d bytes at most; set [nvme] path or "
			 "[daemon] state_dir",
			 config->daemon_state_dir, (int)CONFIG_PATH_BYTES - 1);
		return -ENAMETOOLONG;
	}
	if (config->daemon_spin_us < 0)
		config->daemon_spin_us = derive_spin_us();
	return 0;
}

/* mkdir -p; parents get the usual permissions, the last one 0700. */
static int make_parents(const char *dir)
{
	char path[CONFIG_PATH_BYTES];

	if (path_set(path, "%s", dir) < 0)
		return -ENAMETOOLONG;
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return -errno;
		*slash = '/';
	}
	return mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

/* In /tmp anybody may have made it before us, or a link to elsewhere. A link of root's is fine:
 * systemd makes one for DynamicUser=. */
static int check_ours(const char *dir, char *text, size_t n)
{
	struct stat st;

	if (lstat(dir, &st) < 0)
		return -errno;
	if (S_ISLNK(st.st_mode) && st.st_uid == 0 && stat(dir, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
	    (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
		snprintf(text, n,
			 "%s: must be a directory of user %u that nobody else can write to", dir,
			 (unsigned)geteuid());
		return -EPERM;
	}
	return 0;
}

static int make_dir(const char *dir, const char *key, char *text, size_t n)
{
	int r = make_parents(dir);

	text[0] = '\0';
	if (r == 0)
		r = check_ours(dir, text, n);
	if (r < 0 && text[0] == '\0')
		snprintf(text, n, "%s: %s; set [daemon] %s to a directory that can be made", dir,
			 strerror(-r), key);
	return r;
}

int config_make_dirs(const struct config *config, char *text, size_t n)
{
	const int r = make_dir(config->daemon_runtime_dir, "runtime_dir", text, n);

	return r < 0 ? r : make_dir(config->daemon_state_dir, "state_dir", text, n);
}

const char *config_kernels_name(const struct config *config)
{
	switch (config->device_kernels) {
	case CONFIG_KERNELS_REF:
		return "ref";
	case CONFIG_KERNELS_AVX2:
		return "avx2";
	case CONFIG_KERNELS_AVX512:
		return "avx512";
	default:
		return NULL;
	}
}

uint64_t config_fit_segment(uint64_t store_bytes, uint64_t segment_bytes)
{
	while (store_bytes < NVME_DATA_OFFSET + NVME_MIN_SEGMENTS * segment_bytes &&
	       segment_bytes / 2 >= NVME_MIN_SEGMENT_BYTES)
		segment_bytes /= 2;
	while (store_bytes > NVME_DATA_OFFSET + NVME_MAX_SEGMENTS * segment_bytes &&
	       segment_bytes * 2 <= NVME_MAX_SEGMENT_BYTES)
		segment_bytes *= 2;
	return segment_bytes;
}

int config_group(const struct config *config, gid_t *ret, char *text, size_t n)
{
	const char *name = config->socket_group;
	const struct group *group = name[0] != '\0' ? getgrnam(name) : NULL;
	char *end;
	const unsigned long number = strtoul(name, &end, 10);

	if (name[0] == '\0')
		return 0;
	if (!group && *end != '\0') {
		snprintf(text, n,
			 "[socket] group: there is no group \"%s\" here; groupadd it, or correct "
			 "the name",
			 name);
		return -EINVAL;
	}
	*ret = group ? group->gr_gid : (gid_t)number;
	return 0;
}

/* The newest superblock at path. False: there is no store, or it cannot be read. */
static bool read_super(const char *path, struct nvme_super *ret)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	static uint8_t page[NVME_PAGE];
	struct nvme_super super;
	bool found = false;

	for (uint32_t copy = 0; fd >= 0 && copy < NVME_SUPER_COPIES; copy++) {
		if (pread(fd, page, NVME_PAGE, (off_t)nvme_super_offset(copy)) != NVME_PAGE ||
		    nvme_super_check(page, &super) || super.segment_bytes == 0 ||
		    (found && super.generation < ret->generation))
			continue;
		*ret = super;
		found = true;
	}
	if (fd >= 0)
		(void)close(fd);
	return found;
}

void config_tell_stores(const struct config *config, FILE *out)
{
	const char *cursor = config->nvme_path;
	char path[CONFIG_PATH_BYTES];
	struct nvme_super super = { 0 };

	while (config->nvme_bytes > 0 && config_paths_next(&cursor, path)) {
		if (!read_super(path, &super) ||
		    (config->nvme_bytes - NVME_DATA_OFFSET) / super.segment_bytes == super.segments)
			continue;
		fprintf(out,
			"[nvme] bytes: %s is a store of %" PRIu64 " bytes, and bytes = %" PRIu64
			": %s; "
			"correct bytes, or `kvtierctl format %s --bytes %" PRIu64 "`\n",
			path, NVME_DATA_OFFSET + (uint64_t)super.segments * super.segment_bytes,
			config->nvme_bytes,
			(config->nvme_bytes - NVME_DATA_OFFSET) / super.segment_bytes >
					super.segments ?
				"kvtierd will not use it" :
				"it stays as large as it is",
			path, config->nvme_bytes);
	}
}
