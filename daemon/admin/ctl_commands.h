/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_commands.h - the commands of the admin socket: each writes its reply piece by piece, a packet
 * a turn of the loop. Private to ctl*.c. The lists and evict are in ctl_commands.c; the commands
 * that read and write NVMe, and so take their time, in ctl_nvme.c; the commands about Redis in
 * ctl_redis.c; hint is in ctl_hint.c.
 *
 * Life of a request: start; if that gave 0: next, again and again; then end, once, when the last
 * packet was made or the asker is gone, whichever comes first.
 */
#ifndef KVTIER_CTL_COMMANDS_H
#define KVTIER_CTL_COMMANDS_H

#include "ctl.h"
#include "daemon/base/json.h"
#include "daemon/kvtierd.h"
#include "daemon/store/hint_policy.h"

enum ctl_progress {
	CTL_LATER, /* nothing to send yet; the command has work to do: ask again next turn */
	/* nothing to send yet; other parts work: ask again in CTL_WAIT_MS. At most for
	 * CTL_PROGRESS_MS */
	CTL_WAIT,
	CTL_TELL, /* a packet that says how far it is, see ctl.h */
	CTL_MORE, /* a packet, and more follow */
	CTL_LAST,
	CTL_FAIL, /* the last; it is a sentence */
};

enum { CTL_WAIT_MS = 20 };

struct ctl_request;

struct ctl_command {
	const char *name;
	/* 0, or -EINVAL with a sentence (<= 255 bytes) */
	int (*start)(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n);
	enum ctl_progress (*next)(struct kvtierd *d, struct ctl_request *request, struct json *ret);
	void (*end)(struct kvtierd *d, struct ctl_request *request); /* NULL: nothing to do */
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
	/* of other parts' work; these parts are told to stop in end() */
	uint64_t told_ns; /* when the asker last heard how far it is */
	struct scrub *scrub;
	bool repair, finished;
	int status; /* of the work that finished */
	uint64_t blocks;
};

int ctl_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n);
enum ctl_progress ctl_continue(struct kvtierd *d, struct ctl_request *request, struct json *ret);
void ctl_end(struct kvtierd *d, struct ctl_request *request);

/* For a list: writes one row, returns whether it did; *ret_end: there are none from here on. */
typedef bool ctl_row_fn(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end);
/* The members of a row by the kinds of tbl_lists.h. */
#define LIST_NONE                      UINT64_MAX
#define CTL_TEXT(json, name, value)    json_text(json, #name, value)
#define CTL_BOOL(json, name, value)    json_bool(json, #name, value)
#define CTL_HEX(json, name, value)     json_hex(json, #name, value, sizeof(value))
#define CTL_NUMBER(json, name, value)  json_number(json, #name, value)
#define CTL_BYTES(json, name, value)   json_number(json, #name, value)
#define CTL_WAIT_MS(json, name, value) json_number(json, #name, value)
#define CTL_AGE(json, name, value)     ctl_age(json, #name, value)
#define CTL_RATIO(json, name, value)   ctl_ratio(json, #name, value)
void ctl_age(struct json *json, const char *name, uint64_t seconds);
void ctl_ratio(struct json *json, const char *name, double ratio);
/* The rows that fit into one packet, each whole; a command's next(). */
enum ctl_progress ctl_list(struct kvtierd *d, struct ctl_request *request, struct json *json,
			   const char *name, ctl_row_fn *row);
int ctl_no_arguments(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n);

/* NAME_start, NAME_next and, of a command that waits, NAME_end of each command of tbl_ctl.h that
 * the daemon answers. */
#define DECLARE_local(name)
#define DECLARE_admin(name)                                                              \
	int name##_start(struct kvtierd *d, struct ctl_request *request, char *sentence, \
			 size_t n);                                                      \
	enum ctl_progress name##_next(struct kvtierd *d, struct ctl_request *request,    \
				      struct json *json);
#define DECLARE_waits(name) \
	DECLARE_admin(name) void name##_end(struct kvtierd *d, struct ctl_request *request);
#define CTL(name, where, arguments, prose, example) DECLARE_##where(name)
#include "tbl_ctl.h"

#endif
