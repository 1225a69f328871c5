/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_stats.h - every number of the stats page, once. struct stats_values, JSON, text and help are
 * made of it. It has no include guard: it is included with STAT() defined, which it undefines.
 *
 *	STAT(json_path, field, kind, unit, prose)
 *
 * field   = json_path with '_' for '.'
 * kind    counter: it only grows while the daemon lives; gauge: a value as of now; state: a
 *         position in unit's a|b|c; histogram: times by their length, in ns or us, since the start
 * order   the order of the JSON text: paths with a common prefix stand together
 *
 * Units are in the names. A name, once shipped, keeps its meaning.
 */
/* Each tier has these, as struct stats_tier. */
#define STAT_TIER(t)                                                                           \
	STAT("tiers." #t ".state", tiers_##t##_state, state,                                   \
	     "off|starting|up|degraded|readonly|offline|misconfigured", "State of the tier")   \
	STAT("tiers." #t ".hit_blocks_total", tiers_##t##_hit_blocks_total, counter, "blocks", \
	     "Blocks loaded that were found there")                                            \
	STAT("tiers." #t ".read_bytes_total", tiers_##t##_read_bytes_total, counter, "bytes",  \
	     "Image bytes read from it")                                                       \
	STAT("tiers." #t ".written_bytes_total", tiers_##t##_written_bytes_total, counter,     \
	     "bytes", "Image bytes written to it")                                             \
	STAT("tiers." #t ".corrupt_blocks_total", tiers_##t##_corrupt_blocks_total, counter,   \
	     "blocks", "Images that failed their checksum; each became a miss")                \
	STAT("tiers." #t ".load_duration_ns", tiers_##t##_load_duration_ns, histogram, "ns",   \
	     "load.duration_ns of the load ops whose farthest block came from there, of gpu, " \
	     "host, nvme and redis")
/* Each tier of this node also has these. */
#define STAT_ROOM(t)                                                                          \
	STAT("tiers." #t ".capacity_bytes", tiers_##t##_capacity_bytes, gauge, "bytes",       \
	     "Bytes the tier may hold")                                                       \
	STAT("tiers." #t ".used_bytes", tiers_##t##_used_bytes, gauge, "bytes",               \
	     "Bytes of it in use, rounding up to slots included")                             \
	STAT("tiers." #t ".blocks", tiers_##t##_blocks, gauge, "blocks", "Blocks kept there") \
	STAT("tiers." #t ".evicted_blocks_total", tiers_##t##_evicted_blocks_total, counter,  \
	     "blocks", "Blocks dropped from it to make room or by request")

STAT("uptime_s", uptime_s, gauge, "s", "Seconds since the daemon started, as of its last heartbeat")

STAT("lookup.calls_total", lookup_calls_total, counter, "lookups",
     "Lookups, each for many blocks; engines whose library speaks a version of the protocol below "
     "14 count none")
STAT("lookup.requested_blocks_total", lookup_requested_blocks_total, counter, "blocks",
     "Blocks that engines asked the index for")
STAT("lookup.hit_blocks_total", lookup_hit_blocks_total, counter, "blocks",
     "How many of the blocks looked up were present")
STAT("lookup.gpu_blocks_total", lookup_gpu_blocks_total, counter, "blocks",
     "Blocks looked up that the engine's GPU had. Each block looked up is counted in one of "
     "gpu, host, nvme, redis and miss, for the nearest tier that has it; between two blocks of a "
     "lookup that are in one tier, the others are counted for it, too")
STAT("lookup.host_blocks_total", lookup_host_blocks_total, counter, "blocks",
     "Blocks looked up that host memory had")
STAT("lookup.nvme_blocks_total", lookup_nvme_blocks_total, counter, "blocks",
     "Blocks looked up that only NVMe had")
STAT("lookup.redis_blocks_total", lookup_redis_blocks_total, counter, "blocks",
     "Blocks looked up that only Redis had; 0, since the index has the tiers of this node alone: "
     "a block of Redis is a miss until a prefetch has brought it")
STAT("lookup.miss_blocks_total", lookup_miss_blocks_total, counter, "blocks",
     "Blocks looked up that were not there")
STAT("lookup.minute_requested_blocks", lookup_minute_requested_blocks, gauge, "blocks",
     "Blocks looked up in the last minute")
STAT("lookup.minute_hit_blocks", lookup_minute_hit_blocks, gauge, "blocks",
     "How many of these were present")
STAT("lookup.hour_requested_blocks", lookup_hour_requested_blocks, gauge, "blocks",
     "Blocks looked up in the last hour")
STAT("lookup.hour_hit_blocks", lookup_hour_hit_blocks, gauge, "blocks",
     "How many of these were present")
STAT("lookup.requested_tokens_total", lookup_requested_tokens_total, counter, "tokens",
     "Tokens of the blocks that engines asked the index for")
STAT("lookup.hit_tokens_total", lookup_hit_tokens_total, counter, "tokens",
     "Tokens of the blocks looked up that were present")

STAT("store.blocks_total", store_blocks_total, counter, "blocks", "Blocks stored")
STAT("store.dropped_blocks_total", store_dropped_blocks_total, counter, "blocks",
     "Blocks offered but not kept: no room, too late, cancelled, or kvtierd is drained")
STAT("store.no_room_blocks_total", store_no_room_blocks_total, counter, "blocks",
     "Blocks not kept because memory or the index had no room for them. Each block in "
     "dropped_blocks_total is in one of no_room, late, canceled, drained, no_parent, no_page and "
     "error")
STAT("store.late_blocks_total", store_late_blocks_total, counter, "blocks",
     "Blocks not kept because their op had reached its deadline")
STAT("store.canceled_blocks_total", store_canceled_blocks_total, counter, "blocks",
     "Blocks not kept because their op was canceled, or its connection ended")
STAT("store.drained_blocks_total", store_drained_blocks_total, counter, "blocks",
     "Blocks not kept because they were offered after kvtierctl drain")
STAT("store.no_parent_blocks_total", store_no_parent_blocks_total, counter, "blocks",
     "Blocks not kept because the block before them in their chain was not, so that no lookup "
     "would find them")
STAT("store.no_page_blocks_total", store_no_page_blocks_total, counter, "blocks",
     "Blocks not kept because their engine had not allocated their page, or has no page of this "
     "number")
STAT("store.error_blocks_total", store_error_blocks_total, counter, "blocks",
     "Blocks not kept because a device or a library failed; the log has it")
STAT("store.logical_bytes_total", store_logical_bytes_total, counter, "bytes",
     "Size of the stored blocks in the engines' own format")
STAT("store.tokens_total", store_tokens_total, counter, "tokens", "Tokens of the stored blocks")
STAT("store.image_bytes_total", store_image_bytes_total, counter, "bytes",
     "Size of the stored blocks as kept")
STAT("store.raw_blocks_total", store_raw_blocks_total, counter, "blocks",
     "Blocks kept raw because their codec could not hold them")
STAT("store.present_blocks_total", store_present_blocks_total, counter, "blocks",
     "Blocks offered that were there already, and were not copied")
STAT("store.sparse_blocks_total", store_sparse_blocks_total, counter, "blocks",
     "Blocks not stored since their engine had not allocated their page")
STAT("store.ops_total", store_ops_total, counter, "ops",
     "Store ops of which a block at least was stored, or was there already")
STAT("store.duration_ns", store_duration_ns, histogram, "ns",
     "How long these ops took, from when the core thread read the op until it completed it")
STAT("store.p50_us", store_p50_us, gauge, "us",
     "Half of these ops took no longer; since the start, at most 1/32 off")
STAT("store.p99_us", store_p99_us, gauge, "us",
     "99 of 100 of these ops took no longer; since the start, at most 1/32 off")

STAT("load.blocks_total", load_blocks_total, counter, "blocks", "Blocks given back to engines")
STAT("load.failed_blocks_total", load_failed_blocks_total, counter, "blocks",
     "Blocks present but not given back: too late, cancelled, damaged, page out of range")
STAT("load.no_room_blocks_total", load_no_room_blocks_total, counter, "blocks",
     "Blocks not given back because host memory had no room to bring them there. Each block in "
     "failed_blocks_total is in one of no_room, late, canceled, no_page and error")
STAT("load.late_blocks_total", load_late_blocks_total, counter, "blocks",
     "Blocks not given back because their op had reached its deadline")
STAT("load.canceled_blocks_total", load_canceled_blocks_total, counter, "blocks",
     "Blocks not given back because their op was canceled, or its connection ended")
STAT("load.no_page_blocks_total", load_no_page_blocks_total, counter, "blocks",
     "Blocks not given back because their engine had not allocated their page, or has no page of "
     "this number")
STAT("load.error_blocks_total", load_error_blocks_total, counter, "blocks",
     "Blocks not given back because their image was damaged, or a device failed; the log has it")
STAT("load.sparse_blocks_total", load_sparse_blocks_total, counter, "blocks",
     "Blocks not loaded since their engine had not allocated their page")
STAT("load.missed_blocks_total", load_missed_blocks_total, counter, "blocks",
     "Blocks asked for that were not there")
STAT("load.logical_bytes_total", load_logical_bytes_total, counter, "bytes",
     "Size of the loaded blocks in the engines' own format")
STAT("load.tokens_total", load_tokens_total, counter, "tokens", "Tokens of the loaded blocks")
STAT("load.ops_total", load_ops_total, counter, "ops",
     "Load ops of which a block at least was loaded")
STAT("load.duration_ns", load_duration_ns, histogram, "ns",
     "How long these ops took, from when the core thread read the op until it completed it")
STAT("load.p50_us", load_p50_us, gauge, "us",
     "Half of these ops took no longer; since the start, at most 1/32 off")
STAT("load.p99_us", load_p99_us, gauge, "us",
     "99 of 100 of these ops took no longer; since the start, at most 1/32 off")

STAT("reuse.gap_us", reuse_gap_us, histogram, "us",
     "From a use of a block to its next one; of a sample of keys, counted for all. A use is a load "
     "of a block that is there, or a store of one that is absent")
STAT("reuse.sampled_keys", reuse_sampled_keys, gauge, "keys", "Keys in the sample")
STAT("reuse.keys_per_sample", reuse_keys_per_sample, gauge, "keys",
     "One of so many keys is sampled, of those that were used longest ago, and more of the others")
STAT("miss_ratio.half_ppm", miss_ratio_half_ppm, gauge, "ppm",
     "How many of a million uses would not be found in host memory if it had half its size; an "
     "estimate for the last days")
STAT("miss_ratio.same_ppm", miss_ratio_same_ppm, gauge, "ppm", "The same, with the size it has")
STAT("miss_ratio.twice_ppm", miss_ratio_twice_ppm, gauge, "ppm", "The same, with twice its size")
STAT("miss_ratio.four_times_ppm", miss_ratio_four_times_ppm, gauge, "ppm",
     "The same, with four times its size")
STAT("working_set.15m_bytes", working_set_15m_bytes, gauge, "bytes",
     "Host memory that all blocks take which were used in the last 15 minutes; an estimate, up to "
     "five times what there is")
STAT("working_set.1h_bytes", working_set_1h_bytes, gauge, "bytes", "The same, of the last hour")
STAT("working_set.24h_bytes", working_set_24h_bytes, gauge, "bytes", "The same, of the last day")

STAT("prefetch.blocks_total", prefetch_blocks_total, counter, "blocks",
     "Blocks that engines asked to have in host memory, and that are there now")
STAT("prefetch.missed_blocks_total", prefetch_missed_blocks_total, counter, "blocks",
     "How many of the blocks asked for no tier had, or could not be brought")

STAT("gpu.devices", gpu_devices, gauge, "devices", "GPUs that can be served")
STAT("gpu.failed_devices", gpu_failed_devices, gauge, "devices",
     "GPUs that were in use and do not work")
STAT("gpu.staged_spaces", gpu_staged_spaces, gauge, "spaces",
     "Spaces whose pages on a GPU are copied by their engine's CPU")
STAT("gpu.regions", gpu_regions, gauge, "regions", "Regions of engines in the memory of GPUs")
STAT("gpu.own_bytes", gpu_own_bytes, gauge, "bytes",
     "Memory of GPUs that kvtierd's buffers and kernels take")
STAT("gpu.copied_out_bytes_total", gpu_copied_out_bytes_total, counter, "bytes",
     "Bytes that crossed the wire from GPUs to host memory")
STAT("gpu.copied_in_bytes_total", gpu_copied_in_bytes_total, counter, "bytes",
     "Bytes that crossed the wire from host memory to GPUs")
STAT("gpu.lost_total", gpu_lost_total, counter, "times",
     "Times that a GPU's context was lost with all that was mapped in it")

STAT_TIER(gpu)
STAT_ROOM(gpu)
STAT_TIER(host)
STAT_ROOM(host)
STAT("tiers.host.pinned_bytes", tiers_host_pinned_bytes, gauge, "bytes",
     "Bytes of its memory that are registered with the CUDA driver now; 0 while no GPU is in use")
STAT("tiers.host.near_slots_total", tiers_host_near_slots_total, counter, "slots",
     "Slots that blocks of GPUs got on their GPU's NUMA node")
STAT("tiers.host.far_slots_total", tiers_host_far_slots_total, counter, "slots",
     "Slots that blocks of GPUs got on another node, since theirs was full; not counted where "
     "nodes are not known")
STAT("tiers.host.moved_blocks_total", tiers_host_moved_blocks_total, counter, "blocks",
     "Blocks copied inside it to empty a slab")
STAT("tiers.host.evicted_age_us", tiers_host_evicted_age_us, histogram, "us",
     "How long after its first use there a block was evicted from host memory; of a sample of "
     "keys, counted for all")
STAT("tiers.host.evicted_idle_us", tiers_host_evicted_idle_us, histogram, "us",
     "How long a block had not been used when it was evicted from host memory; of the same sample")
STAT("tiers.host.demoted_blocks_total", tiers_host_demoted_blocks_total, counter, "blocks",
     "Blocks that gave up their host memory and stay on NVMe")
STAT("tiers.host.promoted_blocks_total", tiers_host_promoted_blocks_total, counter, "blocks",
     "Blocks that came back to host memory from NVMe")
STAT_TIER(nvme)
STAT_ROOM(nvme)
STAT("tiers.nvme.store_duration_ns", tiers_nvme_store_duration_ns, histogram, "ns",
     "How long it took to write a block there, from when it was given to a disk until that had it")
STAT("tiers.nvme.disks", tiers_nvme_disks, gauge, "disks", "Paths in [nvme] path")
STAT("tiers.nvme.usable_disks", tiers_nvme_usable_disks, gauge, "disks", "Disks that can be read")
STAT("tiers.nvme.disk_written_bytes_total", tiers_nvme_disk_written_bytes_total, counter, "bytes",
     "Bytes written to the disks: images, headers, footers")
STAT("tiers.nvme.write_amplification_percent", tiers_nvme_write_amplification_percent, gauge,
     "percent",
     "disk_written_bytes_total for each written_bytes_total; 100: each byte is written once")
STAT("tiers.nvme.budget_percent", tiers_nvme_budget_percent, gauge, "percent",
     "What is left of the write budget's reserve; 0: writes are skipped; 100: full, or there is "
     "no budget")
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
STAT("tiers.nvme.stalls_total", tiers_nvme_stalls_total, counter, "stalls",
     "Times that a disk did not answer within [nvme] stall_us")
STAT("tiers.nvme.recovered_blocks", tiers_nvme_recovered_blocks, gauge, "blocks",
     "Blocks found at the start")
STAT("tiers.nvme.coded_blocks_total", tiers_nvme_coded_blocks_total, counter, "blocks",
     "Blocks written in fewer bytes, as [nvme] compress and codec say; with auto the other written "
     "blocks, less coding_full_blocks_total, are of spaces that would save less than 6 %")
STAT("tiers.nvme.coding_full_blocks_total", tiers_nvme_coding_full_blocks_total, counter, "blocks",
     "Blocks written as they are and not in fewer bytes, since there was no memory for that: 64 "
     "MiB of coded ones were on their way already")
STAT("tiers.nvme.requantised_blocks_total", tiers_nvme_requantised_blocks_total, counter, "blocks",
     "Blocks written in lesser values, as [nvme] codec says; they are coded blocks, too")
STAT("tiers.nvme.recovery_bytes", tiers_nvme_recovery_bytes, gauge, "bytes",
     "Bytes read to find them")
STAT("tiers.nvme.recovery_ms", tiers_nvme_recovery_ms, gauge, "ms", "Time spent to find them")
STAT("tiers.nvme.residency_s", tiers_nvme_residency_s, gauge, "s",
     "How long blocks stayed: the mean time, since the start, from when a segment was full until "
     "its blocks were dropped to use it again. If it is minutes, give the tier more bytes")
STAT_TIER(redis)
STAT("tiers.redis.request_ns", tiers_redis_request_ns, histogram, "ns",
     "How long reads and writes there took, from when the core thread asked until it had the "
     "answer; also those that failed")
STAT("tiers.redis.store_duration_ns", tiers_redis_store_duration_ns, histogram, "ns",
     "The same of the writes there that were taken")
STAT("tiers.redis.endpoints", tiers_redis_endpoints, gauge, "endpoints",
     "Endpoints that have a part of the blocks: those of [redis] endpoints, or the masters of the "
     "Cluster")
STAT("tiers.redis.usable_endpoints", tiers_redis_usable_endpoints, gauge, "endpoints",
     "Endpoints that can be read")
STAT("tiers.redis.queued_blocks", tiers_redis_queued_blocks, gauge, "blocks",
     "Blocks that wait to be written there, or are on their way")
STAT("tiers.redis.queued_bytes", tiers_redis_queued_bytes, gauge, "bytes",
     "Image bytes of blocks that wait or are on their way; at most [redis] max_inflight_bytes")
STAT("tiers.redis.read_percent", tiers_redis_read_percent, gauge, "percent",
     "Bytes read from there for 100 bytes that engines store at this node, at most 100: a mean in "
     "which recent blocks count most. Below 17, [redis] write = auto writes blocks when they leave "
     "memory")
STAT("tiers.redis.written_blocks_total", tiers_redis_written_blocks_total, counter, "blocks",
     "Blocks written there")
STAT("tiers.redis.coded_blocks_total", tiers_redis_coded_blocks_total, counter, "blocks",
     "Blocks written in fewer bytes, as [redis] compress says; with auto the other written blocks, "
     "less coding_full_blocks_total, are of spaces that would save less than 6 %")
STAT("tiers.redis.coding_full_blocks_total", tiers_redis_coding_full_blocks_total, counter,
     "blocks",
     "Blocks written as they are and not in fewer bytes, since there was no memory for that: 64 "
     "MiB of coded ones were on their way already")
STAT("tiers.redis.requantised_blocks_total", tiers_redis_requantised_blocks_total, counter,
     "blocks", "Blocks written in lesser values, as [redis] codec says, or as NVMe had them")
STAT("tiers.redis.saved_bytes_total", tiers_redis_saved_bytes_total, counter, "bytes",
     "Bytes by which coded blocks were shorter")
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
     "Values that are whole, but without a MAC that [redis] secret_file or seal_files and the "
     "tenant make; each became a miss")
STAT("tiers.redis.other_form_blocks_total", tiers_redis_other_form_blocks_total, counter, "blocks",
     "Values in the form of an older or newer kvtierd; each became a miss, and stays")
STAT("tiers.redis.unasked_blocks_total", tiers_redis_unasked_blocks_total, counter, "blocks",
     "Loads of blocks that host memory made no room for, as Redis did not say whether it has them: "
     "its user has no permission for GETRANGE and STRLEN")
STAT("tiers.redis.timeouts_total", tiers_redis_timeouts_total, counter, "requests",
     "Requests not answered within [redis] timeout_ms")
STAT("tiers.redis.errors_total", tiers_redis_errors_total, counter, "requests",
     "Requests answered with an error that has no counter of its own")
STAT("tiers.redis.refused_stores_total", tiers_redis_refused_stores_total, counter, "requests",
     "Writes refused: out of memory, read only, or misconfigured")
STAT("tiers.redis.redirects_total", tiers_redis_redirects_total, counter, "requests",
     "Requests sent on to another endpoint of the Cluster (MOVED, ASK)")
STAT("tiers.redis.refused_hosts_total", tiers_redis_refused_hosts_total, counter, "times",
     "Redirects to an endpoint that no slot map has; endpoints of a map that are not [redis] "
     "cluster_hosts, or whose certificate is not theirs: these were not sent a password")
STAT("tiers.redis.topology_changes_total", tiers_redis_topology_changes_total, counter, "changes",
     "Maps of the Cluster's slots taken over")
STAT("tiers.redis.protocol_errors_total", tiers_redis_protocol_errors_total, counter, "errors",
     "Answers that break the protocol or its bounds; each cost its connection")
STAT("tiers.redis.breaker_opens_total", tiers_redis_breaker_opens_total, counter, "times",
     "Times that an endpoint was left alone for a while, 1 to 30 s")
STAT("tiers.redis.reconnects_total", tiers_redis_reconnects_total, counter, "connections",
     "Connections made again")

STAT("evicted.gpu.room_blocks_total", evicted_gpu_room_blocks_total, counter, "blocks",
     "Images dropped from the memory of GPUs to make room for others. Each block in a tier's "
     "evicted_blocks_total is in one of room, index and asked")
STAT("evicted.gpu.asked_blocks_total", evicted_gpu_asked_blocks_total, counter, "blocks",
     "Images dropped from there by kvtierctl evict")
STAT("evicted.host.room_blocks_total", evicted_host_room_blocks_total, counter, "blocks",
     "Blocks dropped from host memory to make room for others")
STAT("evicted.host.index_blocks_total", evicted_host_index_blocks_total, counter, "blocks",
     "Blocks dropped from there since the index holds [index] max_blocks")
STAT("evicted.host.asked_blocks_total", evicted_host_asked_blocks_total, counter, "blocks",
     "Blocks dropped from there by kvtierctl evict")
STAT("evicted.nvme.room_blocks_total", evicted_nvme_room_blocks_total, counter, "blocks",
     "Blocks dropped from NVMe because their segment is used again")
STAT("evicted.nvme.index_blocks_total", evicted_nvme_index_blocks_total, counter, "blocks",
     "Blocks dropped from there since the index holds [index] max_blocks")

STAT("hints.accepted_blocks_total", hints_accepted_blocks_total, counter, "blocks",
     "Blocks (of a model, hints) for which a hint was done, whatever its action")
STAT("hints.foreseen_blocks_total", hints_foreseen_blocks_total, counter, "blocks",
     "Blocks brought from NVMe to memory before their announced return ([hints] prefetch_lead)")
STAT("hints.clipped_blocks_total", hints_clipped_blocks_total, counter, "blocks",
     "Blocks for which a hint was done up to a limit: [hints] share_percent, max_blocks, the "
     "longest ttl, or room")
STAT("hints.deferred_blocks_total", hints_deferred_blocks_total, counter, "blocks",
     "Blocks for which a hint is done later")
STAT("hints.rejected_blocks_total", hints_rejected_blocks_total, counter, "blocks",
     "Blocks for which a hint cannot be done: there is no NVMe tier to demote to, or a model "
     "cannot have the action")
STAT("hints.missing_blocks_total", hints_missing_blocks_total, counter, "blocks",
     "Blocks of hints that were not there")
STAT("hints.expired_blocks_total", hints_expired_blocks_total, counter, "blocks",
     "Blocks whose ttl was over: they are the first to be evicted")
STAT("hints.kept_bytes", hints_kept_bytes, gauge, "bytes",
     "Image bytes that are retained (priority above 0) or pinned; [hints] share_percent is a "
     "tenant's bound")
STAT("hints.noted_blocks", hints_noted_blocks, gauge, "blocks",
     "Blocks with a ttl, in a session, retained or pinned; at most a quarter of [index] max_blocks")
STAT("hints.sessions", hints_sessions, gauge, "sessions", "Sessions that have blocks")
STAT("hints.lowered_spaces", hints_lowered_spaces, gauge, "spaces",
     "Spaces whose revision was demoted or retired, and that were not opened since")

STAT("clients", clients, gauge, "clients", "Connections open")
STAT("core.iteration_ns", core_iteration_ns, histogram, "ns",
     "How long the core thread worked before it looked again for events, or slept")
STAT("leases", leases, gauge, "blocks", "Pins held on blocks by ops and connections")
STAT("ops.outstanding", ops_outstanding, gauge, "ops", "Ops submitted and not yet completed")
STAT("ops.timed_out_total", ops_timed_out_total, counter, "ops", "Ops that reached their deadline")
STAT("ops.canceled_total", ops_canceled_total, counter, "ops",
     "Ops ended early by their client or its death")
STAT("clients_total", clients_total, counter, "clients", "Connections accepted")
STAT("clients_refused_total", clients_refused_total, counter, "clients",
     "Connections refused, for any of the reasons that follow")
STAT("refused.version_total", refused_version_total, counter, "clients",
     "Connections refused since libkvtier and kvtierd have no version in common")
STAT("refused.full_total", refused_full_total, counter, "clients",
     "Connections refused since there were too many: of a user, a process, a tenant or all")
STAT("refused.protocol_total", refused_protocol_total, counter, "clients",
     "Connections refused since no HELLO came, or no proper one")
STAT("refused.permission_total", refused_permission_total, counter, "clients",
     "Connections refused since the kernel did not say who the client is")
STAT("refused.resources_total", refused_resources_total, counter, "clients",
     "Connections refused since kvtierd lacked memory, descriptors or threads for them")
STAT("protocol_errors_total", protocol_errors_total, counter, "errors",
     "Connections ended for breaking the protocol, open ones too; another version is no such error")
STAT("spaces", spaces, gauge, "spaces",
     "Identities that are kept, open or not; at most [index] max_spaces")
STAT("spaces_recycled_total", spaces_recycled_total, counter, "spaces",
     "Identities that were removed with their blocks, since there were more than [index] "
     "max_spaces")
STAT("index.entries", index_entries, gauge, "entries", "Entries of the shared index")
STAT("index.bytes", index_bytes, gauge, "bytes", "Memory the index uses")
STAT("index.crowded_blocks_total", index_crowded_blocks_total, counter, "blocks",
     "Blocks left out since the index had no room near their place, though it had room elsewhere: "
     "keys made to collide")
#undef STAT_TIER
#undef STAT_ROOM
#undef STAT
