/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - see files.h. A helper thread does the looking, because a path may lead to a disk or a
 * server that hangs. */
#include "files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "base/own.h"
#include "base/workers.h"
#include "daemon/kvtierd.h"
#include "tiers/nvme/nvme.h"

enum { FILES = 3 + CONFIG_SOCKETS_MAX + NVME_TIER_PATHS };

#define LOOK_NS 1000000000ull

struct file {
	char path[CONFIG_PATH_BYTES + 16]; /* "": not to be looked at now */
	const char *what, *means;          /* what it is, and what its loss means */
	struct own own;
	bool there; /* as of the last look */
	enum own_state state;
};

struct files {
	struct kvtierd *d;
	struct workers *helper;
	struct work work; /* while it is lent, paths, own and state are the helper's */
	bool lent;
	uint64_t due_ns;
	uint32_t n, fixed; /* fixed: how many are no stores; the stores come last */
	struct file all[FILES];
};

static enum work_end run(struct work *work, uint32_t thread)
{
	struct files *f = container_of(work, struct files, work);

	(void)thread;
	for (uint32_t i = 0; i < f->n; i++) {
		struct file *file = &f->all[i];

		if (file->path[0] == '\0')
			continue;
		file->state = own_look(file->path, &file->own);
		if (file->state == OWN_THERE)
			own_keep(file->path);
	}
	return WORK_ENDED;
}

/* The path comes last, so that a long path is cut. */
static void sentence(const struct file *file, char *ret, size_t n)
{
	snprintf(ret, n, "%s %s: %s: %s", file->what,
		 file->state == OWN_GONE ? "is gone" : "was replaced by another file", file->means,
		 file->path);
}

static void done(struct work *work)
{
	struct files *f = container_of(work, struct files, work);
	char text[STATS_TEXT_BYTES] = "", line[sizeof(f->all[0].path) + 200];

	f->lent = false;
	for (uint32_t i = 0; i < f->n; i++) {
		struct file *file = &f->all[i];
		const bool there = file->state == OWN_THERE;

		if (!there) {
			sentence(file, line, sizeof(line));
			if (text[0] == '\0')
				snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, line);
			if (file->there)
				log_warning("file_gone", "%s; %s", line,
					    stats_health_row(STATS_HEALTH_FILES_GONE)->prose);
		} else if (!file->there && file->path[0] != '\0') {
			log_info("file_back", "%s is there again: %s", file->what, file->path);
		}
		file->there = there;
	}
	stats_text_set(f->d->stats->files_text, STATS_TEXT_BYTES, text);
	stats_health_set(f->d->stats, STATS_HEALTH_FILES_GONE, text[0] != '\0');
}

/* Adds the stores that are open now. An offline disk is reported by the tier itself. */
static void add_stores(struct files *f)
{
	const struct tier *nvme = f->d->tables.tiers[TIER_NVME];
	struct nvme_disk_row row;

	for (uint32_t i = 0; nvme && nvme_row(nvme, i, &row); i++) {
		struct file *file = &f->all[f->fixed + i];

		snprintf(file->path, sizeof(file->path), "%s",
			 row.state == TIER_OFFLINE ? "" : row.path);
		file->what = "[nvme] path";
		file->means = "what is written there is lost at the next start";
		file->own = row.own;
		file->state = OWN_THERE;
		file->there = file->there || f->n == f->fixed + i;
		f->n = f->n > f->fixed + i ? f->n : f->fixed + i + 1;
	}
}

void files_look(struct files *f)
{
	const uint64_t now = f ? loop_now(f->d->loop) : 0;

	if (!f || f->lent || now < f->due_ns)
		return;
	f->due_ns = now + LOOK_NS;
	f->lent = true;
	add_stores(f);
	workers_submit(f->helper, &f->work);
}

bool files_busy(const struct files *f)
{
	return f && f->lent;
}

static void add(struct files *f, const char *what, const char *means, const char *format,
		const char *path)
{
	struct file *file = &f->all[f->n++];

	file->what = what;
	file->means = means;
	file->there = true;
	snprintf(file->path, sizeof(file->path), format, path);
	(void)own_at(file->path, &file->own); /* if it is gone already, the first look says so */
}

int files_open(struct kvtierd *d, struct files **ret)
{
	const struct config *c = d->config;
	struct files *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return -ENOMEM;
	f->d = d;
	f->work = (struct work){ .run = run, .done = done };
	r = workers_open_helpers(d->loop, 1, &f->helper);
	add(f, "the lock", "a second kvtierd can start beside this one", "%s/lock",
	    c->daemon_runtime_dir);
	add(f, "the stats page", "kvtierctl status and stats do not find this daemon", "%s",
	    c->stats_path);
	for (uint32_t i = 0; i < c->n_sockets; i++)
		add(f, "[socket] path", "no engine can connect there", "%s", c->sockets[i].path);
	add(f, "the admin socket", "kvtierctl cannot ask this daemon", "%s", c->admin_path);
	f->fixed = f->n;
	if (r) {
		files_close(f);
		return r;
	}
	*ret = f;
	return 0;
}

void files_close(struct files *f)
{
	if (!f)
		return;
	workers_close(f->helper);
	free(f);
}
