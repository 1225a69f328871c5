/* SPDX-License-Identifier: Apache-2.0 */
/* spaces.h - the spaces of a client. Control held. */
#ifndef KVTIER_LIB_SPACES_H
#define KVTIER_LIB_SPACES_H

struct kvtier_client;
struct kvtier_space;
struct packet;

void space_free(struct kvtier_space *space); /* NULL is fine */
/* takes the space off the client's list */
void space_unlist(struct kvtier_client *c, const struct kvtier_space *space);
/* Nobody waits for the space any more. It is closed at the daemon, by answers that may come late,
 * and freed after that: the caller looks at it no more. */
void space_orphan(struct kvtier_client *c, struct kvtier_space *space);
/* Sends the messages that are due. -errno: the connection is lost. */
int spaces_advance(struct kvtier_client *c);
void spaces_lost(struct kvtier_client *c);
/* A reply to one of the spaces' requests: 0, or -EPROTO with kvtier_last_error(). */
int spaces_reply(struct kvtier_client *c, const struct packet *packet);

#endif
