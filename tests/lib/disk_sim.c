/* SPDX-License-Identifier: Apache-2.0 */
#include "disk_sim.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NEVER UINT64_MAX

enum { LATENCY_NS = 100000 };

static struct disk_sim *sim_of(struct nvme_medium *medium)
{
	return (struct disk_sim *)(void *)medium; /* its first member */
}

static uint64_t sim_now(struct nvme_medium *medium)
{
	return sim_of(medium)->time_ns;
}

static uint64_t sim_wall(struct nvme_medium *medium)
{
	return 1700000000 + sim_now(medium) / 1000000000;
}

/* Long work is done in the smallest steps. */
static bool sim_tired(struct nvme_medium *medium)
{
	(void)medium;
	return true;
}

/* Writes that ended by then are on the medium. */
static void write_back(struct disk_sim *sim, uint64_t ends)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < sim->n_writes; i++) {
		struct sim_write *w = sim->write[i];

		if (!w->ended || w->ended > ends) {
			sim->write[kept++] = w;
			continue;
		}
		memcpy(sim->durable + w->offset, w->data, w->bytes);
		free(w);
	}
	sim->n_writes = kept;
}

static struct sim_write *add_write(struct disk_sim *sim, const struct io_op *op)
{
	struct sim_write *w = malloc(sizeof(*w) + op->bytes);

	assert(w);
	if (sim->n_writes == SIM_UNSYNCED) /* a disk does not hold back for ever */
		write_back(sim, sim->ends - SIM_UNSYNCED / 2);
	assert(sim->n_writes < SIM_UNSYNCED);
	*w = (struct sim_write){ .offset = op->offset, .bytes = op->bytes };
	memcpy(w->data, op->buffer, op->bytes);
	sim->write[sim->n_writes++] = w;
	return w;
}

static enum sim_lie kind_of_lie(struct disk_sim *sim, const struct io_op *op, uint64_t nth)
{
	const bool chance = sim->lie_one_in && random_below(&sim->random, sim->lie_one_in) == 0;
	enum sim_lie lie = sim->lie;

	if (chance)
		lie = op->kind == IO_READ           ? SIM_STALE :
		      random_below(&sim->random, 2) ? SIM_LOST :
						      SIM_MISDIRECTED;
	else if (!sim->lie_nth || nth < sim->lie_nth)
		return SIM_LIES;
	if (op->kind == IO_FDATASYNC || (lie == SIM_STALE) != (op->kind == IO_READ))
		return SIM_LIES;
	if (!chance)
		sim->lie_nth = 0;
	sim->lies++;
	return lie;
}

/* Where a write goes instead: some page of the disk that has room for it. */
static uint64_t elsewhere(struct disk_sim *sim, uint32_t bytes)
{
	return (uint64_t)random_below(&sim->random,
				      (uint32_t)((sim->bytes - bytes) / IO_ALIGN + 1)) *
	       IO_ALIGN;
}

static int sim_submit(struct nvme_medium *medium, struct io_op *op)
{
	struct disk_sim *sim = sim_of(medium);
	const uint64_t nth = sim->submits + 1;
	enum sim_lie lie;

	if (sim->n_lent == sim->depth)
		return -EAGAIN;
	sim->submits = nth;
	if (nth == sim->refuse_nth)
		return sim->refuse_status;
	assert(op->state == IO_IDLE && op->done);
	if (op->kind != IO_FDATASYNC) {
		assert(op->bytes && op->bytes % IO_ALIGN == 0 && op->offset % IO_ALIGN == 0);
		assert((uintptr_t)op->buffer % IO_ALIGN == 0 &&
		       op->offset + op->bytes <= sim->bytes);
	}
	op->state = IO_STARTED;
	op->status = 0;
	if (nth == sim->fail_nth || (sim->fail_from && nth >= sim->fail_from))
		op->status = sim->fail_status;
	sim->lent[sim->n_lent].op = op;
	sim->lent[sim->n_lent].write = NULL;
	lie = kind_of_lie(sim, op, nth);
	sim->lent[sim->n_lent].stale = lie == SIM_STALE;
	sim->lent[sim->n_lent].ends = sim->ends;
	sim->lent[sim->n_lent].due_ns =
		nth == sim->stall_nth ? NEVER :
					sim->time_ns + 1 + random_below(&sim->random, LATENCY_NS);
	sim->n_lent++;
	if (op->kind == IO_WRITE && (!op->status || sim->fail_done) && lie != SIM_LOST)
		sim->lent[sim->n_lent - 1].write = add_write(sim, op);
	if (lie == SIM_MISDIRECTED && sim->lent[sim->n_lent - 1].write)
		sim->lent[sim->n_lent - 1].write->offset = elsewhere(sim, op->bytes);
	return 0;
}

void disk_sim_open(struct disk_sim *sim, uint64_t bytes, uint64_t seed)
{
	memset(sim, 0, sizeof(*sim));
	sim->medium.submit = sim_submit;
	sim->medium.now_ns = sim_now;
	sim->medium.wall_s = sim_wall;
	sim->medium.tired = sim_tired;
	sim->random.state = seed;
	sim->bytes = bytes;
	sim->depth = SIM_DEPTH;
	sim->time_ns = 1;
	sim->now = calloc(1, bytes);
	sim->durable = calloc(1, bytes);
	assert(sim->now && sim->durable);
}

void disk_sim_close(struct disk_sim *sim)
{
	for (uint32_t i = 0; i < sim->n_writes; i++)
		free(sim->write[i]);
	free(sim->now);
	free(sim->durable);
}

static void end_op(struct disk_sim *sim, uint32_t i)
{
	struct io_op *op = sim->lent[i].op;
	struct sim_write *write = sim->lent[i].write;
	const uint64_t ends = sim->lent[i].ends;
	const uint8_t *from = sim->lent[i].stale ? sim->durable : sim->now;

	sim->lent[i] = sim->lent[--sim->n_lent];
	sim->ends++;
	op->state = IO_IDLE;
	if (op->kind == IO_READ)
		memcpy(op->buffer, from + op->offset, op->bytes);
	if (op->kind == IO_READ && op->status)
		memset(op->buffer, 0xa5, op->bytes);
	if (write) {
		memcpy(sim->now + write->offset, write->data, op->bytes);
		write->ended = sim->ends;
	}
	sim->write_ends += op->kind == IO_WRITE;
	if (op->kind == IO_FDATASYNC && !op->status)
		write_back(sim, ends);
	op->done(op);
}

bool disk_sim_step(struct disk_sim *sim)
{
	uint32_t first = SIM_DEPTH;

	if (sim->power_off_after && sim->write_ends >= sim->power_off_after)
		return false;
	for (uint32_t i = 0; i < sim->n_lent; i++)
		if (sim->lent[i].due_ns != NEVER &&
		    (first == SIM_DEPTH || sim->lent[i].due_ns < sim->lent[first].due_ns))
			first = i;
	if (first == SIM_DEPTH)
		return false;
	if (sim->lent[first].due_ns > sim->time_ns)
		sim->time_ns = sim->lent[first].due_ns;
	end_op(sim, first);
	return true;
}

void disk_sim_unstall(struct disk_sim *sim)
{
	for (uint32_t i = 0; i < sim->n_lent; i++)
		if (sim->lent[i].due_ns == NEVER)
			sim->lent[i].due_ns = sim->time_ns + 1;
}

static void keep_sectors(struct disk_sim *sim, const struct sim_write *w)
{
	for (uint32_t at = 0; at < w->bytes; at += SIM_SECTOR)
		if (random_below(&sim->random, 2))
			memcpy(sim->durable + w->offset + at, w->data + at, SIM_SECTOR);
}

void disk_sim_crash(struct disk_sim *sim, enum sim_crash how)
{
	/* any order */
	for (uint32_t i = 0; how != SIM_KEEP_ALL && i + 1 < sim->n_writes; i++) {
		const uint32_t j = i + random_below(&sim->random, sim->n_writes - i);
		struct sim_write *swap = sim->write[i];

		sim->write[i] = sim->write[j];
		sim->write[j] = swap;
	}
	for (uint32_t i = 0; i < sim->n_writes; i++) {
		struct sim_write *w = sim->write[i];
		const bool keep = how == SIM_KEEP_ALL ?
					  w->ended != 0 :
					  how != SIM_DROP_ALL && random_below(&sim->random, 4);

		if (keep && how == SIM_TEAR_SECTORS && random_below(&sim->random, 2))
			keep_sectors(sim, w);
		else if (keep)
			memcpy(sim->durable + w->offset, w->data, w->bytes);
		free(w);
	}
	memcpy(sim->now, sim->durable, sim->bytes);
	sim->n_writes = sim->n_lent = 0;
	sim->power_off_after = 0;
}

void disk_sim_flip(struct disk_sim *sim, uint64_t offset, uint8_t bits)
{
	assert(offset < sim->bytes);
	sim->now[offset] ^= bits;
	sim->durable[offset] ^= bits;
}
