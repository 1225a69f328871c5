/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.c - opening and closing a space on a connection (mount.h). All or nothing: a failure at any
 * step undoes the steps before it.
 */
#include "mount.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/block.h"
#include "daemon/store/store.h"
#include "daemon/store/tally.h"
#include "tiers/slabs.h"
#include "layout.h"

static int find_device(const struct devices *devices, const struct proto_space_open *m,
		       struct device **ret, char *text, size_t n)
{
	char uuid[2 * WIRE_UUID_BYTES + 1] = "";

	*ret = m->n_regions == 0 ? devices_cpu(devices) :
				   devices_find(devices, m->regions[0].device);
	if (*ret)
		return 0;
	for (size_t i = 0; i < WIRE_UUID_BYTES; i++)
		snprintf(uuid + 2 * i, 3, "%02x", m->regions[0].device[i]);
	snprintf(text, n, "regions[0].device: this daemon serves no device %s", uuid);
	return -ENODEV;
}

static bool has_fd(const struct wire_region *region)
{
	return region->memory == WIRE_MEMFD || region->memory == WIRE_STAGED ||
	       region->memory == WIRE_DEVICE_FD;
}

static void describe(const struct wire_region *region, const int *fds, struct region_desc *ret)
{
	*ret = (struct region_desc){
		.memory = (enum wire_memory)region->memory,
		.offset = region->offset,
		.length = region->length,
		.fd = has_fd(region) ? fds[region->fd_index] : -1,
	};
	memcpy(ret->device, region->device, sizeof(ret->device));
	memcpy(ret->handle, region->handle, sizeof(ret->handle));
}

static int import(struct mount *mount, const struct wire_region *region, const int *fds,
		  struct parts *parts, char *text, size_t n)
{
	struct device_region *ret = &mount->regions[mount->n_regions];
	struct region_desc desc;
	uint32_t n_parts = 0;
	int r;

	describe(region, fds, &desc);
	if (desc.memory == WIRE_DEVICE_PARTS)
		r = parts_take(parts, region->fd_index, &desc, ret, &n_parts, text, n);
	else
		r = device_import(mount->device, &desc, ret, text, n);
	if (r)
		return r;
	mount->n_regions++;
	mount->n_parts += n_parts;
	mount->region_bytes += desc.length;
	mount->memories |= 1u << desc.memory;
	return 0;
}

int mount_import(const struct devices *devices, const struct proto_space_open *m, const int *fds,
		 struct parts *parts, struct mount **ret, char *text, size_t n)
{
	struct mount *mount = calloc(1, sizeof(*mount));
	char why[200];
	int r;

	if (!mount) {
		snprintf(text, n, "out of memory for a space");
		return -ENOMEM;
	}
	memcpy(mount->not_engine, m->not_engine, sizeof(mount->not_engine));
	memcpy(mount->gpu_staged, m->gpu_staged, sizeof(mount->gpu_staged));
	r = find_device(devices, m, &mount->device, text, n);
	for (uint32_t i = 0; i < m->n_regions && r == 0; i++) {
		r = import(mount, &m->regions[i], fds, parts, why, sizeof(why));
		if (r)
			snprintf(text, n, "regions[%u]: %s", i, why);
	}
	if (r) {
		mount_unmap(mount);
		free(mount);
		return r;
	}
	*ret = mount;
	return 0;
}

bool mount_is_void(const struct mount *mount)
{
	for (uint32_t i = 0; i < mount->n_regions; i++)
		if (device_region_void(&mount->regions[i]))
			return true;
	return false;
}

void mount_unmap(struct mount *mount)
{
	for (uint32_t i = 0; i < mount->n_regions; i++)
		device_release(&mount->regions[i]);
}

/* Engine mode: each page has room for an image of the space, raw or not. */
static int take_images(struct mount *mount, const struct proto_space_open *m, char *text, size_t n)
{
	const struct space *space = mount->space;
	const uint64_t stride = m->segments[0].page_stride;
	uint32_t most = space->shape.image_bytes;

	for (uint32_t i = 0; i < sizeof(space->variant_bytes) / sizeof(*space->variant_bytes); i++)
		if (space->variant_bytes[i] > most)
			most = space->variant_bytes[i];
	for (uint32_t i = 0; i < m->n_segments; i++)
		if (m->segments[i].page_stride != stride || stride < most || stride % IMAGE_ALIGN) {
			snprintf(text, n,
				 "segments[%u].page_stride is %llu; in engine mode all are one "
				 "multiple of %d, and at least an image's %u bytes",
				 i, (unsigned long long)m->segments[i].page_stride, IMAGE_ALIGN,
				 most);
			return -EINVAL;
		}
	if (mount->pages > mount->region_bytes / stride)
		mount->pages = mount->region_bytes / stride;
	if (mount->pages == 0) {
		snprintf(text, n, "regions[0].length is %llu; one page takes %llu",
			 (unsigned long long)mount->region_bytes, (unsigned long long)stride);
		return -EINVAL;
	}
	mount->layout.image_stride = stride;
	return 0;
}

static int build_layout(struct mount *mount, const struct proto_space_open *m, char *text, size_t n)
{
	uint8_t *bases[WIRE_MAX_REGIONS];
	uint64_t lengths[WIRE_MAX_REGIONS];
	int r;

	for (uint32_t i = 0; i < mount->n_regions; i++) {
		bases[i] = mount->regions[i].base;
		lengths[i] = mount->regions[i].length;
	}
	r = layout_build(m->segments, m->n_segments, bases, lengths, mount->n_regions,
			 &mount->space->geometry, &mount->layout.pages, &mount->pages, text, n);
	if (r == 0 && mount->memories & 1u << WIRE_DEVICE_ENGINE)
		r = take_images(mount, m, text, n);
	if (r)
		return r;
	mount->layout.regions = mount->regions;
	mount->layout.n_regions = mount->n_regions;
	r = device_prepare(mount->device, &mount->layout);
	if (r)
		snprintf(text, n, "segments: the device has no memory for them");
	mount->prepared = r == 0;
	return r;
}

int mount_open(struct store *store, const char *tenant, const struct proto_space_open *m,
	       struct mount *mount, char *text, size_t n)
{
	const struct slabs *slabs = tier_slabs(store_host(store));
	int r = space_acquire(store->spaces, tenant, &m->geometry, &mount->space, text, n);

	if (r)
		return r;
	tally_set_standing(blocks_tally(store->blocks), mount->space->number, HINT_USUAL);
	if (slabs_slot_bytes(slabs, mount->space->shape.image_bytes) == 0) {
		snprintf(text, n,
			 "geometry: one block takes %u bytes, more than [host] slab_bytes = %llu; "
			 "raise that or use fewer block_tokens",
			 mount->space->shape.image_bytes,
			 (unsigned long long)slabs_slab_bytes(slabs));
		r = -E2BIG;
	}
	if (!r)
		r = build_layout(mount, m, text, n);
	if (r)
		mount_close(store, mount);
	return r;
}

void mount_close(struct store *store, struct mount *mount)
{
	assert(mount->ops == 0);
	if (mount->prepared)
		device_forget(mount->device, &mount->layout);
	mount->prepared = false;
	layout_free(&mount->layout.pages);
	mount->pages = 0;
	if (mount->space)
		space_release(store->spaces, mount->space);
	mount->space = NULL;
}
