/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_limits.c - does the host tier's configuration fit this machine? The answers are sentences
 * that name the knob, the limit and the next step. Any thread.
 */
#include "host_limits.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, PATH_BYTES = 512, AUTO_PART = 4 };

struct size_text {
	char s[32];
};

/* As a config file would say it: 65536 -> 64K, 3G; odd numbers stay bytes. */
static struct size_text size_text(uint64_t bytes)
{
	static const char units[] = "\0KMGT";
	struct size_text ret;
	int u = 0;

	while (u < 4 && bytes >= 1024 && bytes % 1024 == 0) {
		bytes /= 1024;
		u++;
	}
	(void)snprintf(ret.s, sizeof(ret.s), "%" PRIu64 "%.1s", bytes, &units[u]);
	return ret;
}

__attribute__((format(printf, 4, 5))) static int refuse(int err, char *text, size_t n,
							const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, n, format, args);
	va_end(args);
	return -err;
}

static int check_shape(const struct tier_conf *conf, char *text, size_t n)
{
	const uint64_t unit = conf->huge_pages == 2 ? HUGE_PAGE : PAGE;

	if (conf->huge_pages > 2)
		return refuse(EINVAL, text, n,
			      "[host] huge_pages = %" PRIu32 " is none of 0 (no), 1 (thp), 2 (2m)",
			      conf->huge_pages);
	if (conf->slab_bytes == 0 || conf->slab_bytes % unit)
		return refuse(EINVAL, text, n, "[host] slab_bytes = %s is not a multiple of %s%s",
			      size_text(conf->slab_bytes).s, size_text(unit).s,
			      conf->huge_pages == 2 ? ", the page size of [host] huge_pages = 2m" :
						      "");
	if (conf->slab_bytes > HOST_MAX_SLAB_BYTES)
		return refuse(EINVAL, text, n, "[host] slab_bytes = %s is more than the limit, %s",
			      size_text(conf->slab_bytes).s, size_text(HOST_MAX_SLAB_BYTES).s);
	for (uint32_t i = 0; i < conf->n_nodes; i++)
		if (conf->nodes[i].bytes < conf->slab_bytes)
			return refuse(
				EINVAL, text, n,
				"[host] bytes = %s of NUMA node %" PRId32
				" holds not even one slab of [host] slab_bytes = %s: give the "
				"node more, or lower slab_bytes",
				size_text(conf->nodes[i].bytes).s, conf->nodes[i].node,
				size_text(conf->slab_bytes).s);
	if (conf->bytes < conf->slab_bytes)
		return refuse(
			EINVAL, text, n,
			"[host] bytes = %s holds not even one slab of [host] slab_bytes = %s: "
			"raise bytes, or lower slab_bytes (it must hold the largest block's image)",
			size_text(conf->bytes).s, size_text(conf->slab_bytes).s);
	if (conf->bytes / conf->slab_bytes > TIER_MAX_SLABS)
		return refuse(
			EINVAL, text, n,
			"[host] bytes = %s is %" PRIu64
			" slabs of [host] slab_bytes = %s; the limit is %d slabs: raise slab_bytes",
			size_text(conf->bytes).s, conf->bytes / conf->slab_bytes,
			size_text(conf->slab_bytes).s, TIER_MAX_SLABS);
	if (conf->prefault_threads > HOST_MAX_THREADS)
		return refuse(EINVAL, text, n,
			      "[host] prefault_threads = %" PRIu32 " is more than the limit, %d",
			      conf->prefault_threads, HOST_MAX_THREADS);
	return 0;
}

uint64_t host_limits_auto(const struct tier_conf *conf, const struct host_limits *limits)
{
	uint64_t most = limits->available_bytes;

	if (limits->cgroup_bytes < most)
		most = limits->cgroup_bytes;
	if (conf->huge_pages == 2)
		most = limits->free_huge_pages == UINT64_MAX ? 0 :
							       limits->free_huge_pages * HUGE_PAGE;
	if (most == UINT64_MAX || conf->slab_bytes == 0) /* nobody says: a slab is all we dare */
		return conf->slab_bytes;
	return most / AUTO_PART / conf->slab_bytes * conf->slab_bytes;
}

int host_limits_check(const struct tier_conf *conf, const struct host_limits *limits, char *text,
		      size_t n)
{
	const int err = check_shape(conf, text, n);
	uint64_t bytes, pages;

	if (err)
		return err;
	bytes = conf->bytes / conf->slab_bytes * conf->slab_bytes;
	pages = bytes / HUGE_PAGE;
	if (conf->huge_pages == 2) { /* set aside at boot: neither limit below counts them */
		if (limits->free_huge_pages == UINT64_MAX)
			return refuse(
				ENOMEM, text, n,
				"[host] huge_pages = 2m, but this kernel has no 2 MiB huge pages: "
				"set [host] huge_pages = thp");
		if (pages > limits->free_huge_pages)
			return refuse(ENOMEM, text, n,
				      "[host] huge_pages = 2m and [host] bytes = %s need %" PRIu64
				      " huge pages of 2 MiB, %" PRIu64
				      " are free: raise vm.nr_hugepages by %" PRIu64
				      " (sysctl), lower bytes, or set huge_pages = thp",
				      size_text(conf->bytes).s, pages, limits->free_huge_pages,
				      pages - limits->free_huge_pages);
		return 0;
	}
	if (bytes > limits->available_bytes)
		return refuse(
			ENOMEM, text, n,
			"[host] bytes = %s is more than this machine has available (MemAvailable = "
			"%" PRIu64 "M): lower [host] bytes",
			size_text(conf->bytes).s, limits->available_bytes >> 20);
	if (bytes > limits->cgroup_bytes)
		return refuse(
			ENOMEM, text, n,
			"[host] bytes = %s is more than this control group may use (memory.max = "
			"%" PRIu64 "M): lower [host] bytes, or raise MemoryMax= of the service",
			size_text(conf->bytes).s, limits->cgroup_bytes >> 20);
	return 0;
}

/* The whole number that a file holds; UINT64_MAX: it does not (as "max" in memory.max). */
static uint64_t number_in(const char *path)
{
	FILE *f = fopen(path, "re");
	uint64_t ret;

	if (!f)
		return UINT64_MAX;
	if (fscanf(f, "%" SCNu64, &ret) != 1)
		ret = UINT64_MAX;
	(void)fclose(f);
	return ret;
}

static uint64_t mem_available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];
	uint64_t kib, ret = UINT64_MAX;

	if (!f)
		return UINT64_MAX;
	while (ret == UINT64_MAX && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
			ret = kib * 1024;
	(void)fclose(f);
	return ret;
}

/* The lowest limit from the group `path` up to the root of the hierarchy mounted at `mount`. */
static uint64_t group_limit(const char *mount, const char *path, const char *file)
{
	char group[PATH_BYTES], full[2 * PATH_BYTES];
	uint64_t ret = UINT64_MAX;

	(void)snprintf(group, sizeof(group), "%s", path);
	for (;;) {
		char *slash = strrchr(group, '/');
		uint64_t limit;

		(void)snprintf(full, sizeof(full), "%s%s/%s", mount, slash && slash[1] ? group : "",
			       file);
		limit = number_in(full);
		if (limit < ret)
			ret = limit;
		if (!slash || !slash[1])
			return ret;
		if (slash == group)
			slash++; /* the root stays "/" */
		*slash = '\0';
	}
}

static uint64_t cgroup_limit(void)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[PATH_BYTES], *path;
	uint64_t limit, ret = UINT64_MAX;

	if (!f)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		path = strchr(line, '/');
		if (!path)
			continue;
		limit = UINT64_MAX;
		if (!strncmp(line, "0::", 3))
			limit = group_limit("/sys/fs/cgroup", path, "memory.max");
		else if (strstr(line, ":memory:"))
			limit = group_limit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
		if (limit < ret)
			ret = limit;
	}
	(void)fclose(f);
	return ret;
}

void host_limits_read(struct host_limits *ret)
{
	static const char dir[] = "/sys/kernel/mm/hugepages/hugepages-2048kB";
	char path[PATH_BYTES];
	uint64_t reserved;

	ret->available_bytes = mem_available();
	ret->cgroup_bytes = cgroup_limit();
	(void)snprintf(path, sizeof(path), "%s/free_hugepages", dir);
	ret->free_huge_pages = number_in(path);
	(void)snprintf(path, sizeof(path), "%s/resv_hugepages", dir);
	reserved = number_in(path);
	if (ret->free_huge_pages != UINT64_MAX && reserved != UINT64_MAX)
		ret->free_huge_pages -=
			reserved < ret->free_huge_pages ? reserved : ret->free_huge_pages;
}
