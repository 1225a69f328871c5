/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c - how a client stands. As a sentence: whether it has its daemon, and whether this
 * process waits for a daemon that stands still and may still touch its pages. And the tiers that
 * its daemon has.
 */
#include <inttypes.h>
#include <stdio.h>

#include "check.h"
#include "client.h"
#include "clock.h"
#include "error.h"
#include "lent.h"
#include "session.h"

/* Control held. */
static int say_session(const struct kvtier_client *c, char *ret, size_t n)
{
	if (c->state == SESSION_UP)
		return snprintf(ret, n, "connected to %s", c->path);
	if (c->state == SESSION_GREETING)
		return snprintf(ret, n, "connecting to %s", c->path);
	return snprintf(ret, n, "not connected: %s", c->text);
}

static int say_lent(const struct lent_wait *wait, char *ret, size_t n)
{
	if (wait->pages == 0)
		return 0;
	return snprintf(ret, n,
			"; waits for kvtierd (pid %" PRId32 ") to answer or end: %" PRIu64
			" pages are lent still over %" PRIu32 " cut connection%s (systemd ends a "
			"kvtierd that stands still for 30 s)",
			wait->pid, wait->pages, wait->connections,
			wait->connections == 1 ? "" : "s");
}

int kvtier_tiers(struct kvtier_client *c)
{
	const int rc = client_check(c);

	return rc ? rc : (int)atomic_load(&c->tiers);
}

int kvtier_status(struct kvtier_client *c, char *ret, size_t n)
{
	const int rc = client_check(c);
	struct lent_wait wait;
	int length;

	if (rc)
		return rc;
	if (!ret || !n)
		return error_set(-EINVAL, "ret must not be NULL, nor n 0");
	lent_wait(&wait);
	(void)pthread_mutex_lock(&c->control);
	session_advance(c, client_now());
	length = say_session(c, ret, n);
	(void)pthread_mutex_unlock(&c->control);
	if ((size_t)length < n)
		length += say_lent(&wait, ret + length, n - (size_t)length);
	return (size_t)length < n ? 0 : error_set(-ENOSPC, "the sentence has %d bytes", length);
}
