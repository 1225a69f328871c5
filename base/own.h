/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own.h - knows the daemon's own files by their inodes. When somebody cleans /tmp or starts a
 * second daemon, a path may be gone, or lead to another file. Sockets are among these files, and a
 * socket's file outlives the daemon that made it. Any thread may call.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct own {
	uint64_t device, inode; /* of a block device: its number, and 0 */
};

enum own_state { OWN_THERE, OWN_GONE, OWN_REPLACED };

int own_at(const char *path, struct own *ret); /* links are followed; 0 or -errno */
int own_fd(int fd, struct own *ret);           /* 0 or -errno */
/* A path that cannot be looked at counts as OWN_THERE. */
enum own_state own_look(const char *path, const struct own *own);
/* Touches a file that was not touched for a day, so that a cleaner of /tmp that goes by age keeps
 * it. */
void own_keep(const char *path);
void own_unlink(const char *path, const struct own *own); /* unless another file lies there */

/* Makes a socket of this type (SOCK_SEQPACKET, SOCK_STREAM) with these permissions at path. No
 * client can connect before the caller calls listen(). An old socket at path is removed if no
 * process answers there. -EADDRINUSE: a process answers; -EEXIST: the path has a file that is no
 * socket; after another -errno no file is left behind. */
int socket_bind(const char *path, int type, uint32_t mode, int *ret_fd, struct own *ret_own);

/* Whether a process listens at path. This sends it no message, and does not wait. */
bool socket_answers(const char *path);

/* The path of the i-th socket that the service manager passed to this process ($LISTEN_FDS). It
 * listens at such a socket itself, from before the process's start until after its end, so clients
 * wait meanwhile. Returns the descriptor, which is non-blocking and close-on-exec from then on and
 * the caller's to close. -ENOENT: there is no i-th. -EPROTOTYPE: the i-th descriptor is no
 * SOCK_SEQPACKET socket that listens at an absolute path. */
enum { SOCKET_PATH_BYTES = 109 };
int socket_held(uint32_t i, char ret_path[SOCKET_PATH_BYTES]);
int socket_held_at(const char *path); /* the descriptor of the one at path, or -ENOENT */

/* Sets whether descriptors can be sent to this Unix socket, or to the sockets that a listening
 * socket will accept. If not, the sender's call fails. Returns false, and changes no more than
 * that, on a kernel before 6.16. */
bool socket_pass_fds(int fd, bool pass);
bool socket_passes_fds(int fd);
