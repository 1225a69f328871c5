/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_lookup.c - names into addresses. Contract and life of a look-up: redis_lookup.h.
 *
 * getaddrinfo() may block for as long as a name server pleases, so each look-up has a detached
 * thread that nobody ever waits for. There is at most one for each endpoint. Endpoints name other
 * endpoints, so all look-ups together are bounded. Configured endpoints have room beside that
 * bound.
 */
#include "redis_lookup.h"
#include "daemon/base/thread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct redis_lookup {
	char host[REDIS_ADDRESS_BYTES], port[REDIS_PORT_BYTES]; /* constant */
	/* guards the fields below. Take no locks while holding it */
	pthread_mutex_t lock;
	bool done, orphan;
	int n; /* addresses, or -errno */
	char address[REDIS_RESOLVED][REDIS_ADDRESS_BYTES];
	struct redis_lookup *next; /* abandoned look-ups; the I/O thread's, not guarded */
};

static void look_up_free(struct redis_lookup *l)
{
	(void)pthread_mutex_destroy(&l->lock);
	free(l);
}

static void format(const struct addrinfo *info, const char *port, char ret[REDIS_ADDRESS_BYTES])
{
	char host[INET6_ADDRSTRLEN] = "";

	if (info->ai_family == AF_INET6) {
		const struct sockaddr_in6 *in6 =
			(const struct sockaddr_in6 *)(const void *)info->ai_addr;

		(void)inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		(void)snprintf(ret, REDIS_ADDRESS_BYTES, "[%s]:%s", host, port);
	} else {
		const struct sockaddr_in *in =
			(const struct sockaddr_in *)(const void *)info->ai_addr;

		(void)inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		(void)snprintf(ret, REDIS_ADDRESS_BYTES, "%s:%s", host, port);
	}
}

static void *work(void *arg)
{
	const struct addrinfo hints = { .ai_family = AF_UNSPEC,
					.ai_socktype = SOCK_STREAM,
					.ai_flags = AI_ADDRCONFIG };
	struct redis_lookup *l = arg;
	struct addrinfo *all = NULL;
	const int error = getaddrinfo(l->host, l->port, &hints, &all);
	bool orphan;

	(void)pthread_mutex_lock(&l->lock);
	l->n = error == EAI_AGAIN ? -EAGAIN : -ENOENT;
	if (!error) {
		l->n = 0;
		for (const struct addrinfo *i = all; i && l->n < REDIS_RESOLVED; i = i->ai_next)
			if (i->ai_family == AF_INET || i->ai_family == AF_INET6)
				format(i, l->port, l->address[l->n++]);
		if (l->n == 0)
			l->n = -ENOENT;
	}
	l->done = true;
	orphan = l->orphan;
	(void)pthread_mutex_unlock(&l->lock);
	if (all)
		freeaddrinfo(all);
	if (orphan)
		look_up_free(l);
	return NULL;
}

int redis_lookup_start(struct redis_lookups *all, const char *address, uint32_t limit,
		       struct redis_lookup **ret)
{
	struct redis_lookup *l;
	int r;

	if (all->n >= limit)
		return -EAGAIN;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	(void)pthread_mutex_init(&l->lock, NULL);
	r = redis_address_split(address, l->host, l->port) ? thread_start(NULL, 0, work, l) :
							     -EINVAL;
	if (r) {
		look_up_free(l);
		return r;
	}
	all->n++;
	*ret = l;
	return 0;
}

int redis_lookup_poll(struct redis_lookups *all, struct redis_lookup *l,
		      char (*ret)[REDIS_ADDRESS_BYTES], uint32_t n)
{
	int found;

	(void)pthread_mutex_lock(&l->lock);
	found = l->done ? l->n : -EINPROGRESS;
	(void)pthread_mutex_unlock(&l->lock);
	if (found == -EINPROGRESS)
		return found;
	if (found > (int)n)
		found = (int)n;
	for (int i = 0; i < found; i++)
		memcpy(ret[i], l->address[i], REDIS_ADDRESS_BYTES);
	all->n--;
	look_up_free(l);
	return found;
}

void redis_lookup_abandon(struct redis_lookups *all, struct redis_lookup *l)
{
	if (!l)
		return;
	l->next = all->abandoned;
	all->abandoned = l;
}

void redis_lookups_reap(struct redis_lookups *all)
{
	struct redis_lookup **link = &all->abandoned;

	while (*link) {
		struct redis_lookup *l = *link;
		bool done;

		(void)pthread_mutex_lock(&l->lock);
		done = l->done;
		(void)pthread_mutex_unlock(&l->lock);
		if (!done) {
			link = &l->next;
			continue;
		}
		*link = l->next;
		all->n--;
		look_up_free(l);
	}
}

void redis_lookups_leave(struct redis_lookups *all)
{
	struct redis_lookup *l;

	while ((l = all->abandoned) != NULL) {
		bool done;

		all->abandoned = l->next;
		all->n--;
		(void)pthread_mutex_lock(&l->lock);
		l->orphan = true;
		done = l->done;
		(void)pthread_mutex_unlock(&l->lock);
		if (done)
			look_up_free(l);
	}
}
