/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_lists.h - the columns of every list that the admin socket sends, once: the daemon's JSON and
 * kvtierctl's tables are made of it. No include guard: included with the macro of one list (or of
 * several) defined, and all are undefined at the end.
 *
 *	LIST_COLUMN(title, name, KIND, value)
 *
 * LIST    CLIENTS SPACES DISKS DEVICES ENDPOINTS TRACE; BAD is the list in the reply of verify
 * title   of the column in kvtierctl's table; "": only in the JSON
 * name    in the JSON object; once shipped, it keeps its meaning
 * KIND    TEXT, BOOL, HEX (bytes), or a number: NUMBER, BYTES, AGE (seconds; LIST_NONE: the JSON
 *         object lacks it, the table's cell is empty), WAIT_MS (0: it waits for nothing),
 *         RATIO (a double, in the table in per cent; < 0: it is absent, as an AGE)
 * value   that the daemon writes: an expression of `row` (the list's struct), `d` and `position`
 */
#ifndef CLIENTS_COLUMN
#define CLIENTS_COLUMN(title, name, kind, value)
#endif
#ifndef DEVICES_COLUMN
#define DEVICES_COLUMN(title, name, kind, value)
#endif
#ifndef SPACES_COLUMN
#define SPACES_COLUMN(title, name, kind, value)
#endif
#ifndef DISKS_COLUMN
#define DISKS_COLUMN(title, name, kind, value)
#endif
#ifndef ENDPOINTS_COLUMN
#define ENDPOINTS_COLUMN(title, name, kind, value)
#endif
#ifndef TRACE_COLUMN
#define TRACE_COLUMN(title, name, kind, value)
#endif
#ifndef BAD_COLUMN
#define BAD_COLUMN(title, name, kind, value)
#endif

CLIENTS_COLUMN("ID", id, NUMBER, row->id)
CLIENTS_COLUMN("PID", pid, NUMBER, (uint64_t)row->pid)
CLIENTS_COLUMN("UID", uid, NUMBER, row->uid)
CLIENTS_COLUMN("TENANT", tenant, TEXT, row->tenant)
CLIENTS_COLUMN("NAME", name, TEXT, row->name)
CLIENTS_COLUMN("STATE", state, TEXT, client_state(row))
CLIENTS_COLUMN("WIRE", wire, TEXT, client_wire(row, buffer, sizeof(buffer)))
CLIENTS_COLUMN("PATH", path, TEXT, path_name(row))
CLIENTS_COLUMN("MODE", gpu_mode, TEXT, mode_name(row))
CLIENTS_COLUMN("SPACES", spaces, NUMBER, row->spaces)
CLIENTS_COLUMN("REGIONS", regions, NUMBER, row->regions)
CLIENTS_COLUMN("MEMORY", region_bytes, BYTES, row->region_bytes)
CLIENTS_COLUMN("OPS", ops, NUMBER, row->ops)
CLIENTS_COLUMN("PAGES", pages, NUMBER, row->pages)
CLIENTS_COLUMN("STORED", stored_blocks, NUMBER, row->stored_blocks)
CLIENTS_COLUMN("LOADED", loaded_blocks, NUMBER, row->loaded_blocks)
CLIENTS_COLUMN("MISSED", missed_blocks, NUMBER, row->missed_blocks)
CLIENTS_COLUMN("", sparse_blocks, NUMBER, row->sparse_blocks)
CLIENTS_COLUMN("AGE", age_s, AGE, row->age_ns / 1000000000u)
CLIENTS_COLUMN("", refused, NUMBER, row->refused)
CLIENTS_COLUMN("NOT IN ENGINE MODE", not_engine, TEXT, row->not_engine)
CLIENTS_COLUMN("GPU STAGED", gpu_staged, TEXT, row->gpu_staged)
CLIENTS_COLUMN("REFUSED FOR", why, TEXT, row->why)

SPACES_COLUMN("NUMBER", number, NUMBER, row->number)
SPACES_COLUMN("", known, BOOL, row->known)
SPACES_COLUMN("", id, HEX, row->id)
SPACES_COLUMN("TENANT", tenant, TEXT, row->tenant)
SPACES_COLUMN("MODEL", model, TEXT, row->wire.model)
SPACES_COLUMN("CONVENTION", convention, TEXT, row->wire.convention)
SPACES_COLUMN("", extras, TEXT, row->wire.extras)
SPACES_COLUMN("DTYPE", dtype, TEXT, dtype_name(row->geometry.dtype))
SPACES_COLUMN("CODEC", codec, TEXT, codec_name(row->codec))
SPACES_COLUMN("LAYERS", layers, NUMBER, row->geometry.layers)
SPACES_COLUMN("HEADS", kv_heads, NUMBER, row->geometry.kv_heads)
SPACES_COLUMN("DIM-K", head_dim_k, NUMBER, row->geometry.head_dim_k)
SPACES_COLUMN("DIM-V", head_dim_v, NUMBER, row->geometry.head_dim_v)
SPACES_COLUMN("TOKENS", block_tokens, NUMBER, row->geometry.block_tokens)
SPACES_COLUMN("RANK", rank, NUMBER, row->wire.rank)
SPACES_COLUMN("", world, NUMBER, row->wire.world)
SPACES_COLUMN("", typed_segments, NUMBER, row->geometry.typed_segments)
SPACES_COLUMN("", typed_values, NUMBER, row->geometry.typed_values)
SPACES_COLUMN("", opaque_bytes, NUMBER, row->geometry.opaque_bytes)
SPACES_COLUMN("LOGICAL", logical_bytes, BYTES, row->shape.logical_bytes)
SPACES_COLUMN("IMAGE", image_bytes, BYTES, row->shape.image_bytes)
SPACES_COLUMN("STATE", state, TEXT, space_state(row))
SPACES_COLUMN("HINTED", hinted, TEXT, space_hinted(d, row))
SPACES_COLUMN("", tenant_kept_bytes, BYTES, kept_bytes(d, row))
SPACES_COLUMN("OPEN", opened, NUMBER, row->opened)
SPACES_COLUMN("IDLE", idle_s, AGE, space_idle_s(d, row))
SPACES_COLUMN("BLOCKS", blocks, NUMBER, space_blocks(d, row))
SPACES_COLUMN("BYTES", bytes, BYTES, space_bytes(d, row))
SPACES_COLUMN("STORED", stored_blocks, NUMBER, row->stored_blocks)
SPACES_COLUMN("LOADED", loaded_blocks, NUMBER, row->loaded_blocks)
SPACES_COLUMN("RAW", raw_blocks, NUMBER, row->raw_blocks)
SPACES_COLUMN("ERROR", relative_error, RATIO, space_error(row))

DISKS_COLUMN("", disk, NUMBER, position)
DISKS_COLUMN("PATH", path, TEXT, row->path)
DISKS_COLUMN("STATE", state, TEXT, tier_state_name(row->state))
DISKS_COLUMN("", for_good, BOOL, row->for_good)
DISKS_COLUMN("CAPACITY", capacity_bytes, BYTES, row->capacity_bytes)
DISKS_COLUMN("LIVE", live_bytes, BYTES, row->live_bytes)
DISKS_COLUMN("SEGMENT", segment_bytes, BYTES, row->segment_bytes)
DISKS_COLUMN("WRITTEN", written_bytes, BYTES, row->log.written_bytes)
DISKS_COLUMN("READ", read_bytes, BYTES, row->log.read_bytes)
DISKS_COLUMN("CARRIED", carried_bytes, BYTES, row->log.carried_bytes)
DISKS_COLUMN("", segments_reclaimed, NUMBER, row->log.segments_reclaimed)
DISKS_COLUMN("", segments_lost, NUMBER, row->log.segments_lost)
DISKS_COLUMN("ERRORS-R", read_errors, NUMBER, row->log.read_errors)
DISKS_COLUMN("ERRORS-W", write_errors, NUMBER, row->log.write_errors)
DISKS_COLUMN("", reads, NUMBER, row->io.reads_in_disk)
DISKS_COLUMN("", writes, NUMBER, row->io.writes_in_disk)
DISKS_COLUMN("", oldest_ms, NUMBER, row->io.oldest_ns / 1000000)
DISKS_COLUMN("WHY", text, TEXT, row->text)

DEVICES_COLUMN("", device, NUMBER, position)
DEVICES_COLUMN("KIND", kind, TEXT, row->kind)
DEVICES_COLUMN("NAME", name, TEXT, row->note.name)
DEVICES_COLUMN("UUID", uuid, TEXT, row->uuid)
DEVICES_COLUMN("STATE", state, TEXT, row->note.state)
DEVICES_COLUMN("MPS", mps, BOOL, row->note.mps)
DEVICES_COLUMN("CTAS", max_ctas, NUMBER, row->note.max_ctas)
DEVICES_COLUMN("REGIONS", regions, NUMBER, row->note.regions)
DEVICES_COLUMN("JOBS", jobs, NUMBER, row->jobs)
DEVICES_COLUMN("", jobs_total, NUMBER, row->jobs_total)
DEVICES_COLUMN("", failed_jobs_total, NUMBER, row->failed_total)
DEVICES_COLUMN("OWN", own_bytes, BYTES, row->note.bytes)
DEVICES_COLUMN("IMAGES", image_bytes, BYTES, row->note.image_bytes)
DEVICES_COLUMN("LENT", lent_bytes, BYTES, row->note.lent_bytes)
DEVICES_COLUMN("CONTEXT", context_bytes, BYTES, row->note.context_bytes)
DEVICES_COLUMN("OUT", copied_out_bytes_total, BYTES, row->note.copied_out_bytes_total)
DEVICES_COLUMN("IN", copied_in_bytes_total, BYTES, row->note.copied_in_bytes_total)
DEVICES_COLUMN("PINNED", pinned_bytes, BYTES, row->note.pinned_bytes)
DEVICES_COLUMN("", direct_out_bytes_total, BYTES, row->note.direct_out_bytes_total)
DEVICES_COLUMN("", direct_in_bytes_total, BYTES, row->note.direct_in_bytes_total)
DEVICES_COLUMN("", bounced_out_bytes_total, BYTES, row->note.bounced_out_bytes_total)
DEVICES_COLUMN("", bounced_in_bytes_total, BYTES, row->note.bounced_in_bytes_total)
DEVICES_COLUMN("", batches_total, NUMBER, row->note.batches_total)
DEVICES_COLUMN("LOST", lost_total, NUMBER, row->note.lost_total)
DEVICES_COLUMN("WHY", text, TEXT, row->note.why[0] ? row->note.why : row->note.pin_why)

ENDPOINTS_COLUMN("", endpoint, NUMBER, position)
ENDPOINTS_COLUMN("ADDRESS", address, TEXT, row->address)
ENDPOINTS_COLUMN("STATE", state, TEXT, tier_state_name(row->state))
ENDPOINTS_COLUMN("TLS", tls, TEXT, row->tls[0] ? row->tls : "no")
ENDPOINTS_COLUMN("SLOTS", slots, NUMBER, row->slots)
ENDPOINTS_COLUMN("CONNECTIONS", connections, NUMBER, row->connections)
ENDPOINTS_COLUMN("IN FLIGHT", in_flight, NUMBER, row->in_flight)
ENDPOINTS_COLUMN("", gets, NUMBER, row->counters.gets_total)
ENDPOINTS_COLUMN("HITS", hits, NUMBER, row->counters.hits_total)
ENDPOINTS_COLUMN("", sets, NUMBER, row->counters.sets_total)
ENDPOINTS_COLUMN("", probes, NUMBER, row->counters.probes_total)
ENDPOINTS_COLUMN("RECEIVED", received_bytes, BYTES, row->counters.received_bytes_total)
ENDPOINTS_COLUMN("SENT", sent_bytes, BYTES, row->counters.sent_bytes_total)
ENDPOINTS_COLUMN("", corrupt, NUMBER, row->counters.corrupt_total)
ENDPOINTS_COLUMN("", forged, NUMBER, row->counters.forged_total)
ENDPOINTS_COLUMN("", other_forms, NUMBER, row->counters.other_forms_total)
ENDPOINTS_COLUMN("", deleted, NUMBER, row->counters.deleted_total)
ENDPOINTS_COLUMN("TIMEOUTS", timeouts, NUMBER, row->counters.timeouts_total)
ENDPOINTS_COLUMN("", resets, NUMBER, row->counters.resets_total)
ENDPOINTS_COLUMN("", errors, NUMBER, row->counters.errors_total)
ENDPOINTS_COLUMN("", refused_stores, NUMBER, row->counters.refused_stores_total)
ENDPOINTS_COLUMN("", redirects, NUMBER, row->counters.redirects_total)
ENDPOINTS_COLUMN("", refused_hosts, NUMBER, row->counters.refused_hosts_total)
ENDPOINTS_COLUMN("", late_replies, NUMBER, row->counters.late_total)
ENDPOINTS_COLUMN("", protocol_errors, NUMBER, row->counters.protocol_errors_total)
ENDPOINTS_COLUMN("", breaker_opens, NUMBER, row->counters.breaker_opens_total)
ENDPOINTS_COLUMN("", reconnects, NUMBER, row->counters.reconnects_total)
ENDPOINTS_COLUMN("RETRY", retry_in_ms, WAIT_MS, row->retry_in_ms)
ENDPOINTS_COLUMN("WHY", text, TEXT, row->text)

TRACE_COLUMN("OP", op, NUMBER, row->op)
TRACE_COLUMN("CLIENT", client, NUMBER, row->client)
TRACE_COLUMN("KIND", kind, TEXT, row->kind)
TRACE_COLUMN("STATE", state, TEXT, row->ended ? "ended" : "running")
TRACE_COLUMN("BLOCK", block, NUMBER, row->block)
TRACE_COLUMN("US", us, NUMBER, row->us)
TRACE_COLUMN("STEP", step, TEXT, row->step)
TRACE_COLUMN("FROM", source, TEXT, row->source)
TRACE_COLUMN("WAITS FOR", wait, TEXT, row->wait)
TRACE_COLUMN("STATUS", status, TEXT, status_text(row))

BAD_COLUMN("TIER", tier, TEXT, tier_name(row->tier))
BAD_COLUMN("DISK", disk, NUMBER, row->disk)
BAD_COLUMN("SEGMENT", segment, NUMBER, row->segment)
BAD_COLUMN("DROPPED", dropped, BOOL, row->dropped)
BAD_COLUMN("TENANT", tenant, TEXT, tenant_of(d, row->space))
BAD_COLUMN("SPACE", space, NUMBER, row->space)
BAD_COLUMN("KEY", key, HEX, row->key)
#undef CLIENTS_COLUMN
#undef SPACES_COLUMN
#undef DISKS_COLUMN
#undef DEVICES_COLUMN
#undef ENDPOINTS_COLUMN
#undef TRACE_COLUMN
#undef BAD_COLUMN
