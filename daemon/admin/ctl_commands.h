/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_commands.h - the commands of the admin socket. Each writes its reply piece by piece, one
 * packet in an iteration of the loop. This header is private to ctl*.c. ctl_lists.c has the rows of
 * lists, ctl_config.c config and loglevel, ctl_commands.c all other commands.
 *
 * Life of a request: start() is called first. If it returned 0, next() is called again and again,
 * and then end(), once: when the last packet was made, or when the asker is gone.
 */
#pragma once

#include "ctl.h"
#include "base/json.h"
#include "daemon/kvtierd.h"
#include "daemon/move/copies.h"
#include "daemon/move/hints.h"

enum ctl_progress {
	CTL_LATER, /* no packet yet, and the command has more to do: call it again at once */
	/* no packet yet, as other rooms are at work: call it again in CTL_WAIT_MS. A command says
	 * so for CTL_PROGRESS_MS at most */
	CTL_WAIT,
	CTL_TELL, /* a packet that says how far the command is (ctl.h) */
	CTL_MORE, /* a packet, and more follow */
	CTL_DATA, /* the same, of bytes that are no JSON */
	CTL_LAST,
	CTL_FAIL, /* the last packet; it is a sentence */
};

enum { CTL_WAIT_MS = 20 };

/* Whether a position has a row. LIST_END: no position from here on has one. */
enum list_row { LIST_ROW, LIST_NO_ROW, LIST_END };

struct ctl_request;

struct ctl_command {
	const char *name;
	const char *arguments; /* that it takes: tbl_ctl.h */
	/* as ctl_start(), which has checked that the words are those of `arguments`; NULL: 0 */
	int (*start)(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n);
	enum ctl_progress (*next)(struct kvtierd *d, struct ctl_request *request, struct json *ret);
	void (*end)(struct kvtierd *d, struct ctl_request *request); /* NULL: nothing to do */
	/* of a list: writes the members of the row at this position; next() writes its braces */
	enum list_row (*row)(struct kvtierd *d, uint32_t position, struct json *json);
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
	struct hint hint;
	uint32_t answers[WIRE_HINT_ANSWERS];
	bool of_gpus; /* evict: from the memory of GPUs, not from host memory */
	struct mover_counts evicted;
	/* of a command whose work other rooms do; end() tells them to stop */
	uint64_t told_ns; /* when the asker last heard how far it is */
	struct verify *verify;
	bool drop, finished;
	bool flushing;     /* drain: the flush has begun */
	uint64_t limit_ns; /* drain: when it gives up */
	int status;        /* of the work that finished */
	uint64_t blocks;
	uint64_t reload; /* the number of the one that was begun */
	/* dump: the block whose image is sent, its space, and where the next bytes lie */
	struct lease lease;
	uint32_t space, cursor, at;
	uint64_t since; /* events: the number of the next change */
	bool all;       /* events: of all blocks from number `cursor` on */
};

/* Finds the command and starts it. 0; -EINVAL: the words make no request; another -errno: the
 * command cannot start. With a sentence (<= 255 bytes). */
int ctl_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n);

/* The members of a row by the kinds of tbl_lists.h. */
#define CTL_MEMBER(title, name, kind, value) CTL_##kind(json, name, value);
#define CTL_TEXT(json, name, value)          json_text(json, #name, value)
#define CTL_BOOL(json, name, value)          json_bool(json, #name, value)
#define CTL_HEX(json, name, value)           json_hex(json, #name, value, sizeof(value))
#define CTL_NUMBER(json, name, value)        json_number(json, #name, value)
#define CTL_BYTES(json, name, value)         json_number(json, #name, value)
#define CTL_WAIT_MS(json, name, value)       json_number(json, #name, value)

/* NAME_start, NAME_next and, of a command that waits, NAME_end of each command of tbl_ctl.h that
 * the daemon answers; of a list, list_NAME. */
#define DECLARE_local(name)
#define DECLARE_list(name) \
	enum list_row list_##name(struct kvtierd *d, uint32_t position, struct json *json);
#define DECLARE_admin(name)                                                              \
	int name##_start(struct kvtierd *d, struct ctl_request *request, char *sentence, \
			 size_t n);                                                      \
	enum ctl_progress name##_next(struct kvtierd *d, struct ctl_request *request,    \
				      struct json *json);
#define DECLARE_waits(name) \
	DECLARE_admin(name) void name##_end(struct kvtierd *d, struct ctl_request *request);
#define DECLARE_data(name)                          DECLARE_waits(name)
#define DECLARE_both(name)                          DECLARE_admin(name)
#define CTL(name, where, arguments, prose, example) DECLARE_##where(name)
#include "tbl_ctl.h"
