/* SPDX-License-Identifier: Apache-2.0 */
/* front.c - see front.h. */
#include "front.h"

#include "daemon/kvtierd.h"

const char *front_tenant(const struct front *front)
{
	return front->d->config->socket_tenant;
}

void front_count(const struct front *front)
{
	stats_set(&front->d->stats->v.clients, front->n_alive);
}

void front_out_of_files(struct front *front)
{
	front->out_of_files_ns = loop_now(front->d->loop);
}

void front_conn_dying(struct front *front)
{
	front->n_alive--;
	front->n_dying++;
	front_count(front);
}
