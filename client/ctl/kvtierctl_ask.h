/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_ask.h - asks the daemon over its admin socket (protocol: daemon/admin/ctl.h).
 */
#ifndef KVTIERCTL_ASK_H
#define KVTIERCTL_ASK_H

#include <stddef.h>

struct context;

struct reply {
	char *text; /* NUL-terminated; the caller frees it, also after a failure */
	size_t bytes;
};
/* words[0]: the command. EXIT_FINE with the whole text, or the exit status, with the reason on
 * stderr. */
int ask(const struct context *context, int argc, const char *const *words, struct reply *reply);
/* To stderr: that the daemon does not answer, and why, as far as the stats page knows. */
void explain_silence(const struct context *context);

#endif
