/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.c - opening and closing a space on a connection (mount.h). All or nothing: a failure at any step undoes
 * the ones before it.
 */
#include "mount.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/kvtierd.h"
#include "layout.h"

int mount_import(struct device *device, const struct proto_space_open *m, const int *fds, struct mount **ret,
		 char *text, size_t n)
{
	struct mount *mount = calloc(1, sizeof *mount);

	if (!mount) {
		snprintf(text, n, "out of memory for a space");
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < m->n_regions; i++) {
		const struct wire_region *region = &m->regions[i];
		char why[200];
		const int r = device_import(device, fds[region->fd_index], region->offset, region->length,
					    &mount->regions[i], why, sizeof why);

		if (r) {
			snprintf(text, n, "regions[%u]: %s", i, why);
			mount_unmap(mount);
			free(mount);
			return r;
		}
		mount->n_regions++;
		mount->region_bytes += region->length;
		mount->staged |= region->memory == WIRE_STAGED;
	}
	*ret = mount;
	return 0;
}

void mount_unmap(struct mount *mount)
{
	for (uint32_t i = 0; i < mount->n_regions; i++)
		device_release(&mount->regions[i]);
}

static int build_layout(struct mount *mount, const struct proto_space_open *m, char *text, size_t n)
{
	uint8_t *bases[WIRE_MAX_REGIONS];
	uint64_t lengths[WIRE_MAX_REGIONS];

	for (uint32_t i = 0; i < mount->n_regions; i++) {
		bases[i] = mount->regions[i].base;
		lengths[i] = mount->regions[i].length;
	}
	return layout_build(m->segments, m->n_segments, bases, lengths, mount->n_regions, &mount->space->geometry,
			    &mount->layout, &mount->pages, text, n);
}

int mount_open(struct kvtierd *d, const char *tenant, const struct proto_space_open *m, struct mount *mount,
	       char *text, size_t n)
{
	int r = space_acquire(d->spaces, tenant, &m->geometry, &mount->space, text, n);

	if (r)
		return r;
	if (host_slot_bytes(d->tiers[TIER_HOST], mount->space->shape.image_bytes) == 0) {
		snprintf(text, n, "geometry: one block takes %u bytes, more than [host] slab_bytes = %llu; raise that or "
			 "use fewer block_tokens", mount->space->shape.image_bytes,
			 (unsigned long long)d->config->host_slab_bytes);
		r = -E2BIG;
	}
	if (!r)
		r = build_layout(mount, m, text, n);
	if (r)
		mount_close(d, mount);
	return r;
}

void mount_close(struct kvtierd *d, struct mount *mount)
{
	assert(mount->ops == 0);
	layout_free(&mount->layout);
	mount->pages = 0;
	if (mount->space)
		space_release(d->spaces, mount->space);
	mount->space = NULL;
}
