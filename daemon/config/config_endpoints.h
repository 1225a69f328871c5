/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_endpoints.h - values of the types ENDPOINTS and HOSTS: their form, and the endpoints one
 * by one. No item stands twice in such a value; a blank is between two.
 */
#ifndef KVTIER_CONFIG_ENDPOINTS_H
#define KVTIER_CONFIG_ENDPOINTS_H

#include "config.h"

/* An ENDPOINTS value into `field`, with ports added. 0, or -EINVAL with why (>= 256 bytes). */
int config_endpoints_value(const char *text, char field[CONFIG_ENDPOINTS_BYTES], char *why,
			   size_t n);
/* A HOSTS value likewise. */
int config_hosts_value(const char *text, char field[CONFIG_HOSTS_BYTES], char *why, size_t n);
/* The next endpoint of such a value, with its port, from *cursor (the field to start with) on;
 * false: no more. */
bool config_endpoints_next(const char **cursor, char ret[CONFIG_ENDPOINT_BYTES]);

#endif
