/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_commands.h - what the admin socket can be asked: each command writes its reply piece by piece, a packet
 * a turn of the loop. Private to ctl*.c.
 */
#ifndef KVTIER_CTL_COMMANDS_H
#define KVTIER_CTL_COMMANDS_H

#include "ctl.h"
#include "json.h"
#include "kvtierd.h"

enum ctl_progress {
	CTL_LATER, /* nothing to send yet: ask again next turn */
	CTL_MORE,  /* a packet, and more follow */
	CTL_LAST,
};

struct ctl_request;

struct ctl_command {
	const char *name;
	/* 0, or -EINVAL with a sentence (<= 255 bytes) */
	int (*start)(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n);
	enum ctl_progress (*next)(struct kvtierd *d, struct ctl_request *request, struct json *ret);
};

struct ctl_request {
	char packet[CTL_MAX_REQUEST + 1];
	char *words[CTL_MAX_WORDS]; /* into packet; [0] is the command */
	size_t n_words;
	uint64_t started_ns;
	const struct ctl_command *command;
	/* how far it is */
	uint32_t position; /* of the next row */
	uint32_t rows;     /* written */
	uint64_t wanted_bytes, freed_bytes;
	struct mover_counts evicted;
};

int ctl_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n);
enum ctl_progress ctl_continue(struct kvtierd *d, struct ctl_request *request, struct json *ret);

#endif
