/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_resolve.c - addresses: what they look like, and names turned into numbers. getaddrinfo()
 * may block for as long as a name server pleases, so each look-up has a thread of its own,
 * detached, that nobody ever waits for. There is at most one for each endpoint, and because
 * endpoints come and go at another endpoint's word, REDIS_LOOKUPS in all, those included that
 * nobody wants any more; the configured endpoints have as much again for themselves.
 *
 *	start ──> running ──thread──> done ──poll──> freed
 *	             └──abandon──> in the list ──thread──> done ──reap──> freed
 *	                                └──leave──> orphan ──thread──> freed by the thread
 *
 * All but the threads: I/O thread only.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tiers/redis/redis_inner.h"

struct redis_lookup {
	char host[REDIS_ADDRESS_BYTES], port[8];	/* constant */
	/* guards what follows. Take no locks while holding this one */
	pthread_mutex_t lock;
	bool done, orphan;
	int n;					/* addresses, or -errno */
	char address[REDIS_RESOLVED][REDIS_ADDRESS_BYTES];
	struct redis_lookup *next;		/* abandoned; the I/O thread's, not the lock's */
};

static const char unix_prefix[] = "unix:/";

static bool is_path(const char *address)
{
	return strncmp(address, unix_prefix, sizeof unix_prefix - 1) == 0;
}

/* "host:port" or "[host]:port" into its parts; the port in digits, 1 to 65535. */
static bool split(const char *address, char host[REDIS_ADDRESS_BYTES], char port[8])
{
	const char *colon = strrchr(address, ':');
	size_t n = colon ? (size_t)(colon - address) : 0;
	unsigned int number = 0;

	if (n == 0 || n >= REDIS_ADDRESS_BYTES || strlen(colon + 1) - 1 > 4)
		return false;
	for (const char *p = colon + 1; *p; p++) {
		if (*p < '0' || *p > '9')
			return false;
		number = number * 10 + (unsigned int)(*p - '0');
	}
	if (number == 0 || number > 65535)
		return false;
	if (address[0] == '[' && n > 2 && address[n - 1] == ']') {
		address++;
		n -= 2;
	} else if (memchr(address, ':', n)) {
		return false;	/* v6 without brackets: nobody knows where its port begins */
	}
	memcpy(host, address, n);
	host[n] = 0;
	(void)snprintf(port, 8, "%u", number);
	return true;
}

bool redis_address_valid(const char *address)
{
	char host[REDIS_ADDRESS_BYTES], port[8];

	if (!address || strlen(address) >= REDIS_ADDRESS_BYTES)
		return false;
	if (is_path(address))
		return strlen(address + 5) < sizeof ((struct sockaddr_un *)NULL)->sun_path;
	return split(address, host, port);
}

void redis_address_host(const char *address, char ret[REDIS_ADDRESS_BYTES])
{
	char port[8];

	if (is_path(address) || !split(address, ret, port))
		ret[0] = 0;
}

bool redis_is_numeric(const char *address)
{
	char host[REDIS_ADDRESS_BYTES], port[8];
	struct in6_addr binary;

	if (is_path(address))
		return true;
	return split(address, host, port) &&
	       (inet_pton(AF_INET, host, &binary) == 1 || inet_pton(AF_INET6, host, &binary) == 1);
}

/* --- look-ups --- */

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

		(void)inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
		(void)snprintf(ret, REDIS_ADDRESS_BYTES, "[%s]:%s", host, port);
	} else {
		const struct sockaddr_in *in =
			(const struct sockaddr_in *)(const void *)info->ai_addr;

		(void)inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
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

/* Signals are the core thread's business. */
static int start_detached(struct redis_lookup *l)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;
	int error;

	(void)pthread_attr_init(&attributes);
	(void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, &attributes, work, l);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)pthread_attr_destroy(&attributes);
	return -error;
}

int redis_lookup_start(struct redis_lookups *all, const char *address, bool seed,
		       struct redis_lookup **ret)
{
	struct redis_lookup *l;
	int r;

	if (all->n >= REDIS_LOOKUPS + (seed ? REDIS_ENDPOINTS : 0))
		return -EAGAIN;
	l = calloc(1, sizeof *l);
	if (!l)
		return -ENOMEM;
	(void)pthread_mutex_init(&l->lock, NULL);
	r = split(address, l->host, l->port) ? start_detached(l) : -EINVAL;
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
