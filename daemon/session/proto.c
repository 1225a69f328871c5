/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proto.c - checks control messages and ring entries. Any result but 0 ends the connection, except
 * -EINVAL: such a request is refused with an answer, and the connection lives on.
 */
#include "proto.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/text.h"

struct message_type {
	const char *name;
	size_t bytes; /* of its fixed part */
	bool exact;
};

static const struct message_type types[] = {
	[WIRE_HELLO] = { "HELLO", sizeof(struct wire_hello), true },
	[WIRE_SPACE_OPEN] = { "SPACE_OPEN", offsetof(struct wire_space_open, gpu_staged), false },
	[WIRE_SPACE_CLOSE] = { "SPACE_CLOSE", sizeof(struct wire_space_close), true },
	[WIRE_ORDER] = { "ORDER", sizeof(struct wire_order), false },
	[WIRE_ALLOCS] = { "ALLOCS", sizeof(struct wire_allocs), false },
	[WIRE_DOORBELL] = { "DOORBELL", sizeof(struct wire_head), true },
};

int proto_head(const void *packet, size_t n, struct wire_head *ret, char *text, size_t text_bytes)
{
	const struct message_type *type;
	struct wire_head h;

	if (n < sizeof(h))
		return text_fail(text, text_bytes, -EPROTO,
				 "packet of %zu bytes; a message has at least %zu", n, sizeof(h));
	memcpy(&h, packet, sizeof(h));
	if (h.magic != WIRE_MAGIC)
		return text_fail(text, text_bytes, -EPROTO, "head.magic is 0x%08x; must be 0x%08x",
				 h.magic, (unsigned)WIRE_MAGIC);
	if (h.length != n)
		return text_fail(text, text_bytes, -EPROTO,
				 "head.length is %u in a packet of %zu bytes", h.length, n);
	if (h.flags != 0)
		return text_fail(text, text_bytes, -EPROTO, "head.flags is 0x%x; must be 0",
				 h.flags);
	type = h.type < sizeof(types) / sizeof(*types) ? &types[h.type] : NULL;
	if (!type || !type->name)
		return text_fail(text, text_bytes, -EPROTO,
				 "head.type is %u; not a message that clients send", h.type);
	if (n < type->bytes || (type->exact && n != type->bytes))
		return text_fail(text, text_bytes, -EPROTO, "%s of %zu bytes; must be %s%zu",
				 type->name, n, type->exact ? "" : "at least ", type->bytes);
	*ret = h;
	return 0;
}

static uint32_t power_of_two_within(uint32_t wish, uint32_t min, uint32_t max)
{
	uint32_t n = min;

	while (n * 2 <= wish && n * 2 <= max)
		n *= 2;
	return n;
}

static int check_sizes(const struct wire_hello *h, char *text, size_t n)
{
	const struct {
		const char *name;
		size_t ours, theirs;
	} sizes[] = {
		{ "geometry", sizeof(struct wire_geometry), h->size_geometry },
		{ "region", sizeof(struct wire_region), h->size_region },
		{ "segment", sizeof(struct wire_segment), h->size_segment },
		{ "sqe", sizeof(struct wire_sqe), h->size_sqe },
		{ "cqe", sizeof(struct wire_cqe), h->size_cqe },
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		if (sizes[i].ours != sizes[i].theirs)
			return text_fail(
				text, n, -EPROTONOSUPPORT,
				"hello.size_%s is %zu; this daemon's is %zu: libkvtier and kvtierd "
				"do not match",
				sizes[i].name, sizes[i].theirs, sizes[i].ours);
	return 0;
}

int proto_versions(const struct wire_hello *h, char *text, size_t n)
{
	if (h->version_min <= h->version_max && h->version_min <= WIRE_VERSION_MAX &&
	    h->version_max >= WIRE_VERSION_MIN)
		return 0;
	return text_fail(text, n, -EPROTONOSUPPORT,
			 "hello.version range is %u to %u; this daemon speaks %d to %d: upgrade "
			 "the older of libkvtier and kvtierd",
			 h->version_min, h->version_max, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
}

int proto_hello(const void *packet, size_t n, uint32_t max_entries, uint32_t max_arena,
		struct wire_hello *ret, uint32_t *ret_version, char *text, size_t text_bytes)
{
	struct wire_hello h;
	int r;

	assert(n == sizeof(h));
	memcpy(&h, packet, sizeof(h));
	r = proto_versions(&h, text, text_bytes);
	if (r == 0)
		r = check_sizes(&h, text, text_bytes);
	if (r)
		return r;
	if (!memchr(h.name, 0, sizeof(h.name)))
		return text_fail(text, text_bytes, -EPROTO, "hello.name must be at most %zu bytes",
				 sizeof(h.name) - 1);
	for (char *c = h.name; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
	h.sq_entries = power_of_two_within(h.sq_entries, WIRE_MIN_ENTRIES, max_entries);
	h.arena_blocks = power_of_two_within(h.arena_blocks, WIRE_MIN_ARENA, max_arena);
	*ret = h;
	*ret_version = h.version_max < WIRE_VERSION_MAX ? h.version_max : WIRE_VERSION_MAX;
	return 0;
}

/* The fields that a region of each kind carries. */
static const struct region_kind {
	const char *name;
	bool fd, device, handle;
} region_kinds[WIRE_MEMORIES] = {
	[WIRE_MEMFD] = { "memfd", true, false, false },
	[WIRE_STAGED] = { "staged memfd", true, false, false },
	[WIRE_DEVICE_HANDLE] = { "device handle", false, true, true },
	[WIRE_DEVICE_FD] = { "device fd", true, true, false },
	[WIRE_DEVICE_FABRIC] = { "fabric handle", false, true, true },
	[WIRE_DEVICE_RANGE] = { "range", false, true, false },
};

static bool all_zero(const void *bytes, size_t n)
{
	const uint8_t *p = bytes;

	while (n > 0 && *p == 0) {
		p++;
		n--;
	}
	return n == 0;
}

static int check_region(const struct wire_region *region, uint32_t i, uint32_t n_fds, char *text,
			size_t n)
{
	const struct region_kind *kind;

	if (region->memory == WIRE_DEVICE_ENGINE)
		return text_fail(
			text, n, -EOPNOTSUPP,
			"regions[%u].memory is 7, for kernels of the client: this kvtierd has "
			"kernels of its own alone",
			i);
	if (region->memory < WIRE_MEMFD || region->memory >= WIRE_MEMORIES)
		return text_fail(
			text, n, -EINVAL,
			"regions[%u].memory is %u; must be 1 (memfd), 2 (staged), 3 (device "
			"handle), 4 (device fd), 5 (fabric handle) or 6 (a range)",
			i, region->memory);
	kind = &region_kinds[region->memory];
	if (kind->fd && region->fd_index >= n_fds)
		return text_fail(
			text, n, -EINVAL,
			"regions[%u].fd_index is %u; the packet carries %u file descriptors", i,
			region->fd_index, n_fds);
	if (region->memory == WIRE_DEVICE_RANGE && region->fd_index >= WIRE_MAX_REGIONS)
		return text_fail(text, n, -EINVAL,
				 "regions[%u].fd_index is %u; a range's number is less than %d", i,
				 region->fd_index, WIRE_MAX_REGIONS);
	if (!kind->fd && region->memory != WIRE_DEVICE_RANGE && region->fd_index != 0)
		return text_fail(text, n, -EINVAL,
				 "regions[%u].fd_index is %u; a %s has no file descriptor: 0", i,
				 region->fd_index, kind->name);
	if (kind->device == all_zero(region->device, sizeof(region->device)))
		return text_fail(text, n, -EINVAL, "regions[%u].device: a %s %s device's UUID", i,
				 kind->name, kind->device ? "needs a" : "has no");
	if (kind->handle == all_zero(region->handle, sizeof(region->handle)))
		return text_fail(text, n, -EINVAL, "regions[%u].handle: a %s %s", i, kind->name,
				 kind->handle ? "needs one" : "has none");
	if (!all_zero(region->reserved, sizeof(region->reserved)))
		return text_fail(text, n, -EINVAL, "regions[%u].reserved is not 0", i);
	return 0;
}

static int check_regions(const struct wire_region *regions, uint32_t n, uint32_t n_fds, char *text,
			 size_t text_bytes)
{
	int r = 0;

	for (uint32_t i = 0; i < n && r == 0; i++)
		r = check_region(&regions[i], i, n_fds, text, text_bytes);
	if (r)
		return r;
	for (uint32_t i = 1; i < n; i++)
		if (memcmp(regions[i].device, regions[0].device, sizeof(regions[i].device)) != 0)
			return text_fail(
				text, text_bytes, -EINVAL,
				"regions[%u].device is another than regions[0].device; a space "
				"lies on one device",
				i);
	return 0;
}

/* Copies words for people; bytes that are not printable become '?'. */
static int take_words(const char words[WIRE_WHY_BYTES], char ret[WIRE_WHY_BYTES])
{
	memcpy(ret, words, WIRE_WHY_BYTES);
	if (!memchr(ret, 0, WIRE_WHY_BYTES))
		return -EINVAL;
	for (char *c = ret; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
	return 0;
}

int proto_space_open(const void *packet, size_t n, uint32_t n_fds, uint32_t version,
		     struct proto_space_open *ret, char *text, size_t text_bytes)
{
	const struct wire_space_open *m = packet; /* the receive buffer is 8-byte aligned */
	const size_t fixed = wire_space_open_bytes(version);
	size_t want;

	if (m->n_regions > WIRE_MAX_REGIONS)
		return text_fail(text, text_bytes, -EINVAL, "n_regions is %u; must be at most %d",
				 m->n_regions, WIRE_MAX_REGIONS);
	if (m->n_segments > WIRE_MAX_SEGMENTS)
		return text_fail(text, text_bytes, -EINVAL, "n_segments is %u; must be at most %d",
				 m->n_segments, WIRE_MAX_SEGMENTS);
	if ((m->n_regions == 0) != (m->n_segments == 0))
		return text_fail(text, text_bytes, -EINVAL,
				 "n_regions is %u and n_segments %u; both or neither must be 0",
				 m->n_regions, m->n_segments);
	want = fixed + m->n_regions * sizeof(struct wire_region) +
	       m->n_segments * sizeof(struct wire_segment);
	if (n != want)
		return text_fail(text, text_bytes, -EPROTO,
				 "SPACE_OPEN of %zu bytes; %u regions and %u segments make %zu", n,
				 m->n_regions, m->n_segments, want);
	ret->gpu_staged[0] = '\0';
	if (fixed == sizeof(*m) && take_words(m->gpu_staged, ret->gpu_staged))
		return text_fail(text, text_bytes, -EINVAL, "gpu_staged must be at most %d bytes",
				 WIRE_WHY_BYTES - 1);
	ret->geometry = m->geometry;
	ret->n_regions = m->n_regions;
	ret->n_segments = m->n_segments;
	ret->regions = (const void *)((const uint8_t *)packet + fixed);
	ret->segments = (const void *)(ret->regions + m->n_regions);
	return check_regions(ret->regions, ret->n_regions, n_fds, text, text_bytes);
}

static int check_no_allocs(const struct wire_allocs *m, uint32_t n_fds, char *text, size_t n)
{
	if (n_fds != 0)
		return text_fail(text, n, -EINVAL,
				 "ALLOCS without allocations came with file descriptors");
	if (!all_zero(&m->device, sizeof(*m) - sizeof(m->head)))
		return text_fail(
			text, n, -EINVAL,
			"allocs.n_allocs is 0: to give ranges back, all else must be 0, too");
	return 0;
}

static int check_allocs_head(const struct wire_allocs *m, uint32_t n_fds, char *text, size_t n)
{
	const bool fds = m->memory == WIRE_DEVICE_FD;

	if (!fds && m->memory != WIRE_DEVICE_FABRIC)
		return text_fail(text, n, -EINVAL,
				 "allocs.memory is %u; must be 4 (device fd) or 5 (fabric handle)",
				 m->memory);
	if (n_fds != (fds ? m->n_allocs : 0))
		return text_fail(text, n, -EINVAL,
				 "ALLOCS came with %u file descriptors; its %u allocations need %u",
				 n_fds, m->n_allocs, fds ? m->n_allocs : 0);
	if (m->range >= WIRE_MAX_REGIONS)
		return text_fail(text, n, -EINVAL, "allocs.range is %u; must be less than %d",
				 m->range, WIRE_MAX_REGIONS);
	if (m->range_bytes > WIRE_MAX_RANGE_BYTES || m->at >= m->range_bytes)
		return text_fail(
			text, n, -EINVAL,
			"allocs.at is %llu in a range of %llu bytes; must be less, and the "
			"range at most %llu",
			(unsigned long long)m->at, (unsigned long long)m->range_bytes,
			WIRE_MAX_RANGE_BYTES);
	if (m->reserved != 0)
		return text_fail(text, n, -EINVAL, "allocs.reserved is not 0");
	if (all_zero(m->device, sizeof(m->device)))
		return text_fail(text, n, -EINVAL, "allocs.device: the CPU has no such memory");
	return 0;
}

static int check_allocs(const struct wire_allocs *m, const struct wire_alloc *allocs, char *text,
			size_t n)
{
	uint64_t left = m->range_bytes - m->at;

	for (uint32_t i = 0; i < m->n_allocs; i++) {
		const bool handle = !all_zero(allocs[i].handle, sizeof(allocs[i].handle));

		if (allocs[i].bytes == 0 || allocs[i].bytes > left)
			return text_fail(
				text, n, -EINVAL,
				"allocs[%u].bytes is %llu; must be 1 to %llu, the rest of the "
				"range",
				i, (unsigned long long)allocs[i].bytes, (unsigned long long)left);
		if (handle != (m->memory == WIRE_DEVICE_FABRIC))
			return text_fail(text, n, -EINVAL, "allocs[%u].handle: a %s", i,
					 handle ? "device fd has none" : "fabric handle needs one");
		left -= allocs[i].bytes;
	}
	return 0;
}

int proto_allocs(const void *packet, size_t n, uint32_t n_fds, struct proto_allocs *ret, char *text,
		 size_t text_bytes)
{
	const struct wire_allocs *m = packet; /* 8-byte aligned, as above */
	const struct wire_alloc *allocs = (const void *)(m + 1);
	int r;

	if (m->n_allocs > WIRE_MAX_ALLOCS)
		return text_fail(text, text_bytes, -EINVAL,
				 "allocs.n_allocs is %u; must be at most %d", m->n_allocs,
				 WIRE_MAX_ALLOCS);
	if (n != sizeof(*m) + m->n_allocs * sizeof(*allocs))
		return text_fail(text, text_bytes, -EPROTO,
				 "ALLOCS of %zu bytes; %u allocations make %zu", n, m->n_allocs,
				 sizeof(*m) + m->n_allocs * sizeof(*allocs));
	if (m->n_allocs == 0)
		r = check_no_allocs(m, n_fds, text, text_bytes);
	else
		r = check_allocs_head(m, n_fds, text, text_bytes);
	if (r == 0)
		r = check_allocs(m, allocs, text, text_bytes);
	if (r)
		return r;
	*ret = (struct proto_allocs){ .memory = (enum wire_memory)m->memory,
				      .range = m->range,
				      .n_allocs = m->n_allocs,
				      .range_bytes = m->range_bytes,
				      .at = m->at,
				      .allocs = allocs };
	memcpy(ret->device, m->device, sizeof(ret->device));
	return 0;
}

int proto_space_close(const void *packet, size_t n, uint32_t *ret_space, char *text,
		      size_t text_bytes)
{
	struct wire_space_close m;

	assert(n == sizeof(m));
	memcpy(&m, packet, sizeof(m));
	if (m.space >= WIRE_MAX_SPACES)
		return text_fail(text, text_bytes, -EPROTO, "space is %u; must be less than %d",
				 m.space, WIRE_MAX_SPACES);
	*ret_space = m.space;
	return 0;
}

int proto_order(const void *packet, size_t n, uint32_t n_fds, uint8_t ret_device[WIRE_UUID_BYTES],
		char *text, size_t text_bytes)
{
	const struct wire_order *m = packet; /* 8-byte aligned, as above */

	if (m->n_events > 0)
		return text_fail(text, text_bytes, -EOPNOTSUPP,
				 "order.n_events is %u; ops wait for words alone", m->n_events);
	if (n != sizeof(*m))
		return text_fail(text, text_bytes, -EPROTO, "ORDER of %zu bytes; must be %zu", n,
				 sizeof(*m));
	if (n_fds != 1)
		return text_fail(text, text_bytes, -EINVAL,
				 "ORDER came with %u file descriptors; it needs one, of the words",
				 n_fds);
	if (m->reserved != 0)
		return text_fail(text, text_bytes, -EINVAL, "order.reserved is not 0");
	if (all_zero(m->device, sizeof(m->device)))
		return text_fail(text, text_bytes, -EINVAL, "order.device: the CPU has no words");
	memcpy(ret_device, m->device, sizeof(m->device));
	return 0;
}

static int check_order(const struct wire_sqe *e, char *text, size_t n)
{
	if (e->word > WIRE_MAX_WORDS)
		return text_fail(text, n, -EPROTO, "sqe.word is %u; must be at most %d", e->word,
				 WIRE_MAX_WORDS);
	if ((e->flags & (WIRE_SQE_READY | WIRE_SQE_GIVEN)) && e->word == 0)
		return text_fail(text, n, -EPROTO, "sqe.word is 0, and sqe.flags says %s",
				 e->flags & WIRE_SQE_READY ? "READY" : "GIVEN");
	return 0;
}

static int check_groups(const struct wire_sqe *e, char *text, size_t n)
{
	if (e->groups > WIRE_MAX_GROUPS)
		return text_fail(text, n, -EPROTO, "sqe.groups is %u; must be at most %d",
				 e->groups, WIRE_MAX_GROUPS);
	if (e->groups > 0 && e->op != WIRE_OP_STORE && e->op != WIRE_OP_LOAD)
		return text_fail(text, n, -EPROTO,
				 "sqe.groups is %u in an op that is no load and no "
				 "store",
				 e->groups);
	if ((e->flags & WIRE_SQE_GIVEN) && (e->op != WIRE_OP_STORE || e->groups == 0))
		return text_fail(text, n, -EPROTO,
				 "sqe.flags says GIVEN in an op that is no store "
				 "with groups");
	return 0;
}

static int check_blocks(const struct wire_sqe *e, uint32_t arena_blocks, char *text, size_t n)
{
	const uint32_t slots = wire_arena_slots(e);

	/* n first, alone: n + 1 must not have wrapped. */
	if (e->n == 0 || e->n > arena_blocks || slots > arena_blocks)
		return text_fail(text, n, -EPROTO,
				 "sqe.n is %u; must be 1 to %u (one less with a parent)", e->n,
				 arena_blocks);
	if (e->first > arena_blocks - slots)
		return text_fail(text, n, -EPROTO,
				 "sqe.first is %u; with %u slots it must be at most %u", e->first,
				 slots, arena_blocks - slots);
	if (e->deadline_ns == 0)
		return text_fail(text, n, -EPROTO, "sqe.deadline_ns is 0; every op has a deadline");
	if (e->space >= WIRE_MAX_SPACES)
		return text_fail(text, n, -EPROTO, "sqe.space is %u; must be less than %d",
				 e->space, WIRE_MAX_SPACES);
	if (e->priority < -100 || e->priority > 100)
		return text_fail(text, n, -EPROTO, "sqe.priority is %d; must be -100 to 100",
				 e->priority);
	return 0;
}

static int check_layers(const struct wire_sqe *e, char *text, size_t n)
{
	if (e->target == 0)
		return text_fail(text, n, -EPROTO, "sqe.target is 0 in an entry LAYERS");
	if (e->n == 0 || e->n > WIRE_MAX_GROUPS)
		return text_fail(text, n, -EPROTO, "sqe.n is %u groups; must be 1 to %d", e->n,
				 WIRE_MAX_GROUPS);
	return 0;
}

static int check_hint(const struct wire_sqe *e, char *text, size_t n)
{
	if (e->op != WIRE_OP_HINT)
		return e->action == 0 && e->scope == 0 ?
			       0 :
			       text_fail(
				       text, n, -EPROTO,
				       "sqe.action is %u and sqe.scope %u in an op that is no hint",
				       e->action, e->scope);
	if (e->action < WIRE_HINT_RETAIN || e->action > WIRE_HINT_ENDED)
		return text_fail(text, n, -EPROTO, "sqe.action is %u; must be 1 to %d", e->action,
				 WIRE_HINT_ENDED);
	if (e->scope < WIRE_HINT_KEYS || e->scope > WIRE_HINT_REVISION)
		return text_fail(text, n, -EPROTO, "sqe.scope is %u; must be 1 to %d", e->scope,
				 WIRE_HINT_REVISION);
	if (e->flags || e->word)
		return text_fail(text, n, -EPROTO, "sqe.flags or word of a hint is not 0");
	if (e->scope != WIRE_HINT_KEYS && e->n != 1)
		return text_fail(text, n, -EPROTO, "sqe.n is %u; a hint without keys has 1", e->n);
	if (e->scope == WIRE_HINT_SESSION && e->session == 0)
		return text_fail(text, n, -EPROTO, "sqe.session is 0 in a hint on a session");
	return 0;
}

int proto_sqe(const struct wire_sqe *e, uint32_t arena_blocks, char *text, size_t n)
{
	const unsigned flags = WIRE_SQE_HAS_PARENT | WIRE_SQE_READY | WIRE_SQE_GIVEN;

	if (e->op < WIRE_OP_NOP || e->op > WIRE_OP_HINT)
		return text_fail(text, n, -EPROTO, "sqe.op is %u; must be 1 to %d", e->op,
				 WIRE_OP_HINT);
	if (e->flags & ~flags)
		return text_fail(text, n, -EPROTO, "sqe.flags is 0x%x; only 0x%x is known",
				 e->flags, flags);
	if (check_hint(e, text, n))
		return -EPROTO;
	if (e->op_id == 0)
		return text_fail(text, n, -EPROTO, "sqe.op_id is 0");
	if (e->reserved)
		return text_fail(text, n, -EPROTO, "sqe.reserved is not 0");
	if (e->op == WIRE_OP_CANCEL)
		return e->target ? 0 : text_fail(text, n, -EPROTO, "sqe.target is 0 in a cancel");
	if (e->op == WIRE_OP_LAYERS)
		return check_layers(e, text, n);
	if (e->expected_back_s > UINT32_MAX ||
	    (e->expected_back_s && (e->op == WIRE_OP_NOP || e->priority)))
		return text_fail(text, n, -EPROTO,
				 "sqe.expected_back_s is %llu; must be below 2^32, and 0 in a nop "
				 "or beside a priority",
				 (unsigned long long)e->expected_back_s);
	if (e->op == WIRE_OP_NOP && (e->word || e->flags || e->groups))
		return text_fail(text, n, -EPROTO, "sqe.word, groups or flags of a nop is not 0");
	if (e->op == WIRE_OP_NOP)
		return e->n == 0 ? 0 :
				   text_fail(text, n, -EPROTO, "sqe.n is %u; a nop has none", e->n);
	if (check_order(e, text, n) || check_groups(e, text, n))
		return -EPROTO;
	return check_blocks(e, arena_blocks, text, n);
}
