/* SPDX-License-Identifier: Apache-2.0 */
/* host_nodes.c - see host_nodes.h. */
#include "host_nodes.h"

#include <dirent.h>
#include <stdio.h>

enum {
	VENDOR_NVIDIA = 0x10de,
	CLASS_DISPLAY = 0x03, /* the first byte of three: VGA controllers, 3D controllers */
};

/* What a file says: a number, in hexadecimal with 0x before it. */
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

int32_t host_nodes_chunk(const struct host_nodes *nodes, uint64_t n)
{
	return nodes->n ? nodes->of_gpu[n % nodes->n] : -1;
}
