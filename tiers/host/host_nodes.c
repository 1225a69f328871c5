/* SPDX-License-Identifier: Apache-2.0 */
/* host_nodes.c - see host_nodes.h. */
#include "host_nodes.h"

#include <dirent.h>
#include <stdio.h>

enum {
	VENDOR_NVIDIA = 0x10de,
	CLASS_DISPLAY = 0x03, /* the first byte of three: VGA controllers, 3D controllers */
};

/* The number in a file: hexadecimal, with 0x before it. */
static bool number_of(const char *device, const char *file, long *ret)
{
	char path[512];
	FILE *f;
	bool good;

	if (snprintf(path, sizeof(path), "%s/%s", device, file) >= (int)sizeof(path))
		return false;
	f = fopen(path, "re");
	good = f && fscanf(f, "%li", ret) == 1;
	if (f)
		(void)fclose(f);
	return good;
}

static void add(struct host_nodes *nodes, int32_t node)
{
	uint32_t at = nodes->n++;

	for (; at > 0 && nodes->of_gpu[at - 1] > node; at--)
		nodes->of_gpu[at] = nodes->of_gpu[at - 1];
	nodes->of_gpu[at] = node;
}

void host_nodes_read(const char *sys, bool (*allowed)(void *arg, int32_t node), void *arg,
		     struct host_nodes *ret)
{
	const struct dirent *entry;
	char path[384];
	DIR *dir;

	ret->n = 0;
	(void)snprintf(path, sizeof(path), "%.255s/bus/pci/devices", sys);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)) != NULL && ret->n < HOST_GPUS_MAX) {
		long vendor, class, node;

		(void)snprintf(path, sizeof(path), "%.255s/bus/pci/devices/%.64s", sys,
			       entry->d_name);
		if (entry->d_name[0] != '.' && number_of(path, "vendor", &vendor) &&
		    vendor == VENDOR_NVIDIA && number_of(path, "class", &class) &&
		    class >> 16 == CLASS_DISPLAY && number_of(path, "numa_node", &node) &&
		    node >= 0 && node < HOST_NODES_MAX && allowed(arg, (int32_t)node))
			add(ret, (int32_t)node);
	}
	if (dir)
		(void)closedir(dir);
}

void host_nodes_by_gpus(const struct host_nodes *gpus, uint32_t slabs, struct host_shares *ret)
{
	uint32_t given = 0, before = 0;

	ret->n = 0;
	for (uint32_t i = 0; i < gpus->n; i++) {
		const bool last = i + 1 == gpus->n || gpus->of_gpu[i + 1] != gpus->of_gpu[i];

		if (!last)
			continue;
		if (ret->n == TIER_MAX_NODES)
			break;
		given = (uint32_t)((uint64_t)slabs * (i + 1) / gpus->n);
		ret->node[ret->n] = gpus->of_gpu[i];
		ret->slabs[ret->n++] = given - before;
		before = given;
	}
	if (ret->n > 0) /* the share of nodes that there was no room for */
		ret->slabs[ret->n - 1] += slabs - given;
}

void host_nodes_by_conf(const struct tier_conf *conf, struct host_shares *ret)
{
	ret->n = conf->n_nodes;
	for (uint32_t i = 0; i < conf->n_nodes; i++) {
		ret->node[i] = conf->nodes[i].node;
		ret->slabs[i] = (uint32_t)(conf->nodes[i].bytes / conf->slab_bytes);
	}
}

/* The node that has had the smallest part of its share; TIER_MAX_NODES: all have had all. */
static uint32_t furthest_behind(const struct host_shares *shares, const uint32_t *given)
{
	uint32_t best = TIER_MAX_NODES;

	for (uint32_t i = 0; i < shares->n; i++)
		if (given[i] < shares->slabs[i] &&
		    (best == TIER_MAX_NODES || (uint64_t)given[i] * shares->slabs[best] <
						       (uint64_t)given[best] * shares->slabs[i]))
			best = i;
	return best;
}

void host_nodes_lay_out(const struct host_shares *shares, uint32_t run, uint8_t *ret)
{
	uint32_t given[TIER_MAX_NODES] = { 0 }, at = 0, node;

	while ((node = furthest_behind(shares, given)) != TIER_MAX_NODES)
		for (uint32_t i = 0; i < run && given[node] < shares->slabs[node]; i++) {
			ret[at++] = (uint8_t)node;
			given[node]++;
		}
}
