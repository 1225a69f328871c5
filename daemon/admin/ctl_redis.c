/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_redis.c - the admin command about the Redis tier: endpoints, a row for each server. Core thread only; see
 * ctl_commands.h.
 */
#include <inttypes.h>

#include "tiers/redis/redis.h"
#include "ctl_commands.h"

int endpoints_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	return ctl_no_arguments(d, request, sentence, n);
}

static void what_it_did(const struct redis_counters *c, struct json *json)
{
	json_print(json,
		   ",\"gets\":%" PRIu64 ",\"hits\":%" PRIu64 ",\"sets\":%" PRIu64 ",\"probes\":%" PRIu64
		   ",\"received_bytes\":%" PRIu64 ",\"sent_bytes\":%" PRIu64,
		   c->gets_total, c->hits_total, c->sets_total, c->probes_total, c->received_bytes_total,
		   c->sent_bytes_total);
	json_print(json,
		   ",\"corrupt\":%" PRIu64 ",\"forged\":%" PRIu64 ",\"other_forms\":%" PRIu64 ",\"deleted\":%" PRIu64
		   ",\"timeouts\":%" PRIu64 ",\"resets\":%" PRIu64
		   ",\"errors\":%" PRIu64 ",\"refused_stores\":%" PRIu64 ",\"redirects\":%" PRIu64 ",\"refused_hosts\":%" PRIu64,
		   c->corrupt_total, c->forged_total, c->other_forms_total, c->deleted_total, c->timeouts_total,
		   c->resets_total, c->errors_total, c->refused_stores_total, c->redirects_total, c->refused_hosts_total);
	json_print(json,
		   ",\"late_replies\":%" PRIu64 ",\"protocol_errors\":%" PRIu64 ",\"breaker_opens\":%" PRIu64
		   ",\"reconnects\":%" PRIu64,
		   c->late_total, c->protocol_errors_total, c->breaker_opens_total, c->reconnects_total);
}

static bool endpoint_row(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end)
{
	struct redis_endpoint_row row;

	*ret_end = d->tiers[TIER_REDIS] == NULL || !redis_endpoint_row(d->tiers[TIER_REDIS], position, &row);
	if (*ret_end)
		return false;
	json_print(json, "{\"endpoint\":%" PRIu32 ",\"address\":", position);
	json_string(json, row.address);
	json_print(json, ",\"state\":\"%s\",\"text\":", tier_state_name(row.state));
	json_string(json, row.text);
	json_print(json, ",\"tls\":");
	json_string(json, row.tls[0] != '\0' ? row.tls : "no");
	json_print(json,
		   ",\"slots\":%" PRIu32 ",\"connections\":%" PRIu32 ",\"in_flight\":%" PRIu32 ",\"retry_in_ms\":%" PRIu64,
		   row.slots, row.connections, row.in_flight, row.retry_in_ms);
	what_it_did(&row.counters, json);
	json_print(json, "}");
	return true;
}

enum ctl_progress endpoints_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return ctl_list(d, request, json, "endpoints", endpoint_row);
}
