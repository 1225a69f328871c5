/* SPDX-License-Identifier: Apache-2.0 */
/* front.c - see front.h. */
#include "front.h"

#include <sys/socket.h>

#include "daemon/kvtierd.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

const char *front_tenant(const struct front *front)
{
	return front->d->config->socket_tenant;
}

void front_let_fds_in(int fd)
{
	const int on = 1;

	(void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof(on));
}

void front_count(const struct front *front)
{
	stats_set(&front->d->stats->v.clients, front->n_alive);
}

void front_conn_dying(struct front *front)
{
	front->n_alive--;
	front->n_dying++;
	front_count(front);
}
