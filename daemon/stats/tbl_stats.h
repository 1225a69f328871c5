/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_stats.h - every number in the stats page, once: struct stats_values, JSON, text, help are
 * made of it. No include guard: included with STAT() defined, which it undefines.
 *
 *	STAT(json_path, field, kind, unit, prose)
 *
 * field   = json_path with '_' for '.'
 * kind    counter: only grows while the daemon lives; gauge: now; state: a position in unit's a|b|c
 * order   is that of the JSON text: paths with a common prefix stand together
 *
 * Units are in the names. A name, once shipped, keeps its meaning.
 */
#define STAT_TIER(t)                                                                               \
	STAT("tiers." #t ".state", tiers_##t##_state, state,                                       \
	     "off|starting|up|degraded|readonly|offline|misconfigured",                            \
	     "State of the " #t " tier")                                                           \
	STAT("tiers." #t ".capacity_bytes", tiers_##t##_capacity_bytes, gauge, "bytes",            \
	     "Bytes the " #t " tier may hold")                                                     \
	STAT("tiers." #t ".used_bytes", tiers_##t##_used_bytes, gauge, "bytes",                    \
	     "Bytes of it in use, rounding up to slots included")                                  \
	STAT("tiers." #t ".blocks", tiers_##t##_blocks, gauge, "blocks", "Blocks kept there")      \
	STAT("tiers." #t ".hit_blocks_total", tiers_##t##_hit_blocks_total, counter, "blocks",     \
	     "Blocks loaded that were found there")                                                \
	STAT("tiers." #t ".read_bytes_total", tiers_##t##_read_bytes_total, counter, "bytes",      \
	     "Image bytes read from it")                                                           \
	STAT("tiers." #t ".written_bytes_total", tiers_##t##_written_bytes_total, counter,         \
	     "bytes", "Image bytes written to it")                                                 \
	STAT("tiers." #t ".evicted_blocks_total", tiers_##t##_evicted_blocks_total, counter,       \
	     "blocks", "Blocks dropped from it to make room or by request")                        \
	STAT("tiers." #t ".moved_blocks_total", tiers_##t##_moved_blocks_total, counter, "blocks", \
	     "Blocks copied inside it to empty a slab or segment")                                 \
	STAT("tiers." #t ".corrupt_blocks_total", tiers_##t##_corrupt_blocks_total, counter,       \
	     "blocks", "Images that failed their checksum; each became a miss")

STAT("uptime_s", uptime_s, gauge, "s", "Seconds since the daemon started, as of its last heartbeat")

STAT("lookup.requested_blocks_total", lookup_requested_blocks_total, counter, "blocks",
     "Blocks that engines asked the index for")
STAT("lookup.hit_blocks_total", lookup_hit_blocks_total, counter, "blocks",
     "Of these the blocks that were present")

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
STAT("store.sparse_blocks_total", store_sparse_blocks_total, counter, "blocks",
     "Blocks not stored since their engine had not allocated their page")
STAT("store.ops_total", store_ops_total, counter, "ops",
     "Store ops of which a block at least was stored, or was there already")
STAT("store.p50_us", store_p50_us, gauge, "us",
     "Half of these ops took no longer, from the core thread's reading the op to its completing "
     "it; since the start, at most 1/32 off")
STAT("store.p99_us", store_p99_us, gauge, "us",
     "99 of 100 of these ops took no longer; since the start, at most 1/32 off")

STAT("load.blocks_total", load_blocks_total, counter, "blocks", "Blocks given back to engines")
STAT("load.failed_blocks_total", load_failed_blocks_total, counter, "blocks",
     "Blocks present but not given back: too late, cancelled, damaged, page out of range")
STAT("load.sparse_blocks_total", load_sparse_blocks_total, counter, "blocks",
     "Blocks not loaded since their engine had not allocated their page")
STAT("load.missed_blocks_total", load_missed_blocks_total, counter, "blocks",
     "Blocks asked for that were not there")
STAT("load.logical_bytes_total", load_logical_bytes_total, counter, "bytes",
     "Size of the loaded blocks in the engines' own format")
STAT("load.ops_total", load_ops_total, counter, "ops",
     "Load ops of which a block at least was loaded")
STAT("load.p50_us", load_p50_us, gauge, "us",
     "Half of these ops took no longer, from the core thread's reading the op to its completing "
     "it; since the start, at most 1/32 off")
STAT("load.p99_us", load_p99_us, gauge, "us",
     "99 of 100 of these ops took no longer; since the start, at most 1/32 off")

STAT("prefetch.blocks_total", prefetch_blocks_total, counter, "blocks",
     "Blocks that engines asked to have in host memory, and that are there now")
STAT("prefetch.missed_blocks_total", prefetch_missed_blocks_total, counter, "blocks",
     "Of these the blocks that no tier had, or that could not be brought")

STAT("gpu.devices", gpu_devices, gauge, "devices", "GPUs that can be served")
STAT("gpu.used_devices", gpu_used_devices, gauge, "devices",
     "GPUs with regions of engines; kvtierd has a context on these")
STAT("gpu.failed_devices", gpu_failed_devices, gauge, "devices",
     "GPUs that were in use and do not work")
STAT("gpu.staged_spaces", gpu_staged_spaces, gauge, "spaces",
     "Spaces whose pages on a GPU are copied by their engine's CPU")
STAT("gpu.regions", gpu_regions, gauge, "regions", "Regions of engines in the memory of GPUs")
STAT("gpu.own_bytes", gpu_own_bytes, gauge, "bytes",
     "Memory of GPUs that kvtierd's buffers and kernels take")
STAT("gpu.lent_bytes", gpu_lent_bytes, gauge, "bytes",
     "Memory of GPUs that clients in engine mode are lent, a part of gpu.own_bytes")
STAT("gpu.context_bytes", gpu_context_bytes, gauge, "bytes",
     "Memory of GPUs that the driver took for kvtierd's contexts, as NVML saw it when they were "
     "made, with what other processes took meanwhile; 0: none, or not known")
STAT("gpu.copied_out_bytes_total", gpu_copied_out_bytes_total, counter, "bytes",
     "Bytes that crossed the wire from GPUs to host memory")
STAT("gpu.copied_in_bytes_total", gpu_copied_in_bytes_total, counter, "bytes",
     "Bytes that crossed the wire from host memory to GPUs")
STAT("gpu.direct_out_bytes_total", gpu_direct_out_bytes_total, counter, "bytes",
     "Payload that copy engines wrote into host slots by themselves, since these are pinned")
STAT("gpu.direct_in_bytes_total", gpu_direct_in_bytes_total, counter, "bytes",
     "Payload that copy engines read from host slots by themselves")
STAT("gpu.bounced_out_bytes_total", gpu_bounced_out_bytes_total, counter, "bytes",
     "Payload that workers copied from a pinned buffer into host slots: of slots that are not "
     "pinned (yet), and of small images")
STAT("gpu.bounced_in_bytes_total", gpu_bounced_in_bytes_total, counter, "bytes",
     "Payload that workers copied from host slots into a pinned buffer, likewise")
STAT("gpu.batches_total", gpu_batches_total, counter, "batches",
     "Copies of images, or of runs of an image, across the wire")
STAT("gpu.lost_total", gpu_lost_total, counter, "times",
     "Times that a GPU's context was lost with all that was mapped in it")

STAT_TIER(gpu)
STAT_TIER(host)
STAT("tiers.host.pinned_bytes", tiers_host_pinned_bytes, gauge, "bytes",
     "Of its memory what is registered with the CUDA driver now; none while no GPU is in use")
STAT("tiers.host.near_slots_total", tiers_host_near_slots_total, counter, "slots",
     "Slots that blocks of GPUs got on their GPU's NUMA node")
STAT("tiers.host.far_slots_total", tiers_host_far_slots_total, counter, "slots",
     "Slots that blocks of GPUs got on another node, since theirs had none free; not counted where "
     "nodes are not known")
STAT("tiers.host.demoted_blocks_total", tiers_host_demoted_blocks_total, counter, "blocks",
     "Blocks that gave up their host memory and stay on NVMe")
STAT("tiers.host.promoted_blocks_total", tiers_host_promoted_blocks_total, counter, "blocks",
     "Blocks that came back to host memory from NVMe")
STAT_TIER(nvme)
STAT("tiers.nvme.devices", tiers_nvme_devices, gauge, "devices", "Disks: paths in [nvme] path")
STAT("tiers.nvme.usable_devices", tiers_nvme_usable_devices, gauge, "devices",
     "Disks that can be read")
STAT("tiers.nvme.carried_bytes_total", tiers_nvme_carried_bytes_total, counter, "bytes",
     "Image bytes written again because their segment was needed")
STAT("tiers.nvme.device_written_bytes_total", tiers_nvme_device_written_bytes_total, counter,
     "bytes", "Bytes written to the disks: images, also when carried over, headers, footers")
STAT("tiers.nvme.device_read_bytes_total", tiers_nvme_device_read_bytes_total, counter, "bytes",
     "Bytes read from the disks, for recovery and for segments taken back, too")
STAT("tiers.nvme.write_amplification_percent", tiers_nvme_write_amplification_percent, gauge,
     "percent",
     "device_written_bytes_total for each written_bytes_total; 100: nothing is written twice")
STAT("tiers.nvme.budget_percent", tiers_nvme_budget_percent, gauge, "percent",
     "Of the write budget's reserve; 0: writes are skipped; 100: full, or there is no budget")
STAT("tiers.nvme.queued_blocks", tiers_nvme_queued_blocks, gauge, "blocks",
     "Blocks in memory that wait to be written to NVMe")
STAT("tiers.nvme.skipped_budget_blocks_total", tiers_nvme_skipped_budget_blocks_total, counter,
     "blocks",
     "Blocks not written because the write budget is short, or because their parents are not there")
STAT("tiers.nvme.skipped_queue_blocks_total", tiers_nvme_skipped_queue_blocks_total, counter,
     "blocks",
     "Blocks not written because too many waited already: they come faster than the disks write")
STAT("tiers.nvme.read_errors_total", tiers_nvme_read_errors_total, counter, "errors",
     "Reads that failed")
STAT("tiers.nvme.write_errors_total", tiers_nvme_write_errors_total, counter, "errors",
     "Writes that failed")
STAT("tiers.nvme.stale_reads_total", tiers_nvme_stale_reads_total, counter, "blocks",
     "Reads that came too late: the segment had been used again; each a miss")
STAT("tiers.nvme.stalls_total", tiers_nvme_stalls_total, counter, "stalls",
     "Times that a disk did not answer within [nvme] stall_us")
STAT("tiers.nvme.recovered_blocks", tiers_nvme_recovered_blocks, gauge, "blocks",
     "Blocks found at the start")
STAT("tiers.nvme.recovery_bytes", tiers_nvme_recovery_bytes, gauge, "bytes",
     "Bytes read to find them")
STAT("tiers.nvme.recovery_ms", tiers_nvme_recovery_ms, gauge, "ms", "Time spent to find them")
#define STAT_RESIDENCY(name, prose)                                         \
	STAT("tiers.nvme.residency." #name "_blocks_total",                 \
	     tiers_nvme_residency_##name##_blocks_total, counter, "blocks", \
	     "Blocks dropped to use their segment again, which had been full for " prose)
STAT_RESIDENCY(up_to_1m, "up to a minute")
STAT_RESIDENCY(up_to_10m, "up to ten minutes")
STAT_RESIDENCY(up_to_1h, "up to an hour")
STAT_RESIDENCY(up_to_6h, "up to six hours")
STAT_RESIDENCY(up_to_1d, "up to a day")
STAT_RESIDENCY(up_to_7d, "up to seven days")
STAT_RESIDENCY(up_to_30d, "up to thirty days")
STAT_RESIDENCY(longer, "longer than that")
STAT_TIER(redis)
STAT("tiers.redis.endpoints", tiers_redis_endpoints, gauge, "endpoints",
     "Endpoints that have a part of the blocks: those of [redis] endpoints, or the masters of the "
     "Cluster")
STAT("tiers.redis.usable_endpoints", tiers_redis_usable_endpoints, gauge, "endpoints",
     "Endpoints that can be read")
STAT("tiers.redis.queued_blocks", tiers_redis_queued_blocks, gauge, "blocks",
     "Blocks that wait to be written there")
STAT("tiers.redis.queued_bytes", tiers_redis_queued_bytes, gauge, "bytes",
     "Image bytes of blocks that wait or are on their way; at most [redis] max_inflight_bytes")
STAT("tiers.redis.written_blocks_total", tiers_redis_written_blocks_total, counter, "blocks",
     "Blocks written there")
STAT("tiers.redis.present_blocks_total", tiers_redis_present_blocks_total, counter, "blocks",
     "Blocks not written because they were there already")
STAT("tiers.redis.dropped_blocks_total", tiers_redis_dropped_blocks_total, counter, "blocks",
     "Blocks not written because the queue was full, the oldest first, or they were gone at their "
     "turn, or at a stop")
STAT("tiers.redis.skipped_blocks_total", tiers_redis_skipped_blocks_total, counter, "blocks",
     "Blocks not written because the endpoint that they belong to took no stores, or did not "
     "answer")
STAT("tiers.redis.miss_blocks_total", tiers_redis_miss_blocks_total, counter, "blocks",
     "Blocks asked for that Redis did not have, or did not send in time")
STAT("tiers.redis.forged_blocks_total", tiers_redis_forged_blocks_total, counter, "blocks",
     "Values that are whole, but without the MAC that [redis] secret_file and the tenant make; "
     "each became a miss")
STAT("tiers.redis.other_form_blocks_total", tiers_redis_other_form_blocks_total, counter, "blocks",
     "Values in the form of an older or newer kvtierd; each became a miss, and stays")
STAT("tiers.redis.unasked_blocks_total", tiers_redis_unasked_blocks_total, counter, "blocks",
     "Loads of blocks that host memory made no room for, as Redis did not say whether it has them: "
     "its user may neither GETRANGE nor STRLEN")
STAT("tiers.redis.deleted_blocks_total", tiers_redis_deleted_blocks_total, counter, "blocks",
     "Damaged or forged values that were deleted there")
STAT("tiers.redis.timeouts_total", tiers_redis_timeouts_total, counter, "requests",
     "Requests not answered within [redis] timeout_ms")
STAT("tiers.redis.resets_total", tiers_redis_resets_total, counter, "requests",
     "Requests whose connection was lost before the answer")
STAT("tiers.redis.errors_total", tiers_redis_errors_total, counter, "requests",
     "Requests answered with an error that has no counter of its own")
STAT("tiers.redis.refused_stores_total", tiers_redis_refused_stores_total, counter, "requests",
     "Writes refused: out of memory, read only, or misconfigured")
STAT("tiers.redis.redirects_total", tiers_redis_redirects_total, counter, "requests",
     "Requests sent on to another endpoint of the Cluster (MOVED, ASK)")
STAT("tiers.redis.refused_hosts_total", tiers_redis_refused_hosts_total, counter, "times",
     "Redirects to an endpoint that no slot map has; endpoints of a map that are not [redis] "
     "cluster_hosts, or whose certificate is not theirs: none of these was sent a password")
STAT("tiers.redis.topology_changes_total", tiers_redis_topology_changes_total, counter, "changes",
     "Maps of the Cluster's slots taken over")
STAT("tiers.redis.late_replies_total", tiers_redis_late_replies_total, counter, "replies",
     "Answers that came when nobody waited any more; thrown away")
STAT("tiers.redis.protocol_errors_total", tiers_redis_protocol_errors_total, counter, "errors",
     "Answers that break the protocol or its bounds; each cost its connection")
STAT("tiers.redis.breaker_opens_total", tiers_redis_breaker_opens_total, counter, "times",
     "Times that an endpoint was left alone for a while, 1 to 30 s")
STAT("tiers.redis.reconnects_total", tiers_redis_reconnects_total, counter, "connections",
     "Connections made again")

#define STAT_HINT(a)                                                                         \
	STAT("hints." #a ".accepted_total", hints_##a##_accepted_total, counter, "blocks",   \
	     "Hints " #a ", by answer: blocks (of a revision, hints) for which it was done") \
	STAT("hints." #a ".clipped_total", hints_##a##_clipped_total, counter, "blocks",     \
	     "...that reached a bound: share, ttl, table")                                   \
	STAT("hints." #a ".deferred_total", hints_##a##_deferred_total, counter, "blocks",   \
	     "...for which it is done later")                                                \
	STAT("hints." #a ".rejected_total", hints_##a##_rejected_total, counter, "blocks",   \
	     "...for which it cannot be")                                                    \
	STAT("hints." #a ".missing_total", hints_##a##_missing_total, counter, "blocks",     \
	     "...that were not there")
STAT_HINT(retain)
STAT_HINT(pin)
STAT_HINT(demote)
STAT_HINT(prefetch)
STAT_HINT(release)
STAT_HINT(superseded)
STAT_HINT(ended)
STAT("hints.expired_blocks_total", hints_expired_blocks_total, counter, "blocks",
     "Blocks whose ttl was over: they are the first to go")
STAT("hints.kept_bytes", hints_kept_bytes, gauge, "bytes",
     "Image bytes that are retained (priority above 0) or pinned; [hints] share_percent is a "
     "tenant's bound")
STAT("hints.noted_blocks", hints_noted_blocks, gauge, "blocks",
     "Blocks with a ttl, in a session, retained or pinned; at most [hints] max_blocks")
STAT("hints.sessions", hints_sessions, gauge, "sessions", "Sessions that have blocks")
STAT("hints.lowered_spaces", hints_lowered_spaces, gauge, "spaces",
     "Spaces whose revision was demoted or retired, and that nobody opened since")

STAT("clients", clients, gauge, "clients", "Connections open")
STAT("leases", leases, gauge, "blocks", "Pins held on blocks by ops and connections")
STAT("ops.outstanding", ops_outstanding, gauge, "ops", "Ops submitted and not yet completed")
STAT("ops.timed_out_total", ops_timed_out_total, counter, "ops", "Ops that reached their deadline")
STAT("ops.canceled_total", ops_canceled_total, counter, "ops",
     "Ops ended early by their client or its death")
STAT("clients_total", clients_total, counter, "clients", "Connections accepted")
STAT("clients_refused_total", clients_refused_total, counter, "clients",
     "Connections refused: too many, wrong version, bad handshake")
STAT("protocol_errors_total", protocol_errors_total, counter, "errors",
     "Connections ended for breaking the protocol")
STAT("spaces", spaces, gauge, "spaces",
     "Identities that are kept, open or not; at most [index] max_spaces")
STAT("spaces_recycled_total", spaces_recycled_total, counter, "spaces",
     "Identities that went with their blocks since there were more than [index] max_spaces")
STAT("index.entries", index_entries, gauge, "entries", "Entries of the shared index")
STAT("index.bytes", index_bytes, gauge, "bytes", "Memory the index uses")
STAT("index.crowded_blocks_total", index_crowded_blocks_total, counter, "blocks",
     "Blocks left out since the index had no room near their place, though it had room elsewhere: "
     "keys made to collide")
#undef STAT_TIER
#undef STAT_HINT
#undef STAT_RESIDENCY
#undef STAT
