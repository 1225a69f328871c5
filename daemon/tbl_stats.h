/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_stats.h - every number in the stats page, once: struct stats_values, JSON, text, help are made of it.
 *No include guard: included with STAT() defined, which it undefines.
 *
 *	STAT(json_path, field, kind, unit, prose)
 *
 * field   = json_path with '_' for '.'
 * kind    counter: only grows while the daemon lives; gauge: now; state: a position in unit's a|b|c
 * order   is that of the JSON text: paths with a common prefix stand together
 *
 * Units are in the names. A name, once shipped, keeps its meaning.
 */
#define STAT_TIER(t)                                                                                         \
	STAT("tiers." #t ".state", tiers_##t##_state, state, "off|starting|up|degraded|readonly|offline",    \
	     "State of the " #t " tier")                                                                     \
	STAT("tiers." #t ".capacity_bytes", tiers_##t##_capacity_bytes, gauge, "bytes",                      \
	     "Bytes the " #t " tier may hold")                                                               \
	STAT("tiers." #t ".used_bytes", tiers_##t##_used_bytes, gauge, "bytes",                              \
	     "Bytes of it in use, rounding up to slots included")                                            \
	STAT("tiers." #t ".blocks", tiers_##t##_blocks, gauge, "blocks", "Blocks kept there")                \
	STAT("tiers." #t ".hit_blocks_total", tiers_##t##_hit_blocks_total, counter, "blocks",               \
	     "Blocks loaded that were found there")                                                          \
	STAT("tiers." #t ".read_bytes_total", tiers_##t##_read_bytes_total, counter, "bytes",                \
	     "Image bytes read from it")                                                                     \
	STAT("tiers." #t ".written_bytes_total", tiers_##t##_written_bytes_total, counter, "bytes",          \
	     "Image bytes written to it")                                                                    \
	STAT("tiers." #t ".evicted_blocks_total", tiers_##t##_evicted_blocks_total, counter, "blocks",       \
	     "Blocks dropped from it to make room or by request")                                            \
	STAT("tiers." #t ".moved_blocks_total", tiers_##t##_moved_blocks_total, counter, "blocks",           \
	     "Blocks copied inside it to empty a slab")                                                      \
	STAT("tiers." #t ".corrupt_blocks_total", tiers_##t##_corrupt_blocks_total, counter, "blocks",       \
	     "Images that failed their checksum; each became a miss")

STAT("uptime_s", uptime_s, gauge, "s", "Seconds since the daemon started, as of its last heartbeat")

STAT("lookup.requested_blocks_total", lookup_requested_blocks_total, counter, "blocks",
     "Blocks that engines asked the index for")
STAT("lookup.hit_blocks_total", lookup_hit_blocks_total, counter, "blocks",
     "Blocks of those that were present")

STAT("store.blocks_total", store_blocks_total, counter, "blocks", "Blocks stored")
STAT("store.dropped_blocks_total", store_dropped_blocks_total, counter, "blocks",
     "Blocks offered but not kept: no room, too late, or cancelled")
STAT("store.logical_bytes_total", store_logical_bytes_total, counter, "bytes",
     "Size of the stored blocks in the engines' own format")
STAT("store.image_bytes_total", store_image_bytes_total, counter, "bytes",
     "Size of the stored blocks as kept")
STAT("store.raw_blocks_total", store_raw_blocks_total, counter, "blocks",
     "Blocks kept raw because FP8 could not hold them (NaN, Inf, range)")
STAT("store.present_blocks_total", store_present_blocks_total, counter, "blocks",
     "Blocks offered that were there already; nothing was copied")

STAT("load.blocks_total", load_blocks_total, counter, "blocks", "Blocks given back to engines")
STAT("load.failed_blocks_total", load_failed_blocks_total, counter, "blocks",
     "Blocks present but not given back: too late, cancelled, damaged, page out of range")
STAT("load.missed_blocks_total", load_missed_blocks_total, counter, "blocks",
     "Blocks asked for that were not there")
STAT("load.logical_bytes_total", load_logical_bytes_total, counter, "bytes",
     "Size of the loaded blocks in the engines' own format")

STAT_TIER(gpu)
STAT_TIER(host)
STAT_TIER(nvme)
STAT_TIER(redis)

STAT("clients", clients, gauge, "clients", "Connections open")
STAT("leases", leases, gauge, "blocks", "Pins held on blocks by ops and connections")
STAT("ops.outstanding", ops_outstanding, gauge, "ops", "Ops submitted and not yet completed")
STAT("ops.timed_out_total", ops_timed_out_total, counter, "ops", "Ops that reached their deadline")
STAT("ops.canceled_total", ops_canceled_total, counter, "ops", "Ops ended early by their client or its death")
STAT("clients_total", clients_total, counter, "clients", "Connections accepted")
STAT("clients_refused_total", clients_refused_total, counter, "clients",
     "Connections refused: too many, wrong version, bad handshake")
STAT("protocol_errors_total", protocol_errors_total, counter, "errors",
     "Connections ended for breaking the protocol")
STAT("spaces", spaces, gauge, "spaces", "Identities that are open or have blocks")
STAT("index.entries", index_entries, gauge, "entries", "Entries of the shared index")
STAT("index.bytes", index_bytes, gauge, "bytes", "Memory the index uses")
#undef STAT_TIER
#undef STAT
