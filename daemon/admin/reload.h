/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reload.h - reads the configuration again and applies what can change while the daemon runs: the
 * keys that tbl_config.h marks RELOAD. A helper thread reads the files. All or nothing: if the file
 * has a mistake, no value changes. Core thread only.
 *
 *	idle --reload_begin--> reading (helper) --> applied, or refused --> idle
 *	                          `--reload_begin: again, when this one has ended
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/config/config.h"

struct kvtierd;
struct notify;
struct reload;

/* What the last reload that ended did: a line for each sentence. */
struct reload_report {
	bool refused; /* for its mistakes: nothing changed */
	struct config_notes mistakes;
	struct config_notes applied; /* values that changed */
	struct config_notes restart; /* values that would change with a restart, and did not */
};

/* config: d->config, to be changed. path: its file, lent; NULL: there is none. notify is told when
 * a reload begins and ends. Call it when engines are served. 0 or -errno. */
int reload_open(struct kvtierd *d, struct config *config, const char *path,
		const struct notify *notify, struct reload **ret);
void reload_close(struct reload *r); /* it is not busy, and may be NULL */

/* Begins a reload. Returns its number, which reload_ended() takes. */
uint64_t reload_begin(struct reload *r);
/* NULL: it has not ended yet. The report is that of this reload, or a later one. */
const struct reload_report *reload_ended(const struct reload *r, uint64_t number);
/* Sets [daemon] log_level until the next reload or start. False: there is no such level. */
bool reload_log_level(struct reload *r, const char *level);
bool reload_busy(const struct reload *r); /* the helper is at work; false for NULL */
