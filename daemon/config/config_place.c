/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_place.c - see config_place.h.
 */
#include "config_place.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "client/abi/runtime_dir.h"
#include "config_value.h"
#include "tiers/nvme/log/nvme_format.h"
#include "tiers/nvme/nvme_file.h"

static int path_set(char ret[CONFIG_PATH_BYTES], const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static int path_set(char ret[CONFIG_PATH_BYTES], const char *format, ...)
{
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(ret, CONFIG_PATH_BYTES, format, args);
	va_end(args);
	return length < 0 || length >= CONFIG_PATH_BYTES ? -ENAMETOOLONG : 0;
}

/* The directory that the variable names. systemd may list several with ':' between them, and the
 * first is ours. NULL: the variable is not set, is empty, or has a relative path, which the XDG
 * specification says to ignore. */
static const char *directory_from(const char *variable, int *ret_length)
{
	const char *value = getenv(variable);

	if (!value || value[0] != '/')
		return NULL;
	*ret_length = (int)strcspn(value, ":");
	return value;
}

static int derive_runtime_dir(char dir[CONFIG_PATH_BYTES])
{
	const char *from;
	int length;

	if (dir[0] != '\0')
		return 0;
	if ((from = directory_from("RUNTIME_DIRECTORY", &length)) != NULL)
		return path_set(dir, "%.*s", length, from);
	return runtime_dir(dir, CONFIG_PATH_BYTES) < 0 ? -ENAMETOOLONG : 0;
}

static int derive_state_dir(char dir[CONFIG_PATH_BYTES])
{
	const char *from;
	int length;

	if (dir[0] != '\0')
		return 0;
	if ((from = directory_from("STATE_DIRECTORY", &length)) != NULL)
		return path_set(dir, "%.*s", length, from);
	if (geteuid() == 0)
		return path_set(dir, "/var/lib/kvtier");
	if ((from = directory_from("XDG_STATE_HOME", &length)) != NULL)
		return path_set(dir, "%s/kvtier", from);
	if ((from = directory_from("HOME", &length)) != NULL)
		return path_set(dir, "%s/.local/state/kvtier", from);
	return -ENOENT;
}

static int derive_socket(char path[CONFIG_PATH_BYTES], const char *dir, const char *name)
{
	if (path[0] == '\0' && path_set(path, "%s/%s", dir, name) < 0)
		return -ENAMETOOLONG;
	return strlen(path) > CONFIG_SUN_PATH_MAX ? -ENAMETOOLONG : 0;
}

/* Adds a mistake of this key, in its line if the file gave it. Its value is `error`. */
#define fail(config, faults, error, socket, row, ...)                                  \
	(config_note((faults), (config)->line_of[socket][row] ? (config)->file : NULL, \
		     (config)->line_of[socket][row], __VA_ARGS__),                     \
	 (error))

static int too_long(const struct config *config, struct config_notes *faults, const char *path)
{
	return fail(config, faults, -ENAMETOOLONG, 0, CONFIG_ROW_daemon_runtime_dir,
		    "%s: a socket's path may have %d bytes at most; set [socket] path or [daemon] "
		    "runtime_dir to something shorter",
		    path, (int)CONFIG_SUN_PATH_MAX);
}

static bool path_taken(const struct config *config, uint32_t socket)
{
	const char *path = config->sockets[socket].path;

	for (uint32_t i = 0; i < socket; i++)
		if (strcmp(path, config->sockets[i].path) == 0)
			return true;
	return strcmp(path, config->admin_path) == 0;
}

static int derive_a_socket(struct config *config, uint32_t i, struct config_notes *faults)
{
	struct config_socket *s = &config->sockets[i];
	char name[CONFIG_NAME_BYTES + 16] = RUNTIME_DIR_SOCKET;

	if (i > 0)
		snprintf(name, sizeof(name), "kvtier-%s.sock", s->name);
	if (derive_socket(s->path, config->daemon_runtime_dir, name) < 0)
		return too_long(config, faults, s->path);
	if (path_taken(config, i))
		return fail(config, faults, -EINVAL, i, CONFIG_ROW_socket_path,
			    "[socket%s%s] path: %s is another socket's", i > 0 ? " " : "", s->name,
			    s->path);
	return 0;
}

static int derive_directories(struct config *config, struct config_notes *faults)
{
	if (derive_runtime_dir(config->daemon_runtime_dir) < 0 ||
	    path_set(config->stats_path, "%s/stats", config->daemon_runtime_dir) < 0)
		return fail(config, faults, -ENAMETOOLONG, 0, CONFIG_ROW_daemon_runtime_dir,
			    "the runtime directory's name is too long; set [daemon] runtime_dir");
	if (derive_state_dir(config->daemon_state_dir) < 0)
		return fail(config, faults, -ENOENT, 0, CONFIG_ROW_daemon_state_dir,
			    "cannot make out a state directory from $XDG_STATE_HOME or $HOME; set "
			    "[daemon] state_dir");
	if (derive_socket(config->admin_path, config->daemon_runtime_dir, "admin.sock") < 0)
		return too_long(config, faults, config->admin_path);
	config->nvme_path_derived = config->nvme_path[0] == '\0';
	if (config->nvme_path_derived &&
	    path_set(config->nvme_path, "%s/nvme.store", config->daemon_state_dir) < 0)
		return fail(config, faults, -ENAMETOOLONG, 0, CONFIG_ROW_daemon_state_dir,
			    "%s/nvme.store: a path may have %d bytes at most; set [nvme] path or "
			    "[daemon] state_dir",
			    config->daemon_state_dir, (int)CONFIG_PATH_BYTES - 1);
	return 0;
}

int config_derive(struct config *config, struct config_notes *faults)
{
	int r = derive_directories(config, faults);

	for (uint32_t i = 0; i < config->n_sockets; i++) {
		const int here = derive_a_socket(config, i, faults);

		r = r ? r : here;
	}
	return r;
}

/* Makes a directory, as mkdir -p does. Its parents get the usual permissions, it gets 0700. */
static int make_parents(const char *dir)
{
	char path[CONFIG_PATH_BYTES];

	if (path_set(path, "%s", dir) < 0)
		return -ENAMETOOLONG;
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return -errno;
		*slash = '/';
	}
	return mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

/* Refuses a directory that is not ours: in /tmp anybody may have made it before us, or a link to
 * another place. A link that root has made is accepted, since systemd makes one for
 * DynamicUser=. */
static int check_ours(const char *dir, const char *key, char *text, size_t n)
{
	struct stat st;

	if (lstat(dir, &st) < 0)
		return -errno;
	if (S_ISLNK(st.st_mode) && st.st_uid == 0 && stat(dir, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
	    (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
		return text_fail(text, n, -EPERM,
				 "%s: must be a directory of user %u that nobody else can write "
				 "to; set [daemon] %s to another one",
				 dir, (unsigned)geteuid(), key);
	return 0;
}

static int make_dir(const char *dir, const char *key, char *text, size_t n)
{
	int r = make_parents(dir);

	text[0] = '\0';
	if (r == 0)
		r = check_ours(dir, key, text, n);
	if (r < 0 && text[0] == '\0')
		snprintf(text, n, "%s: %s; set [daemon] %s to a directory that can be made", dir,
			 strerror(-r), key);
	return r;
}

int config_make_dirs(const struct config *config, char *text, size_t n)
{
	const int r = make_dir(config->daemon_runtime_dir, "runtime_dir", text, n);

	return r < 0 ? r : make_dir(config->daemon_state_dir, "state_dir", text, n);
}

void config_tell_stores(const struct config *config, FILE *out)
{
	const char *cursor = config->nvme_path;
	char path[CONFIG_PATH_BYTES];
	struct nvme_super super;

	while (config->nvme_bytes > 0 && config_next_item(&cursor, ":", path)) {
		const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
		const bool found = fd >= 0 && nvme_newest_super(fd, &super) == 0;

		if (fd >= 0)
			(void)close(fd);
		if (!found || super.segment_bytes == 0 ||
		    (config->nvme_bytes - NVME_DATA_OFFSET) / super.segment_bytes == super.segments)
			continue;
		fprintf(out,
			"[nvme] bytes: %s is a store of %" PRIu64 " bytes, and bytes = %" PRIu64
			": %s; "
			"correct bytes, or `kvtierctl format %s --bytes %" PRIu64 "`\n",
			path, NVME_DATA_OFFSET + (uint64_t)super.segments * super.segment_bytes,
			config->nvme_bytes,
			(config->nvme_bytes - NVME_DATA_OFFSET) / super.segment_bytes >
					super.segments ?
				"kvtierd will not use it" :
				"it stays as large as it is",
			path, config->nvme_bytes);
	}
}
