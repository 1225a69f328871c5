/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refusal.c - see refusal.h.
 */
#include "refusal.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/kvtierd.h"

static const struct {
	const char *name, *remedy;
	size_t counter; /* in struct stats_values */
} reasons[REFUSAL_REASON_COUNT] = {
#define REASON(name, remedy) \
	{ #name, remedy, offsetof(struct stats_values, refused_##name##_total) },
	REFUSAL_REASONS(REASON)
#undef REASON
};

const char *refusal_reason_name(enum refusal_reason reason)
{
	return reasons[reason].name;
}

void refusal_copy_name(const char *from, size_t n, char *ret)
{
	for (size_t i = 0; i < n && from[i] != '\0' && from[i] != '\n'; i++)
		ret[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
}

/* The name that the process has itself, which is short. It stays "" where /proc does not show this
 * daemon other users' processes. */
static void process_name(pid_t pid, char ret[WIRE_NAME_BYTES])
{
	char path[64], name[32] = "";
	int fd;

	snprintf(path, sizeof(path), "/proc/%ld/comm", (long)pid);
	fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	if (read(fd, name, sizeof(name) - 1) > 0)
		refusal_copy_name(name, sizeof(name) - 1, ret);
	(void)close(fd);
}

void refusals_add(struct refusals *all, const struct refusal *refusal)
{
	struct refusal new = *refusal, *at = all->rows;
	bool again;

	while (at < all->rows + REFUSALS - 1 && at->at_ns != 0 &&
	       !(at->pid == new.pid && at->uid == new.uid))
		at++;
	again = at->at_ns != 0 && at->pid == new.pid && at->uid == new.uid;
	new.times = again ? at->times + 1 : 1;
	if (new.name[0] == '\0' && again)
		memcpy(new.name, at->name, sizeof(new.name));
	else if (new.name[0] == '\0')
		process_name(new.pid, new.name);
	memmove(&all->rows[1], &all->rows[0], (size_t)(at - all->rows) * sizeof(all->rows[0]));
	all->rows[0] = new;
}

void refusals_count(struct stats *stats, enum refusal_reason reason)
{
	stats_add(&stats->v.clients_refused_total, 1);
	stats_add((uint64_t *)(void *)((char *)&stats->v + reasons[reason].counter), 1);
}

const struct refusal *refusals_at(const struct refusals *all, uint32_t i, uint64_t now_ns)
{
	if (i >= REFUSALS || all->rows[i].at_ns == 0 ||
	    now_ns - all->rows[i].at_ns >= REFUSALS_KEPT_NS)
		return NULL;
	return &all->rows[i];
}

void refusals_text(const struct refusals *all, uint64_t now_ns, char *ret, size_t n)
{
	const struct refusal *last = refusals_at(all, 0, now_ns);
	uint32_t processes = 0;

	ret[0] = '\0';
	if (!last)
		return;
	while (refusals_at(all, processes, now_ns))
		processes++;
	snprintf(ret, n, "%u process%s in ten minutes; the last: pid %ld, user %u%s%.31s: %s: %s%s",
		 processes, processes > 1 ? "es" : "", (long)last->pid, (unsigned)last->uid,
		 last->name[0] ? ", " : "", last->name, reasons[last->reason].name, last->why,
		 reasons[last->reason].remedy);
}
