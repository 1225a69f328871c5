/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_connect.h - a connection (redis_row.h) on its way up to UP: address, socket, TLS, AUTH. On
 * the thread of its loop.
 */
#ifndef KVTIER_REDIS_CONNECT_H
#define KVTIER_REDIS_CONNECT_H

struct redis_conn;
struct redis_conn_conf;

/* Keeps the secrets, and begins to connect. A connection that is refused at once: 0, and `why` says
 * so. -EINVAL, -ENOMEM, -errno of socket(). */
int redis_connect_begin(struct redis_conn *c, const struct redis_conn_conf *conf);
/* CONNECTING, SECURING: the socket has something to say */
void redis_connect_ready(struct redis_conn *c);

#endif
