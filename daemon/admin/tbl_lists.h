/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_lists.h - the columns of every list that the admin socket sends, once. The daemon's JSON and
 * kvtierctl's tables are made of it. Each list is a macro that takes the macro of a column.
 *
 *	COLUMN(title, name, KIND, value)
 *
 * title   the column's title in kvtierctl's table; "": the column is only in the JSON
 * name    its name in the JSON object; once shipped, a name keeps its meaning
 * KIND    TEXT, BOOL, HEX (bytes), or a number: NUMBER, BYTES, AGE (in seconds; LIST_NONE: the JSON
 *         object lacks it, and the table's cell is empty), WAIT_MS (0: there is no wait), RATIO (a
 *         double, which the table shows in per cent; it may be absent as an AGE may, if < 0)
 * value   what the daemon writes: an expression of `row` (the list's struct), `d` and `position`
 */
#pragma once

#define clients_COLUMNS(COLUMN)                                              \
	COLUMN("ID", id, NUMBER, row->id)                                    \
	COLUMN("PID", pid, NUMBER, (uint64_t)row->pid)                       \
	COLUMN("UID", uid, NUMBER, row->uid)                                 \
	COLUMN("TENANT", tenant, TEXT, row->tenant)                          \
	COLUMN("NAME", name, TEXT, row->name)                                \
	COLUMN("STATE", state, TEXT, client_state(row))                      \
	COLUMN("WIRE", wire, TEXT, client_wire(row, buffer, sizeof(buffer))) \
	COLUMN("PATH", path, TEXT, path_name(row))                           \
	COLUMN("SPACES", spaces, NUMBER, row->spaces)                        \
	COLUMN("REGIONS", regions, NUMBER, row->regions)                     \
	COLUMN("MEMORY", region_bytes, BYTES, row->region_bytes)             \
	COLUMN("OPS", ops, NUMBER, row->ops)                                 \
	COLUMN("PAGES", pages, NUMBER, row->pages)                           \
	COLUMN("STORED", stored_blocks, NUMBER, row->stored_blocks)          \
	COLUMN("LOADED", loaded_blocks, NUMBER, row->loaded_blocks)          \
	COLUMN("MISSED", missed_blocks, NUMBER, row->missed_blocks)          \
	COLUMN("", sparse_blocks, NUMBER, row->sparse_blocks)                \
	COLUMN("AGE", age_s, AGE, row->age_ns / 1000000000u)                 \
	COLUMN("", refused, NUMBER, row->refused)                            \
	COLUMN("", reason, TEXT, row->reason ? row->reason : "")             \
	COLUMN("GPU STAGED", gpu_staged, TEXT, row->gpu_staged)              \
	COLUMN("REFUSED FOR", why, TEXT, row->why)

#define tenants_COLUMNS(COLUMN)                                                       \
	COLUMN("TENANT", tenant, TEXT, row->tenant->name)                             \
	COLUMN("PRIORITY", priority, NUMBER, row->tenant->priority)                   \
	COLUMN("", share_percent, NUMBER, row->tenant->share)                         \
	COLUMN("", looked_up_blocks, NUMBER, row->tenant->looked_up)                  \
	COLUMN("", hit_blocks, NUMBER, row->tenant->hits)                             \
	COLUMN("WHAT", what, TEXT, row->line->name)                                   \
	COLUMN("USED", used, NUMBER, row->tenant->used[row->use])                     \
	COLUMN("GUARANTEED", guaranteed, NUMBER,                                      \
	       quota_of_tenant(&d->quota, row->use, row->number))                     \
	COLUMN("LIMIT", limit, NUMBER, quota_limit(&d->quota, row->use, row->number)) \
	COLUMN("REFUSED", refused, NUMBER, row->tenant->refused[row->use])

#define spaces_COLUMNS(COLUMN)                                             \
	COLUMN("NUMBER", number, NUMBER, row->number)                      \
	COLUMN("", known, BOOL, row->known)                                \
	COLUMN("", id, HEX, row->id)                                       \
	COLUMN("TENANT", tenant, TEXT, row->tenant)                        \
	COLUMN("MODEL", model, TEXT, row->wire.model)                      \
	COLUMN("CONVENTION", convention, TEXT, row->wire.convention)       \
	COLUMN("DTYPE", dtype, TEXT, dtype_name(row->geometry.dtype))      \
	COLUMN("CODEC", codec, TEXT, codec_name(row->codec))               \
	COLUMN("LAYERS", layers, NUMBER, row->geometry.layers)             \
	COLUMN("HEADS", kv_heads, NUMBER, row->geometry.kv_heads)          \
	COLUMN("DIM-K", head_dim_k, NUMBER, row->geometry.head_dim_k)      \
	COLUMN("DIM-V", head_dim_v, NUMBER, row->geometry.head_dim_v)      \
	COLUMN("TOKENS", block_tokens, NUMBER, row->geometry.block_tokens) \
	COLUMN("RANK", rank, NUMBER, row->wire.rank)                       \
	COLUMN("WORLD", world, NUMBER, row->wire.world)                    \
	COLUMN("", typed_segments, NUMBER, row->geometry.typed_segments)   \
	COLUMN("", typed_values, NUMBER, row->geometry.typed_values)       \
	COLUMN("", opaque_bytes, NUMBER, row->geometry.opaque_bytes)       \
	COLUMN("LOGICAL", logical_bytes, BYTES, row->shape.logical_bytes)  \
	COLUMN("IMAGE", image_bytes, BYTES, row->shape.image_bytes)        \
	COLUMN("STATE", state, TEXT, space_state(row))                     \
	COLUMN("HINTED", hinted, TEXT, space_hinted(d, row))               \
	COLUMN("", tenant_kept_bytes, BYTES, kept_bytes(d, row))           \
	COLUMN("OPEN", opened, NUMBER, row->opened)                        \
	COLUMN("IDLE", idle_s, AGE, space_idle_s(d, row))                  \
	COLUMN("BLOCKS", blocks, NUMBER, space_blocks(d, row))             \
	COLUMN("BYTES", bytes, BYTES, space_bytes(d, row))                 \
	COLUMN("", looked_up_blocks, NUMBER, row->looked_up_blocks)        \
	COLUMN("", hit_blocks, NUMBER, row->hit_blocks)                    \
	COLUMN("STORED", stored_blocks, NUMBER, row->stored_blocks)        \
	COLUMN("LOADED", loaded_blocks, NUMBER, row->loaded_blocks)        \
	COLUMN("RAW", raw_blocks, NUMBER, row->raw_blocks)                 \
	COLUMN("ERROR", relative_error, RATIO, space_error(row))           \
	COLUMN("", int8_gain, RATIO, space_int8_gain(row))                 \
	COLUMN("EXTRAS", extras, TEXT, row->wire.extras)

#define disks_COLUMNS(COLUMN)                                               \
	COLUMN("", disk, NUMBER, position)                                  \
	COLUMN("PATH", path, TEXT, row->path)                               \
	COLUMN("STATE", state, TEXT, tier_state_name(row->state))           \
	COLUMN("", for_good, BOOL, row->for_good)                           \
	COLUMN("CAPACITY", capacity_bytes, BYTES, row->capacity_bytes)      \
	COLUMN("LIVE", live_bytes, BYTES, row->live_bytes)                  \
	COLUMN("SEGMENT", segment_bytes, BYTES, row->segment_bytes)         \
	COLUMN("WRITTEN", written_bytes, BYTES, row->log.written_bytes)     \
	COLUMN("READ", read_bytes, BYTES, row->log.read_bytes)              \
	COLUMN("", segments_refilled, NUMBER, row->log.segments_refilled)   \
	COLUMN("", segments_reclaimed, NUMBER, row->log.segments_reclaimed) \
	COLUMN("", segments_lost, NUMBER, row->log.segments_lost)           \
	COLUMN("ERRORS-R", read_errors, NUMBER, row->log.read_errors)       \
	COLUMN("ERRORS-W", write_errors, NUMBER, row->log.write_errors)     \
	COLUMN("", reads, NUMBER, row->io.reads_in_disk)                    \
	COLUMN("", writes, NUMBER, row->io.writes_in_disk)                  \
	COLUMN("", oldest_ms, NUMBER, row->io.oldest_ns / 1000000)          \
	COLUMN("WHY", text, TEXT, row->text)

#define devices_COLUMNS(COLUMN)                                                        \
	COLUMN("", device, NUMBER, position)                                           \
	COLUMN("KIND", kind, TEXT, row->kind)                                          \
	COLUMN("NAME", name, TEXT, row->note.name)                                     \
	COLUMN("UUID", uuid, TEXT, row->uuid)                                          \
	COLUMN("STATE", state, TEXT, row->note.state)                                  \
	COLUMN("MPS", mps, BOOL, row->note.mps)                                        \
	COLUMN("CTAS", max_ctas, NUMBER, row->note.max_ctas)                           \
	COLUMN("REGIONS", regions, NUMBER, row->note.regions)                          \
	COLUMN("JOBS", jobs, NUMBER, row->jobs)                                        \
	COLUMN("", jobs_total, NUMBER, row->jobs_total)                                \
	COLUMN("", failed_jobs_total, NUMBER, row->failed_total)                       \
	COLUMN("OWN", own_bytes, BYTES, row->note.bytes)                               \
	COLUMN("IMAGES", image_bytes, BYTES, row->note.image_bytes)                    \
	COLUMN("CONTEXT", context_bytes, BYTES, row->note.context_bytes)               \
	COLUMN("OUT", copied_out_bytes_total, BYTES, row->note.copied_out_bytes_total) \
	COLUMN("IN", copied_in_bytes_total, BYTES, row->note.copied_in_bytes_total)    \
	COLUMN("PINNED", pinned_bytes, BYTES, row->note.pinned_bytes)                  \
	COLUMN("", direct_out_bytes_total, BYTES, row->note.direct_out_bytes_total)    \
	COLUMN("", direct_in_bytes_total, BYTES, row->note.direct_in_bytes_total)      \
	COLUMN("", bounced_out_bytes_total, BYTES, row->note.bounced_out_bytes_total)  \
	COLUMN("", bounced_in_bytes_total, BYTES, row->note.bounced_in_bytes_total)    \
	COLUMN("", busy_out_us_total, NUMBER, row->note.busy_out_us_total)             \
	COLUMN("", busy_in_us_total, NUMBER, row->note.busy_in_us_total)               \
	COLUMN("", batches_total, NUMBER, row->note.batches_total)                     \
	COLUMN("LOST", lost_total, NUMBER, row->note.lost_total)                       \
	COLUMN("WHY", text, TEXT, row->note.why[0] ? row->note.why : row->note.pin_why)

#define endpoints_COLUMNS(COLUMN)                                                     \
	COLUMN("", endpoint, NUMBER, position)                                        \
	COLUMN("ADDRESS", address, TEXT, row->address)                                \
	COLUMN("STATE", state, TEXT, tier_state_name(row->state))                     \
	COLUMN("TLS", tls, TEXT, row->tls[0] ? row->tls : "no")                       \
	COLUMN("SLOTS", slots, NUMBER, row->slots)                                    \
	COLUMN("CONNECTIONS", connections, NUMBER, row->connections)                  \
	COLUMN("IN FLIGHT", in_flight, NUMBER, row->in_flight)                        \
	COLUMN("", gets, NUMBER, row->counters.gets_total)                            \
	COLUMN("HITS", hits, NUMBER, row->counters.hits_total)                        \
	COLUMN("", sets, NUMBER, row->counters.sets_total)                            \
	COLUMN("", probes, NUMBER, row->counters.probes_total)                        \
	COLUMN("RECEIVED", received_bytes, BYTES, row->counters.received_bytes_total) \
	COLUMN("SENT", sent_bytes, BYTES, row->counters.sent_bytes_total)             \
	COLUMN("", corrupt, NUMBER, row->counters.corrupt_total)                      \
	COLUMN("", forged, NUMBER, row->counters.forged_total)                        \
	COLUMN("", other_forms, NUMBER, row->counters.other_forms_total)              \
	COLUMN("", deleted, NUMBER, row->counters.deleted_total)                      \
	COLUMN("", refreshed, NUMBER, row->counters.refreshed_total)                  \
	COLUMN("TIMEOUTS", timeouts, NUMBER, row->counters.timeouts_total)            \
	COLUMN("", resets, NUMBER, row->counters.resets_total)                        \
	COLUMN("", errors, NUMBER, row->counters.errors_total)                        \
	COLUMN("", refused_stores, NUMBER, row->counters.refused_stores_total)        \
	COLUMN("", redirects, NUMBER, row->counters.redirects_total)                  \
	COLUMN("", refused_hosts, NUMBER, row->counters.refused_hosts_total)          \
	COLUMN("", late_replies, NUMBER, row->counters.late_total)                    \
	COLUMN("", protocol_errors, NUMBER, row->counters.protocol_errors_total)      \
	COLUMN("", breaker_opens, NUMBER, row->counters.breaker_opens_total)          \
	COLUMN("", reconnects, NUMBER, row->counters.reconnects_total)                \
	COLUMN("RETRY", retry_in_ms, WAIT_MS, row->retry_in_ms)                       \
	COLUMN("WHY", text, TEXT, row->text)

#define trace_COLUMNS(COLUMN)                                          \
	COLUMN("OP", op, NUMBER, row->op)                              \
	COLUMN("CLIENT", client, NUMBER, row->client)                  \
	COLUMN("KIND", kind, TEXT, row->kind)                          \
	COLUMN("STATE", state, TEXT, row->ended ? "ended" : "running") \
	COLUMN("BLOCK", block, NUMBER, row->block)                     \
	COLUMN("US", us, NUMBER, row->us)                              \
	COLUMN("STEP", step, TEXT, row->step)                          \
	COLUMN("FROM", source, TEXT, row->source)                      \
	COLUMN("WAITS FOR", wait, TEXT, row->wait)                     \
	COLUMN("STATUS", status, TEXT, status_text(row))

/* a row is a step, or an op that had none */
#define slowlog_COLUMNS(COLUMN)                        \
	COLUMN("OP", op, NUMBER, row->op)              \
	COLUMN("CLIENT", client, NUMBER, row->client)  \
	COLUMN("PID", pid, NUMBER, (uint64_t)row->pid) \
	COLUMN("SPACE", space, NUMBER, row->space)     \
	COLUMN("KIND", kind, TEXT, row->kind)          \
	COLUMN("BLOCKS", blocks, NUMBER, row->blocks)  \
	COLUMN("AGO", ago_s, AGE, row->ago_s)          \
	COLUMN("TOOK", took_us, NUMBER, row->took_us)  \
	COLUMN("BLOCK", block, NUMBER, row->block)     \
	COLUMN("US", us, NUMBER, row->us)              \
	COLUMN("STEP", step, TEXT, row->step)          \
	COLUMN("FROM", source, TEXT, row->source)      \
	COLUMN("WAITS FOR", wait, TEXT, row->wait)     \
	COLUMN("STATUS", status, TEXT, status_text(row))

#define events_COLUMNS(COLUMN)                     \
	COLUMN("SPACE", space, NUMBER, row->space) \
	COLUMN("KEY", key, HEX, row->key)          \
	COLUMN("TIERS", tiers, TEXT, tiers_text(row->tiers))

/* the list in the reply of verify */
#define bad_COLUMNS(COLUMN)                                      \
	COLUMN("TIER", tier, TEXT, tier_name(row->tier))         \
	COLUMN("DISK", disk, NUMBER, row->disk)                  \
	COLUMN("SEGMENT", segment, NUMBER, row->segment)         \
	COLUMN("DROPPED", dropped, BOOL, row->dropped)           \
	COLUMN("TENANT", tenant, TEXT, tenant_of(d, row->space)) \
	COLUMN("SPACE", space, NUMBER, row->space)               \
	COLUMN("KEY", key, HEX, row->key)
