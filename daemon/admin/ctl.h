/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.h - the admin socket, which answers those questions of kvtierctl that only the core thread
 * can answer. Core thread only.
 *
 * SOCK_SEQPACKET. Request: one packet, NUL-separated words (command, arguments). Reply: packets
 * whose first byte is '+' (more follows), '.' (last), '!' (failed), '?' (the words make no
 * request), '~' (how far it is) or '=' (bytes of a file); the rest is JSON, or for '!' and '?' a
 * sentence, or the bytes. The JSON text is that of the '+' and '.' packets together. One request a
 * connection at a time; the next may follow on the same.
 *
 * A command that takes long says at least every CTL_PROGRESS_MS how far it is, in a '~' packet such
 * as {"done":5,"total":9,"unit":"blocks"}. A total of 0 means that it is not known. Each such
 * packet, and each of bytes, starts the deadlines of both sides anew.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct kvtierd;
struct ctl;

enum {
	CTL_MAX_REQUEST = 512, /* bytes; also at most CTL_MAX_WORDS words */
	CTL_MAX_WORDS = 18,
	CTL_MAX_REPLY = 60 * 1024, /* bytes of a packet */
	CTL_MAX_CONNECTIONS = 8,
	/* an asker has this long to ask, and again to take the whole reply; then it is cut off */
	CTL_DEADLINE_MS = 5000,
	CTL_PROGRESS_MS = 500,
};

/* Listens at config->admin_path and joins d->loop. A socket that is there, and at which no process
 * answers, is replaced. text (>= 256 bytes) names the error. Requests may come before d->ctl is
 * set. */
int ctl_open(struct kvtierd *d, struct ctl **ret, char *text, size_t n);
/* Cuts all connections and stops listening. ctl may be NULL here and in ctl_close(). */
void ctl_shutdown(struct ctl *ctl);
void ctl_close(struct ctl *ctl); /* shuts it down first, if it was not shut down */
