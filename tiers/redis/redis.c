/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis.c - the Redis tier on the core thread: submit, cancel, complete, and questions. Contract:
 * redis.h; the instance, and the other thread: redis_io.h.
 *
 * Invariants
 *   R1 a job is in one list at a time, and the pool has max_in_flight jobs. So both mailboxes are
 *      bounded, and putting a job in cannot fail.
 *   R2 an xfer is completed from the loop, at most PER_ITERATION of them in one iteration: a
 *      thousand answers at once do not keep engines waiting. The mailbox is rung again while there
 *      are more.
 *
 * Core thread only.
 */
#include "redis.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/list.h"
#include "base/text.h"
#include "redis_io.h"
#include "redis_slots.h"
#include "redis_topology.h"
#include "tiers/redis/conn/redis_address.h"

enum { PER_ITERATION = 64, CONDEMNED_A_SECOND = 10 };

/* --- which endpoint, and whether it may be asked --- */

static const struct redis *redis_of_const(const struct tier *t)
{
	while (t->inner)
		t = t->inner;
	assert(t->ops == &redis_ops);
	return (const struct redis *)t; /* base is the first member */
}

static struct redis *redis_of(struct tier *t)
{
	return (struct redis *)(uintptr_t)redis_of_const(t);
}

static void name_of(const struct redis *r, const struct redis_seal *seal, const uint8_t key[32],
		    struct redis_name *ret)
{
	static const char digits[] = "0123456789abcdef";
	size_t n = strlen(r->key_prefix);

	memcpy(ret->text, r->key_prefix, n);
	memcpy(ret->text + n, seal->tag, sizeof(seal->tag));
	n += sizeof(seal->tag);
	ret->text[n++] = ':';
	for (size_t i = 0; i < 32; i++) {
		ret->text[n++] = digits[key[i] >> 4];
		ret->text[n++] = digits[key[i] & 15];
	}
	ret->text[n] = 0;
	ret->slot = redis_slot(ret->text, n);
	memcpy(ret->key, key, sizeof(ret->key));
}

static unsigned int flags_of(const struct redis *r, const struct redis_name *name)
{
	const int mode = atomic_load_explicit(&r->view->mode, memory_order_relaxed);
	uint32_t endpoint;

	if (r->closing || mode == REDIS_MODE_UNKNOWN)
		return 0;
	if (mode == REDIS_MODE_CLUSTER)
		endpoint = atomic_load_explicit(&r->view->slot[name->slot], memory_order_relaxed);
	else
		endpoint = redis_setup_endpoint(r->setup, name->key);
	return endpoint < REDIS_ALL_ENDPOINTS ?
		       atomic_load_explicit(&r->view->flags[endpoint], memory_order_relaxed) :
		       0;
}

static bool has_flag(const struct tier *t, const struct tier_name *name, unsigned int flag)
{
	const struct redis *r = redis_of_const(t);
	struct redis_name text;

	name_of(r, name->seal, name->key, &text);
	return flags_of(r, &text) & flag;
}

static bool readable(const struct tier *t, const struct tier_name *name)
{
	return has_flag(t, name, REDIS_TAKES_READS);
}

static bool writable(const struct tier *t, const struct tier_name *name)
{
	return has_flag(t, name, REDIS_MAY_STORE);
}

/* --- from the core to the I/O thread --- */

/* A write has no identity: the image's header says which block it is. A damaged header must not
 * reach other nodes. */
static int look_at_image(const struct xfer *x, struct image_identity *ret,
			 struct image_shape *ret_shape)
{
	const struct image_header *header = (const struct image_header *)(const void *)x->buffer;
	struct image_geometry geometry;

	if (x->bytes < sizeof(*header))
		return -EINVAL;
	memcpy(ret->key, header->key, sizeof(ret->key));
	memcpy(ret->space_id, header->space_id, sizeof(ret->space_id));
	image_header_geometry(header, &geometry);
	if (image_header_check(header, &geometry, ret, ret_shape) ||
	    ret_shape->image_bytes > x->bytes)
		return -EINVAL;
	return 0;
}

static void job_fill(const struct redis *r, struct redis_job *job, struct xfer *x)
{
	job->xfer = x;
	job->op = x->op;
	job->seal = x->seal;
	job->buffer = x->buffer;
	job->codec = x->op == XFER_WRITE ? x->codec : 0;
	job->deadline_ns = loop_now(r->loop) + (uint64_t)r->timeout_ms * 1000000;
	atomic_store_explicit(&job->cancelled, false, memory_order_relaxed);
	job->value = (struct redis_value){ .identity = x->identity,
					   .geometry = x->geometry,
					   .seal = x->seal,
					   .buffer = x->buffer,
					   .room = x->bytes };
}

static void ask(struct redis *r, struct redis_job *job)
{
	struct mails one;

	mails_clear(&one);
	mails_append(&one, &job->mail);
	mailbox_post(&r->mail.asked, &one);
}

static int redis_submit(struct tier *t, struct xfer *x)
{
	struct redis *r = redis_of(t);
	struct redis_job *job;
	struct image_shape shape = { 0 };
	struct image_identity identity;
	struct redis_name name;
	unsigned int flags;

	loop_assert_core(r->loop);
	assert(x->seal);
	if (x->op == XFER_WRITE) {
		if (look_at_image(x, &identity, &shape))
			return -EINVAL;
	} else {
		assert(x->identity && (x->geometry || x->op == XFER_PROBE));
		identity = *x->identity;
	}
	name_of(r, x->seal, identity.key, &name);
	flags = flags_of(r, &name);
	if (!(flags & REDIS_TAKES_READS))
		return -ENODEV;
	if (x->op == XFER_WRITE && !(flags & REDIS_MAY_STORE))
		return -EROFS;
	job = redis_job_take(&r->free_jobs);
	if (!job)
		return -EAGAIN;
	job_fill(r, job, x);
	job->name = name;
	job->shape = shape;
	r->lent[job - r->jobs] = x;
	ask(r, job);
	return 0;
}

static void redis_cancel(struct tier *t, struct xfer *x)
{
	struct redis *r = redis_of(t);
	uint32_t i = 0;

	while (i < r->max_in_flight && r->lent[i] != x)
		i++;
	assert(i < r->max_in_flight);
	if (atomic_exchange(&r->jobs[i].cancelled, true))
		return;
	if (!atomic_exchange(&r->mail.any_cancelled, true))
		mailbox_ring(&r->mail.asked);
}

/* Whether one more value may be hashed now. There is a limit, as an endpoint that lies would have
 * us hash every byte that it sends. */
static bool may_condemn(struct redis *r)
{
	const uint64_t now = loop_now(r->loop);
	bool room;

	if (now >= r->condemn_ns + 1000000000) {
		r->condemn_ns = now;
		r->n_hashed = 0;
	}
	(void)pthread_mutex_lock(&r->mail.lock);
	room = r->mail.n_condemned < REDIS_CONDEMNED;
	(void)pthread_mutex_unlock(&r->mail.lock);
	return room && r->n_hashed++ < CONDEMNED_A_SECOND;
}

/* To hash a value takes about a millisecond for a MiB. So at most CONDEMNED_A_SECOND are hashed;
 * others stay until they are found bad again, as they do where EVAL is refused. */
static void redis_condemn(struct tier *t, const struct redis_seal *seal, const uint8_t *image,
			  uint32_t bytes)
{
	/* it is only read */
	const struct xfer x = { .buffer = (uint8_t *)(uintptr_t)image, .bytes = bytes };
	struct redis *r = redis_of(t);
	struct redis_condemned what = { 0 };
	struct image_identity identity;
	struct image_shape shape;
	bool first;

	(void)atomic_fetch_add(&r->condemned_total, 1);
	/* then the value stays, and is found bad again */
	if (look_at_image(&x, &identity, &shape) || !may_condemn(r))
		return;
	name_of(r, seal, identity.key, &what.name);
	what.length = shape.packed_bytes + REDIS_SEAL_BYTES;
	what.part = REDIS_PART_IMAGE;
	redis_image_sha1(image, &shape, what.sha1);
	(void)pthread_mutex_lock(&r->mail.lock);
	first = r->mail.n_condemned == 0;
	/* only we add: there still is room */
	r->mail.condemned[r->mail.n_condemned++] = what;
	(void)pthread_mutex_unlock(&r->mail.lock);
	if (first)
		mailbox_ring(&r->mail.asked);
}

/* --- and back --- */

static void complete(struct redis *r, struct redis_job *job, int status)
{
	struct xfer *x = job->xfer;

	if (job->value.geometry && (status == 0 || status == -EFBIG))
		x->bytes = job->value.bytes;
	if (!job->lesser)
		x->codec = 0;
	r->lent[job - r->jobs] = NULL;
	job->xfer = NULL;
	mails_append(&r->free_jobs, &job->mail);
	tier_complete(x, status);
}

static void on_answered(struct loop_watch *watch, uint32_t events)
{
	struct redis *r = container_of(watch, struct redis, answered_watch);
	struct redis_job *job;

	(void)events;
	mailbox_hear(&r->mail.answered);
	mailbox_take(&r->mail.answered, &r->arrived);
	for (int i = 0; i < PER_ITERATION && (job = redis_job_take(&r->arrived)) != NULL; i++)
		complete(r, job, job->status);
	if (r->arrived.n > 0)
		mailbox_ring(&r->mail.answered);
	if (atomic_exchange(&r->mail.changed, false) && r->events.changed)
		r->events.changed(r->events.arg);
}

/* --- figures and rows --- */

static enum tier_state redis_state(const struct tier *t)
{
	return (enum tier_state)atomic_load(&redis_of_const(t)->view->state);
}

void redis_status(const struct tier *t, struct redis_tier_status *ret)
{
	const struct redis *r = redis_of_const(t);

	(void)pthread_mutex_lock(&r->view->lock);
	*ret = r->view->status;
	(void)pthread_mutex_unlock(&r->view->lock);
	ret->counters.corrupt_total += atomic_load(&r->condemned_total);
}

bool redis_endpoint_row(const struct tier *t, uint32_t i, struct redis_endpoint_row *ret)
{
	const struct redis *r = redis_of_const(t);
	bool there;

	(void)pthread_mutex_lock(&r->view->lock);
	there = i < r->view->n_rows;
	if (there)
		*ret = r->view->rows[i];
	(void)pthread_mutex_unlock(&r->view->lock);
	return there;
}

bool redis_change(struct tier *t, struct redis_setup *setup)
{
	struct redis *r = redis_of(t);
	const bool changes = !redis_setup_same(r->setup, setup);

	if (changes) {
		r->setup = setup;
		setup = atomic_exchange(&r->mail.setup, setup);
	}
	redis_setup_free(setup); /* the one that was not taken over */
	return changes;
}

/* --- open and close --- */

/* The thread is gone: all jobs are ours. */
static void end_all(struct redis *r)
{
	struct redis_job *job;
	struct mails asked;

	if (!r->jobs)
		return;
	mails_clear(&asked);
	mailbox_take(&r->mail.asked, &asked);
	while ((job = redis_job_take(&asked)) != NULL)
		job->phase = REDIS_IDLE; /* its phase is of the xfer before it */
	for (uint32_t i = 0; i < r->max_in_flight; i++)
		if (r->jobs[i].xfer)
			complete(r, &r->jobs[i],
				 r->jobs[i].phase == REDIS_ENDED ? r->jobs[i].status : -ECANCELED);
	assert(r->base.in_flight == 0);
}

static void redis_close(struct tier *t)
{
	struct redis *r = (struct redis *)t;

	if (!r)
		return;
	r->closing = true;
	if (r->threaded)
		redis_io_stop(r);
	if (r->watching)
		loop_remove(r->loop, &r->answered_watch);
	end_all(r);
	mailbox_close(&r->mail.asked);
	mailbox_close(&r->mail.answered);
	(void)pthread_mutex_destroy(&r->mail.lock);
	if (r->view)
		(void)pthread_mutex_destroy(&r->view->lock);
	free(r->view);
	redis_setup_free(atomic_load(&r->mail.setup));
	redis_setup_free(r->io ? r->io->setup : NULL);
	free(r->io);
	free(r->jobs);
	free((void *)r->lent);
	free(r);
}

static void configure(struct redis *r, const struct redis_tier_conf *c)
{
	/* the daemon sets these, and [redis] timeout_ms has a range */
	assert(c->connections > 0 && c->connections <= REDIS_CONNECTIONS);
	assert(c->timeout_ms > 0 && c->max_in_flight > 0 && c->max_in_flight <= 65536);
	if (c->key_prefix)
		memcpy(r->key_prefix, c->key_prefix, strlen(c->key_prefix) + 1);
	r->ttl_ms = c->ttl_ms;
	r->compress = c->compress;
	r->connections = c->connections;
	r->timeout_ms = c->timeout_ms;
	r->base.patience_ns = (uint64_t)c->timeout_ms * 1000000;
	r->max_in_flight = c->max_in_flight;
	r->events = c->events;
}

/* All that the thread uses from its first iteration on. */
static int reserve(struct redis *r)
{
	const int asked = mailbox_open(&r->mail.asked), answered = mailbox_open(&r->mail.answered);

	(void)pthread_mutex_init(&r->mail.lock, NULL);
	mails_clear(&r->arrived);
	mails_clear(&r->free_jobs);
	if (asked || answered)
		return asked ? asked : answered;
	r->view = calloc(1, sizeof(*r->view));
	if (!r->view)
		return -ENOMEM;
	(void)pthread_mutex_init(&r->view->lock, NULL);
	r->io = calloc(1, sizeof(*r->io));
	r->jobs = calloc(r->max_in_flight, sizeof(*r->jobs));
	r->lent = (struct xfer **)calloc(r->max_in_flight, sizeof(*r->lent));
	if (!r->io || !r->jobs || !r->lent)
		return -ENOMEM;
	for (uint32_t i = 0; i < r->max_in_flight; i++)
		mails_append(&r->free_jobs, &r->jobs[i].mail);
	return 0;
}

static int redis_open(const struct tier_conf *conf, struct loop *loop, struct tier **ret,
		      char *text, size_t n)
{
	struct redis_setup *setup;
	struct redis *r;
	int err = redis_setup_new(conf->redis, &setup, text, n);

	if (err)
		return err;
	r = calloc(1, sizeof(*r));
	if (!r) {
		redis_setup_free(setup);
		return text_fail(text, n, -ENOMEM, "[redis] not enough memory");
	}
	r->base.ops = &redis_ops;
	r->loop = loop;
	r->setup = setup;
	atomic_store(&r->mail.setup, setup); /* the I/O thread takes it over */
	configure(r, conf->redis);
	err = reserve(r);
	if (!err) {
		r->answered_watch =
			(struct loop_watch){ .fd = r->mail.answered.fd, .ready = on_answered };
		err = loop_add(loop, &r->answered_watch, EPOLLIN);
		r->watching = !err;
	}
	if (!err)
		err = redis_io_start(r);
	if (err) {
		redis_close(&r->base);
		return text_fail(text, n, err, "[redis] cannot start: %s", strerror(-err));
	}
	*ret = &r->base;
	return 0;
}

const struct tier_ops redis_ops = {
	.id = TIER_REDIS,
	.caps = TIER_CAP_KEYED,
	.open = redis_open,
	.close = redis_close,
	.submit = redis_submit,
	.cancel = redis_cancel,
	.state = redis_state,
	.readable = readable,
	.writable = writable,
	.condemn = redis_condemn,
};
