/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_redis.c - the admin command about the Redis tier: endpoints, a row for each. Core thread
 * only; see ctl_commands.h.
 */
#include "tiers/redis/redis.h"
#include "ctl_commands.h"

int endpoints_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	return ctl_no_arguments(d, request, sentence, n);
}

static bool endpoint_row(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end)
{
	struct redis_endpoint_row found, *row = &found;

	*ret_end = !d->store.tiers[TIER_REDIS] ||
		   !redis_endpoint_row(d->store.tiers[TIER_REDIS], position, row);
	if (*ret_end)
		return false;
	json_print(json, "{");
#define ENDPOINTS_COLUMN(title, name, kind, value) CTL_##kind(json, name, value);
#include "tbl_lists.h"
	json_print(json, "}");
	return true;
}

enum ctl_progress endpoints_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return ctl_list(d, request, json, "endpoints", endpoint_row);
}
