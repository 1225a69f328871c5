/* SPDX-License-Identifier: Apache-2.0 */
/* fd_store.c - see fd_store.h. */
#include "fd_store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "notify.h"

enum { FIRST = 3, FDS_MOST = 1 << 16 };

/* A number from the environment; 0: none, or more than `most`. */
static unsigned long number(const char *variable, unsigned long most)
{
	const char *text = getenv(variable);
	unsigned long ret;
	char *end;

	if (!text || text[0] < '0' || text[0] > '9')
		return 0;
	ret = strtoul(text, &end, 10);
	return *end == '\0' && ret <= most ? ret : 0;
}

/* The next of the names, with ':' between. */
static void next_name(const char **names, char ret[FD_STORE_NAME])
{
	const size_t n = *names ? strcspn(*names, ":") : 0;

	ret[0] = '\0';
	if (!*names)
		return;
	if (n < FD_STORE_NAME) {
		memcpy(ret, *names, n);
		ret[n] = '\0';
	}
	*names = (*names)[n] == ':' ? *names + n + 1 : NULL;
}

void fd_store_open(struct fd_store *store, const struct notify *notify)
{
	const bool ours = number("LISTEN_PID", 1ul << 31) == (unsigned long)getpid();
	const int n = ours ? (int)number("LISTEN_FDS", FDS_MOST) : 0;
	const char *names = getenv("LISTEN_FDNAMES");

	*store = (struct fd_store){ .notify = notify };
	for (int i = 0; i < n; i++) {
		char name[FD_STORE_NAME];
		const int fd = FIRST + i;

		if (fcntl(fd, F_SETFD, FD_CLOEXEC))
			break; /* it is not open */
		next_name(&names, name);
		if (name[0] && store->n < FD_STORE_MOST) {
			memcpy(store->given[store->n].name, name, sizeof(name));
			store->given[store->n++].fd = fd;
		} else {
			(void)close(fd);
		}
	}
	(void)unsetenv("LISTEN_PID");
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("LISTEN_FDNAMES");
}

bool fd_store_can_keep(const struct fd_store *store)
{
	return store->notify && store->notify->fd >= 0;
}

/* Order does not matter. */
static int remove_at(struct fd_store *store, uint32_t i)
{
	const int fd = store->given[i].fd;

	store->given[i] = store->given[--store->n];
	return fd;
}

int fd_store_take(struct fd_store *store, const char *name)
{
	for (uint32_t i = 0; i < store->n; i++)
		if (strcmp(store->given[i].name, name) == 0)
			return remove_at(store, i);
	return -1;
}

/* FDPOLL=0: else the manager drops a descriptor that polls as hung up. */
int fd_store_keep(const struct fd_store *store, const char *name, int fd)
{
	char lines[FD_STORE_NAME + 32];

	(void)snprintf(lines, sizeof(lines), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
	return notify_send_fd(store->notify, lines, fd);
}

void fd_store_drop(const struct fd_store *store, const char *name)
{
	char lines[FD_STORE_NAME + 32];

	(void)snprintf(lines, sizeof(lines), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	(void)notify_send(store->notify, lines);
}

void fd_store_settle(struct fd_store *store)
{
	if (store->n > 0)
		log_info("%u descriptors that were kept for this daemon are of no use to it",
			 store->n);
	while (store->n > 0) {
		fd_store_drop(store, store->given[store->n - 1].name);
		(void)close(remove_at(store, store->n - 1));
	}
}
