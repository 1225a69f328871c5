/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_hosts.h - which hosts a Cluster's slot map may name. A host that kvtierd connects to gets
 * the password. So one endpoint must not decide that another host is of the Cluster. The functions
 * are pure, on the caller's memory.
 *
 * An entry of the list is a name; or ".domain", for all names below it; or an address; or a network
 * such as 10.0.0.0/8 or fd00::/8.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REDIS_HOSTS = 64, REDIS_HOST_NAMES = 96, REDIS_HOST_BYTES = 256, REDIS_NETWORKS = 256 };

struct redis_network {
	uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
	uint32_t bits;
};

struct redis_hosts {
	uint32_t n_names, n_networks;
	/* place of the next network that is added; when all are taken: the oldest one's */
	uint32_t next;
	char name[REDIS_HOST_NAMES][REDIS_HOST_BYTES];
	struct redis_network network[REDIS_NETWORKS];
};

/* Adds the entries of a list, which blanks separate. NULL: it is good; else its fault in words:
 * "has ... in it". */
const char *redis_hosts_parse(const char *list, struct redis_hosts *ret);
/* A name beyond REDIS_HOST_NAMES is left out. */
void redis_hosts_add_name(struct redis_hosts *h, const char *name);
/* The network that an address ("10.1.2.3", "fd00::1") is taken to be in: its /24 or /64. A loopback
 * address is taken alone. */
void redis_hosts_add_near(struct redis_hosts *h, const char *address);
/* host: as the map named it; address: the numeric one to connect to. Both without port. */
bool redis_hosts_allow(const struct redis_hosts *h, const char *host, const char *address);
