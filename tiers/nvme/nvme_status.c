/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_status.c - the NVMe tier as operators see it: sums, a row a disk, what is wrong. Contract: nvme.h. Core thread
 * only.
 */
#include "nvme.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "nvme_tier.h"

static void add_log(struct nvme_counters *sum, const struct nvme_counters *c)
{
	uint64_t *to = (uint64_t *)(void *)sum;
	const uint64_t *from = (const uint64_t *)(const void *)c;

	static_assert(sizeof(*c) % sizeof(uint64_t) == 0, "nothing but uint64_t");
	for (size_t i = 0; i < sizeof(*c) / sizeof(*from); i++)
		to[i] += from[i];
}

static void add_io(struct io_counters *sum, const struct io_counters *c)
{
	sum->reads_total += c->reads_total;
	sum->writes_total += c->writes_total;
	sum->syncs_total += c->syncs_total;
	sum->read_bytes_total += c->read_bytes_total;
	sum->written_bytes_total += c->written_bytes_total;
	sum->errors_total += c->errors_total;
	sum->short_total += c->short_total;
	sum->retries_total += c->retries_total;
	sum->reads_lent += c->reads_lent;
	sum->writes_lent += c->writes_lent;
	sum->reads_in_disk += c->reads_in_disk;
	sum->writes_in_disk += c->writes_in_disk;
	sum->oldest_ns = c->oldest_ns > sum->oldest_ns ? c->oldest_ns : sum->oldest_ns;
}

static void fill_row(const struct nvme_disk *d, struct nvme_disk_row *ret)
{
	memset(ret, 0, sizeof(*ret));
	(void)snprintf(ret->path, sizeof(ret->path), "%s", d->path);
	(void)snprintf(ret->text, sizeof(ret->text), "%s", d->text);
	ret->state = d->state;
	ret->for_good = d->for_good;
	if (d->log) {
		ret->capacity_bytes = nvme_log_capacity(d->log);
		ret->live_bytes = nvme_log_live_bytes(d->log);
		ret->segment_bytes = nvme_log_segment_bytes(d->log);
		nvme_log_counters(d->log, &ret->log);
	}
	if (d->io)
		io_counters(d->io, &ret->io);
}

bool nvme_row(const struct tier *base, uint32_t i, struct nvme_disk_row *ret)
{
	const struct nvme *t = nvme_of(base);

	if (i >= t->n)
		return false;
	fill_row(&t->disks[i], ret);
	return true;
}

/* io_uring may be refused for one disk and not for the next: memory that may be locked runs out. */
static const char *engine_name(const struct nvme *t)
{
	const char *name = "none", *its;

	for (uint32_t i = 0; i < t->n; i++) {
		its = t->disks[i].io ? io_engine_name(t->disks[i].io) : name;
		if (strcmp(name, "none") && strcmp(its, name))
			return "io_uring+threads";
		name = its;
	}
	return name;
}

/* "PATH: why" of the first that is not up. */
static void status_text(const struct nvme *t, char *ret, size_t n)
{
	ret[0] = '\0';
	for (uint32_t i = 0; i < t->n && !ret[0]; i++)
		if (t->disks[i].text[0])
			(void)snprintf(ret, n, "%s: %s", t->disks[i].path, t->disks[i].text);
	for (uint32_t i = 0; i < t->n && !ret[0]; i++)
		if (t->disks[i].io)
			(void)snprintf(ret, n, "%s", io_note(t->disks[i].io));
}

void nvme_status(const struct tier *base, struct nvme_tier_status *ret)
{
	const struct nvme *t = nvme_of(base);
	uint32_t percent = 0, logs = 0;

	memset(ret, 0, sizeof(*ret));
	ret->engine = engine_name(t);
	ret->disks = t->n;
	status_text(t, ret->text, sizeof(ret->text));
	for (uint32_t i = 0; i < t->n; i++) {
		const struct nvme_disk *d = &t->disks[i];
		struct nvme_disk_row row;

		fill_row(d, &row);
		add_log(&ret->log, &row.log);
		add_io(&ret->io, &row.io);
		ret->quarantined = ret->quarantined || d->quarantined;
		ret->usable += nvme_disk_readable(d);
		ret->stalls_total += d->stalls_total;
		ret->recovery_ns = d->recovery_ns > ret->recovery_ns ? d->recovery_ns : ret->recovery_ns;
		logs += d->log != NULL;
		percent += d->log ? nvme_log_budget_percent(d->log) : 0;
	}
	ret->budget_percent = logs ? percent / logs : 100;
	memcpy(ret->residency, ret->log.residency, sizeof(ret->residency));
}
