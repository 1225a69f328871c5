/* SPDX-License-Identifier: Apache-2.0 */
/* parts.c - see parts.h. */
#include "parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static int refuse(char *text, size_t n, const char *format,
							...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(text, n, format, args);
	va_end(args);
	return -EINVAL;
}

static int find_device(const struct devices *devices, const struct proto_parts *m,
		       struct parts *parts, char *text, size_t n)
{
	struct device *device = devices_find(devices, m->device);

	if (!device || device == devices_cpu(devices)) {
		snprintf(text, n, "parts.device: this daemon serves no such device");
		return -ENODEV;
	}
	if (parts->device && parts->device != device)
		return refuse(text, n, "parts.device is another than that of the ranges before");
	parts->device = device;
	return 0;
}

/* A range is not there any more. */
static void forget(struct parts *parts, struct parts_range *range)
{
	parts->n_ranges--;
	parts->n_parts -= range->n;
	parts->bytes -= range->bytes;
	*range = (struct parts_range){ 0 };
}

/* These parts go on where the range ends, and the range is still the same. */
static int check_next(const struct parts_range *range, const struct proto_parts *m, char *text,
		      size_t n)
{
	if (m->at != range->at)
		return refuse(text, n, "parts.at is %llu; the parts before end at %llu",
			      (unsigned long long)m->at, (unsigned long long)range->at);
	if (range->at && (m->memory != range->memory || m->range_bytes != range->bytes))
		return refuse(text, n,
			      "parts.memory and parts.range_bytes must be the same in each PARTS "
			      "of range %u",
			      m->range);
	if (range->n + m->n_parts > WIRE_MAX_RANGE_PARTS)
		return refuse(text, n, "range %u has more than %d parts", m->range,
			      WIRE_MAX_RANGE_PARTS);
	return 0;
}

static int import(struct parts *parts, struct parts_range *range, const struct proto_parts *m,
		  const int *fds, char *text, size_t n)
{
	const bool fd = m->memory == WIRE_DEVICE_FD;
	struct region_parts more = { .memory = m->memory,
				     .region_bytes = m->range_bytes,
				     .n = m->n_parts };

	for (uint32_t i = 0; i < m->n_parts; i++) {
		more.parts[i] =
			(struct region_part){ .bytes = m->parts[i].bytes, .fd = fd ? fds[i] : -1 };
		memcpy(more.parts[i].handle, m->parts[i].handle, sizeof(more.parts[i].handle));
	}
	return device_import_parts(parts->device, &more, &range->region, text, n);
}

static void count(struct parts *parts, struct parts_range *range, const struct proto_parts *m)
{
	if (range->at == 0) {
		range->memory = m->memory;
		range->bytes = m->range_bytes;
		parts->n_ranges++;
		parts->bytes += m->range_bytes;
	}
	for (uint32_t i = 0; i < m->n_parts; i++)
		range->at += m->parts[i].bytes;
	range->n += m->n_parts;
	parts->n_parts += m->n_parts;
}

int parts_add(const struct devices *devices, struct parts **at, const struct proto_parts *m,
	      const int *fds, char *text, size_t n)
{
	struct parts *parts = *at ? *at : calloc(1, sizeof(*parts));
	struct parts_range *range;
	int r;

	if (!parts) {
		snprintf(text, n, "out of memory for ranges");
		return -ENOMEM;
	}
	*at = parts;
	range = &parts->ranges[m->range];
	if (m->at == 0 && range->region.own) {
		device_release(&range->region);
		forget(parts, range);
	}
	r = find_device(devices, m, parts, text, n);
	if (r == 0)
		r = check_next(range, m, text, n);
	if (r == 0)
		r = import(parts, range, m, fds, text, n);
	if (r == 0)
		count(parts, range, m);
	return r;
}

int parts_take(struct parts *parts, uint32_t number, struct region_desc *desc,
	       struct device_region *ret, uint32_t *ret_n, char *text, size_t n)
{
	struct parts_range *range = parts ? &parts->ranges[number] : NULL;

	if (!range || !range->region.own)
		return refuse(text, n, "no PARTS have brought range %u, or it was taken", number);
	if (memcmp(desc->device, parts->device->uuid, sizeof(desc->device)) != 0)
		return refuse(text, n, "range %u is another device's", number);
	if (range->at != range->bytes)
		return refuse(text, n, "range %u has %llu of its %llu bytes", number,
			      (unsigned long long)range->at, (unsigned long long)range->bytes);
	if (desc->length == 0 || desc->offset > range->bytes ||
	    desc->length > range->bytes - desc->offset)
		return refuse(text, n,
			      "offset %llu + length %llu must lie in the range's %llu bytes",
			      (unsigned long long)desc->offset, (unsigned long long)desc->length,
			      (unsigned long long)range->bytes);
	desc->memory = range->memory;
	*ret = range->region;
	ret->base += desc->offset;
	ret->length = desc->length;
	*ret_n = range->n;
	forget(parts, range);
	return 0;
}

void parts_close(struct parts *parts)
{
	for (uint32_t i = 0; parts && i < WIRE_MAX_REGIONS; i++)
		if (parts->ranges[i].region.own)
			device_release(&parts->ranges[i].region);
	free(parts);
}
