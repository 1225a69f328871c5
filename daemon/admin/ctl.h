/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.h - the admin socket: kvtierctl's questions that only the core can answer. Core thread only.
 *
 * SOCK_SEQPACKET. Request: one packet, NUL-separated words (command, arguments). Reply: packets
 * whose first byte is '+' (more follows), '.' (last), '!' (failed) or '~' (how far it is); the rest
 * is text, JSON or for '!' a sentence. The JSON text is that of the '+' and '.' packets together.
 * One request a connection at a time; the next may follow on the same.
 *
 * A command that takes long tells at least every CTL_PROGRESS_MS how far it is:
 * {"done":5,"total":9,"unit":"blocks"}; a total of 0 is not known. Each such packet starts the
 * deadlines of both sides anew.
 */
#ifndef KVTIER_CTL_H
#define KVTIER_CTL_H

#include <stdbool.h>
#include <stddef.h>

struct kvtierd;
struct ctl;

enum {
	CTL_MAX_REQUEST = 512, /* bytes; also at most CTL_MAX_WORDS words */
	CTL_MAX_WORDS = 18,
	CTL_MAX_REPLY = 60 * 1024, /* bytes of a packet */
	CTL_MAX_CONNECTIONS = 8,
	/* to ask, and again to take the whole reply; then the connection is cut */
	CTL_DEADLINE_MS = 5000,
	CTL_PROGRESS_MS = 500,
};

/* Listens at config->admin_path (replacing a socket that nobody answers) and joins d->loop. text
 * (>= 256 bytes) names the error. d->ctl may still be NULL while it is asked. */
int ctl_open(struct kvtierd *d, struct ctl **ret, char *text, size_t n);
/* Cuts all connections and listens no more. NULL is fine, in all three. */
void ctl_shutdown(struct ctl *ctl);
bool ctl_busy(const struct ctl *ctl); /* helpers still close its sockets */
void ctl_close(struct ctl *ctl);      /* it is shut down, or is now */

#endif
