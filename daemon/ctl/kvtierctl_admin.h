/* SPDX-License-Identifier: Apache-2.0 */
/* kvtierctl_admin.h - what a command asks the daemon for that answers by itself. */
#ifndef KVTIER_KVTIERCTL_ADMIN_H
#define KVTIER_KVTIERCTL_ADMIN_H

#include "kvtierctl.h"

/* Takes the bytes of a reply as they come; false: it has said why it wants no more. */
typedef bool take_fn(void *arg, const uint8_t *bytes, size_t n);
/* Asks for images of cached blocks, by the word SPACE and that behind --blocks, which may be NULL.
 * Returns the exit status. */
int ask_images(const struct context *context, const char *space, const char *blocks, take_fn *take,
	       void *arg);

#endif
