/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_address.h - an endpoint's address as text: "host:port", "[v6]:port" or "unix:/path". Pure;
 * any thread.
 */
#ifndef KVTIER_REDIS_ADDRESS_H
#define KVTIER_REDIS_ADDRESS_H

#include <stdbool.h>

enum { REDIS_ADDRESS_BYTES = 256, REDIS_PORT_BYTES = 8 }; /* with the 0 */

bool redis_address_valid(const char *address); /* NULL is not */
/* A path, or a numeric host: no name server is needed to connect to it. */
bool redis_address_numeric(const char *address);
/* The host, without [ ]; "" for a path. */
void redis_address_host(const char *address, char ret[REDIS_ADDRESS_BYTES]);
/* Host without [ ], and port in digits. false: a path, or no valid address. */
bool redis_address_split(const char *address, char ret_host[REDIS_ADDRESS_BYTES],
			 char ret_port[REDIS_PORT_BYTES]);

#endif
