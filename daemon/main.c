/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - starts the daemon's modules in order, runs the loop, and stops them in reverse order.
 *
 *	config -> lock the runtime directory -> loop -> stats page -> signals -> host memory ->
 *	index, blocks -> spaces -> copies -> devices -> ops -> NVMe -> Redis -> admin socket ->
 *	NVMe's records found -> engines' socket -> READY ... SIGTERM -> sockets closed, connections
 *	cut -> ops drained -> memory written to NVMe, the queue to Redis -> all closed
 *
 * If only a new process can use a GPU, the daemon stops in the same way, with EXIT_AGAIN.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <malloc.h>
#include <stddef.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/list.h"
#include "daemon/device/device_cpu.h"
#include "daemon/cuda/cuda_up.h"
#include "daemon/config/config.h"
#include "daemon/config/config_place.h"
#include "daemon/config/config_redis.h"
#include "daemon/config/config_value.h"
#include "daemon/conn/server.h"
#include "daemon/move/gpu_cache.h"
#include "daemon/move/hints.h"
#include "daemon/move/purge.h"
#include "daemon/policy/reuse.h"
#include "daemon/admin/ctl.h"
#include "daemon/admin/files.h"
#include "daemon/admin/gauges.h"
#include "daemon/admin/reload.h"
#include "kvtierd.h"
#include "tiers/host/host.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/own.h"
#include "base/text.h"
#include "daemon/op/op.h"
#include "daemon/write/outbox.h"
#include "daemon/up/up.h"
#include "daemon/verify/foresee.h"
#include "daemon/verify/verify.h"
#include "daemon/write/writeback.h"
#include "base/vault.h"

enum {
	/* the configuration is wrong: restarting will not help. EX_CONFIG */
	EXIT_CONFIG = 78,
	/* the service manager is to start another process: EX_TEMPFAIL */
	EXIT_AGAIN = 75,
	HEARTBEAT_NS = 250000000, /* index heartbeat, stats, watchdog */
	DRAIN_NS = 2000000000,    /* at most, at a stop, for blocks in flight */
	SETTLE_NS = 2000000000,   /* and for the rest after the tiers were drained; on_drained() */
	/* at most, at a start, for NVMe's records; then the rest is found while serving */
	FIND_NS = 5000000000u,
};

struct program {
	struct kvtierd d;
	struct config config;
	struct config_redis *redis; /* secrets; gone after start() */
	struct redis_tier_conf redis_conf;
	struct notify notify;
	int lock_fd;
	struct loop_watch signals;
	struct loop_timer heartbeat;
	struct loop_timer drained; /* a stop: looks again */
	uint64_t drain_until_ns, io_until_ns, watchdog_due_ns;
	uint32_t drains; /* of tiers, begun and not ended */
	bool stopping, tiers_drained, ended;
	bool told_to_stop; /* by a signal */
	bool reload_due;   /* a SIGHUP came before engines were served */
	const char *path;  /* of the configuration; NULL: the defaults */
	int status;        /* of the exit */
	struct cuda_search *search;
	char text[512];
};

/* --- running --- */

static void on_sleep(void *arg, bool asleep)
{
	struct wire_index *head = index_head(((struct kvtierd *)arg)->tables.index);

	/* SEQ_CST like the client's store of sq_tail and load of this: either the pollers that run
	 * next see its entry, or it sees us asleep and rings. */
	__atomic_store_n(&head->asleep, asleep, __ATOMIC_SEQ_CST);
}

/* Looks again in a millisecond whether the loop may end. */
static void look_again(struct program *p)
{
	loop_timer_set(p->d.loop, &p->drained, loop_now(p->d.loop) + 1000000);
}

/* Called when a tier has drained. Each tier limits its own time. */
static void on_tier_drained(void *arg)
{
	struct program *p = arg;

	if (--p->drains > 0)
		return;
	p->tiers_drained = true;
	p->drain_until_ns = loop_now(p->d.loop) + SETTLE_NS;
	p->io_until_ns = p->drain_until_ns + (uint64_t)p->config.nvme_stall_us * 1000;
	look_again(p);
}

static void drain_tiers(struct program *p)
{
	p->drains = 2;
	writeback_drain(p->d.tables.writeback, on_tier_drained, p);
	outbox_drain(p->d.tables.outbox, on_tier_drained, p);
}

/* Whether helpers close what came from clients, look at a path, or read the configuration. Each may
 * block. */
static bool closing(const struct kvtierd *d)
{
	return server_busy(d->server) || files_busy(d->files) || reload_busy(d->reload);
}

/* Looks whether the stop is complete. When the tiers are drained, a disk may still have I/O. A
 * slow disk ends it within [nvme] stall_us; a disk that takes longer is offline, and is not
 * waited for. */
static void on_drained(struct loop_timer *timer)
{
	struct program *p = container_of(timer, struct program, drained);
	struct kvtierd *d = &p->d;
	const uint64_t now = loop_now(d->loop);
	const bool late = now >= p->drain_until_ns;
	const bool idle = ops_outstanding(d->ops) == 0 && !d->verify &&
			  !emptier_busy(d->tables.mover.emptier);
	const bool slow = now < p->io_until_ns && nvme_up_moving(d);

	if (!p->tiers_drained && (idle || late))
		drain_tiers(p);
	else if (!p->tiers_drained || slow || (!late && !(idle && nvme_up_idle(d) && !closing(d))))
		look_again(p);
	else {
		p->ended = true;
		loop_stop(d->loop);
	}
}

static void begin_stop(struct program *p)
{
	p->stopping = true;
	foresee_stop(p->d.tables.foresee);
	(void)notify_send(&p->notify, "STOPPING=1");
	stats_health_set(p->d.stats, STATS_HEALTH_STARTING, false);
	stats_health_set(p->d.stats, STATS_HEALTH_STOPPING, true);
	if (p->d.server)
		server_shutdown(p->d.server);
	ctl_shutdown(p->d.ctl);
	p->drain_until_ns = loop_now(p->d.loop) + DRAIN_NS;
	loop_timer_set(p->d.loop, &p->drained, loop_now(p->d.loop));
}

static _Noreturn void leave(struct program *p, int status)
{
	if (p->d.server)
		server_shutdown(p->d.server);
	ctl_shutdown(p->d.ctl);
	stats_close(p->d.stats, p->config.stats_path);
	_exit(status);
}

/* Signals that other daemons take for an order. By default they would end this one at once, without
 * writing memory to NVMe. */
static const int ignored[] = { SIGUSR1, SIGUSR2 };

static bool is_ignored(uint32_t number)
{
	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
		if ((uint32_t)ignored[i] != number)
			continue;
		log_warning(
			"signal",
			"signal %u (%s) is ignored: nothing is reopened by it; SIGHUP reads the "
			"configuration again",
			number, strsignal((int)number));
		return true;
	}
	return false;
}

static void on_hangup(struct program *p)
{
	if (p->stopping)
		return;
	p->reload_due = !p->d.reload;
	if (p->d.reload)
		(void)reload_begin(p->d.reload);
}

/* The second signal that asks for a stop ends the daemon without the first one's work. */
static void on_signal(struct loop_watch *watch, uint32_t events)
{
	struct program *p = container_of(watch, struct program, signals);
	struct signalfd_siginfo info;

	(void)events;
	if (read(watch->fd, &info, sizeof(info)) != (ssize_t)sizeof(info) ||
	    is_ignored(info.ssi_signo))
		return;
	if (info.ssi_signo == SIGHUP) {
		on_hangup(p);
	} else if (p->told_to_stop) {
		log_warning("stop",
			    "signal %u, the second one: ending at once; what was not "
			    "written is lost",
			    info.ssi_signo);
		leave(p, EXIT_FAILURE);
	} else {
		p->told_to_stop = true;
		log_info("signal", "signal %u: stopping", info.ssi_signo);
		if (!p->stopping)
			begin_stop(p);
	}
}

/* Stops, because only a new process can do what is needed. */
static void begin_again(struct program *p, const char *why)
{
	if (p->stopping)
		return;
	log_error("stop",
		  "%s: stopping, for the service manager to start kvtierd again (exit status %d)",
		  why, EXIT_AGAIN);
	p->status = EXIT_AGAIN;
	begin_stop(p);
}

static void on_ending(void *arg, struct device *device, const char *why)
{
	struct device_note note;
	char text[400];

	device_note(device, &note);
	snprintf(text, sizeof(text), "%s: the driver gives this process no context any more: %s",
		 note.name, why);
	begin_again(arg, text);
}

/* Without a service manager kvtierd would not be started again, so `status` asks people to do
 * it. */
static void look_for_gpus(struct program *p)
{
	struct devices *devices = &p->d.devices;
	const enum cuda_search_news news =
		cuda_search_look(p->search, devices->gpu_note, sizeof(devices->gpu_note));

	if (p->search)
		devices->gpu_unused = news != CUDA_SEARCH_NONE;
	if (news == CUDA_SEARCH_READY && p->notify.fd >= 0)
		begin_again(p, devices->gpu_note);
}

static void keep_stats(struct program *p)
{
	const int r = stats_keep(p->d.stats);

	if (r > 0)
		log_warning("stats_page", "%s was truncated, and is whole again",
			    p->config.stats_path);
	else if (r < 0)
		log_error("stats_page",
			  "%s was truncated, and cannot be made whole: %s; kvtierctl stats and "
			  "status do not work until the next start",
			  p->config.stats_path, strerror(-r));
}

static void on_heartbeat(struct loop_timer *timer)
{
	struct program *p = container_of(timer, struct program, heartbeat);
	struct kvtierd *d = &p->d;
	const uint64_t now = loop_now(d->loop);

	__atomic_store_n(&index_head(d->tables.index)->heartbeat_ns, now, __ATOMIC_RELAXED);
	__atomic_store_n(&index_head(d->tables.index)->entries, index_entries(d->tables.index),
			 __ATOMIC_RELAXED);
	if (d->server)
		server_sample(d->server);
	if (!p->stopping)
		files_look(d->files);
	look_for_gpus(p);
	gauges_sync(d);
	stats_move_windows(d->stats, now);
	stats_heartbeat(d->stats, now);
	keep_stats(p);
	if (p->notify.watchdog_ns && now >= p->watchdog_due_ns) {
		(void)notify_send(&p->notify, "WATCHDOG=1");
		p->watchdog_due_ns = now + p->notify.watchdog_ns / 2;
	}
	loop_timer_set(d->loop, timer, now + HEARTBEAT_NS);
}

/* --- starting --- */

#define fail(p, error, ...) text_fail((p)->text, sizeof((p)->text), error, __VA_ARGS__)

/* Each socket that the service manager passed has to be one of [socket]: engines would wait at
 * another one for ever. */
static int check_held(struct program *p)
{
	char path[SOCKET_PATH_BYTES];
	int fd = 0;

	p->status = EXIT_CONFIG;
	for (uint32_t i = 0; fd >= 0; i++) {
		bool known = false;

		fd = socket_held(i, path);
		for (uint32_t j = 0; j < p->config.n_sockets; j++)
			known |= fd >= 0 && strcmp(p->config.sockets[j].path, path) == 0;
		if (fd >= 0 && !known)
			return fail(
				p, -EINVAL,
				"systemd listens at %s for kvtierd, and no [socket] has this path: "
				"correct [socket] path, or ListenSequentialPacket= of the socket "
				"unit",
				path);
	}
	if (fd == -ENOENT) {
		p->status = 0;
		return 0;
	}
	return fail(p, fd,
		    "systemd passed a descriptor to kvtierd that is no listening SOCK_SEQPACKET "
		    "socket with a path: the socket unit must say ListenSequentialPacket=");
}

static int lock_runtime_dir(struct program *p)
{
	char path[CONFIG_PATH_BYTES + 16];

	snprintf(path, sizeof(path), "%s/lock", p->config.daemon_runtime_dir);
	p->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (p->lock_fd < 0)
		return fail(p, -errno, "cannot open %s: %s", path, strerror(errno));
	if (flock(p->lock_fd, LOCK_EX | LOCK_NB))
		return fail(
			p, -EBUSY,
			"another kvtierd runs in %s: stop it, or give this one its own [daemon] "
			"runtime_dir",
			p->config.daemon_runtime_dir);
	/* the lock may have been removed under the daemon that holds it */
	for (uint32_t i = 0; i <= p->config.n_sockets; i++) {
		const bool admin = i == p->config.n_sockets;
		const char *socket = admin ? p->config.admin_path : p->config.sockets[i].path;

		if (socket_held_at(socket) < 0 && socket_answers(socket))
			return fail(
				p, -EADDRINUSE,
				"%s%s is another daemon's: it answers there; stop it, or give this "
				"one its own [daemon] runtime_dir",
				admin ? "" : "[socket] path: ", socket);
	}
	return 0;
}

static int open_stats(struct program *p)
{
	gid_t group = (gid_t)-1; /* leaves it as it is */
	int r = stats_open(p->config.stats_path, loop_now(p->d.loop), &p->d.stats);

	p->d.tables.stats = p->d.stats;
	if (r)
		return fail(p, r, "[daemon] runtime_dir: cannot make the stats page there: %s",
			    strerror(-r));
	loop_count_iterations(p->d.loop, &p->d.stats->v.core_iteration_ns);
	r = config_group("stats", p->config.stats_group, &group, p->text, sizeof(p->text));
	if (r)
		return r;
	r = stats_let_read(p->d.stats, p->config.stats_mode, group);
	if (r)
		return fail(p, r,
			    "[stats] group: cannot let group %s read the stats page: %s; the file "
			    "system of [daemon] runtime_dir has to have ACLs",
			    p->config.stats_group, strerror(-r));
	return 0;
}

/* Sets the quotas that follow from the bytes of host memory. Others are set where their subject is
 * made. */
static void open_quota(struct program *p, uint64_t host_bytes)
{
	static const enum quota_use uses[] = { QUOTA_host_bytes, QUOTA_in_flight_bytes };
	struct quota *quota = &p->d.quota;

	for (uint32_t i = 0; i < p->config.n_sockets; i++)
		quota_add(quota, p->config.sockets[i].tenant, p->config.sockets[i].share,
			  p->config.sockets[i].priority);
	for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++)
		quota_set(quota, uses[i], host_bytes, quota_lines[uses[i]].percent);
	quota_set(quota, QUOTA_kept_bytes, host_bytes, (uint32_t)p->config.hints_share_percent);
	p->d.tables.quota = quota;
}

static int open_host(struct program *p)
{
	struct tier_conf conf;
	char nodes[512];
	int r;

	config_host(&p->config, &conf);
	r = tier_open(TIER_HOST, &conf, p->d.loop, &p->d.tables.tiers[TIER_HOST], p->text,
		      sizeof(p->text));
	if (r == 0)
		open_quota(p, tables_host(&p->d.tables)->capacity_bytes);
	if (r == 0 && host_nodes_text(tables_host(&p->d.tables), nodes, sizeof(nodes))[0])
		log_info("host_memory", "host tier, by NUMA node: %s", nodes);
	if (r == 0 && host_note(tables_host(&p->d.tables))[0]) {
		log_info("host_memory", "%s", host_note(tables_host(&p->d.tables)));
		stats_health_set(p->d.stats, STATS_HEALTH_HUGE_PAGES, true);
	}
	return r;
}

static int open_index(struct program *p)
{
	struct kvtierd *d = &p->d;
	const uint64_t max = config_max_blocks(&p->config, tables_host(&d->tables)->capacity_bytes);
	int r = index_open(max, &d->tables.index);

	if (r == 0)
		r = blocks_open(&(struct blocks_conf){ .max_blocks = (uint32_t)max,
						       .gpu = gpu_cache_blocks(d->tables.gpu_cache),
						       .hints = hints_table(d->tables.hints),
						       .quota = &d->quota,
						       .changes = &d->changes,
						       .shared = p->config.redis_endpoints[0] !=
								 '\0' },
				d->tables.index, &d->tables.blocks);
	if (r)
		return fail(p, r, "[index] max_blocks: cannot reserve for %" PRIu64 " blocks: %s",
			    max, strerror(-r));
	quota_set(&d->quota, QUOTA_blocks, max, quota_lines[QUOTA_blocks].percent);
	loop_on_sleep(d->loop, on_sleep, d);
	index_head(d->tables.index)->heartbeat_ns = loop_now(d->loop);
	return 0;
}

static int open_device(struct program *p)
{
	struct device *cpu;
	int r = device_cpu_open(p->config.device_workers, config_device_depth(),
				VERIFY_JOBS + EMPTIER_JOBS + FORESEE_JOBS, p->d.loop, &cpu);

	if (r)
		return fail(p, r, "[device] workers: cannot start the CPU workers: %s",
			    strerror(-r));
	r = devices_add(&p->d.devices, cpu);
	assert(r == 0); /* the first */
	if (!cpu->guarded)
		log_warning(
			"userfaultfd",
			"userfaultfd is refused here: whether engines have allocated their pages "
			"is asked before each job, which costs more and sees less (memory that is "
			"swapped out looks like a hole)");
	stats_health_set(p->d.stats, STATS_HEALTH_NOT_GUARDED, !cpu->guarded);
	stats_names(p->d.stats, "cpu", codec_kernels(NULL)->name);
	stats_health_set(p->d.stats, STATS_HEALTH_KERNELS_REF, codec_kernels(NULL) == &codec_ref);
	return 0;
}

static int open_gpus(struct program *p)
{
	const int r = cuda_up(&p->config, tables_host(&p->d.tables), p->d.loop, &p->d.devices,
			      &p->search, p->text, sizeof(p->text));

	p->d.devices.hooks.ending = on_ending;
	p->d.devices.hooks.ending_arg = p;
	for (uint32_t i = 0; i < p->d.devices.n; i++)
		p->d.devices.all[i]->near =
			host_unit(tables_host(&p->d.tables), p->d.devices.all[i]->numa_node);
	return r;
}

static int open_gpu_cache(struct program *p)
{
	const struct gpu_cache_conf conf = {
		.tables = &p->d.tables,
		.loop = p->d.loop,
		.devices = &p->d.devices,
		.unit_bytes = p->config.gpu_bytes,
		.slab_bytes = p->config.host_slab_bytes,
	};

	return gpu_cache_open(&conf, &p->d.tables.gpu_cache, p->text, sizeof(p->text));
}

static int submit_copy(void *arg, struct device_job *job)
{
	const struct kvtierd *d = arg;

	return device_submit(devices_cpu(&d->devices), job);
}

static int open_emptier(struct program *p)
{
	struct kvtierd *d = &p->d;
	const struct emptier_conf conf = {
		.host = tables_host(&d->tables),
		.blocks = d->tables.blocks,
		.loop = d->loop,
		.submit = submit_copy,
		.arg = d,
		.moved_blocks = &d->tables.mover.counts.moved_blocks,
		.moved_bytes = &d->tables.mover.counts.moved_bytes,
	};

	return emptier_open(&conf, &d->tables.mover.emptier);
}

static const uint32_t codecs[CONFIG_CODECS] = {
	[CONFIG_CODEC_RAW] = CODEC_RAW,   [CONFIG_CODEC_FP8] = CODEC_FP8,
	[CONFIG_CODEC_INT8] = CODEC_INT8, [CONFIG_CODEC_LOSSLESS] = CODEC_LOSSLESS,
	[CONFIG_CODEC_Q4] = CODECS_Q4,    [CONFIG_CODEC_INT8V4] = CODECS_INT8V4,
};

static const uint32_t tier_codecs[] = {
	[CONFIG_TIER_CODEC_SAME] = 0,
	[CONFIG_TIER_CODEC_Q4] = CODECS_Q4,
	[CONFIG_TIER_CODEC_INT8V4] = CODECS_INT8V4,
};

/* Bits 1 << enum kvtier_codec, of bits 1 << enum config_codec. */
static uint32_t codecs_allowed(uint32_t allow)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < CONFIG_CODECS; i++)
		ret |= (allow >> i & 1) << codecs[i];
	return ret;
}

/* An error of [redis] that is its values' or its files': another start finds it again. */
static int of_redis(struct program *p, int r)
{
	if (r == -EINVAL || r == -ENOENT || r == -EACCES || r == -EPERM || r == -EBADMSG)
		p->status = EXIT_CONFIG;
	return r;
}

static int open_spaces(struct program *p)
{
	struct kvtierd *d = &p->d;
	int r;

	p->redis = config_redis_new();
	if (!p->redis)
		return fail(p, -ENOMEM, "[redis]: out of memory");
	r = of_redis(p,
		     config_redis(&p->config, p->redis, &p->redis_conf, p->text, sizeof(p->text)));
	if (r == 0 && p->text[0])
		log_warning("redis_note", "%s", p->text);
	if (r == 0)
		r = spaces_open(p->config.daemon_state_dir, p->config.index_max_spaces, &d->quota,
				&d->tables.spaces, p->text, sizeof(p->text));
	if (r == 0)
		spaces_codecs(d->tables.spaces, codecs_allowed(p->config.codec_allow),
			      codecs[p->config.codec_default]);
	d->tables.codec_of[TIER_NVME] = tier_codecs[p->config.nvme_codec];
	d->tables.codec_of[TIER_REDIS] = tier_codecs[p->config.redis_codec];
	if (r == 0 && p->redis->shared.n)
		spaces_shared_secret(d->tables.spaces, p->redis->shared.bytes, p->redis->shared.n);
	for (uint32_t i = 0; r == 0 && i < p->config.n_sockets; i++)
		r = spaces_tenant(d->tables.spaces, p->config.sockets[i].tenant, p->text,
				  sizeof(p->text));
	if (r)
		return r;
	spaces_seals(d->tables.spaces, p->redis->sealing, &p->redis->seals);
	spaces_attach(d->tables.spaces, blocks_counts(d->tables.blocks));
	return 0;
}

static int open_signals(struct program *p)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGQUIT);
	sigaddset(&set, SIGHUP);
	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		sigaddset(&set, ignored[i]);
	sigprocmask(SIG_BLOCK, &set, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	/* a store larger than the file size limit is an error of that device */
	(void)signal(SIGXFSZ, SIG_IGN);
	p->signals.ready = on_signal;
	p->signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (p->signals.fd < 0)
		return -errno;
	return loop_add(p->d.loop, &p->signals, EPOLLIN);
}

/* --- the modules, in the order in which they start; they stop in the reverse order --- */

static void close_lock(struct program *p)
{
	if (p->lock_fd >= 0)
		(void)close(p->lock_fd);
}

static void close_signals(struct program *p)
{
	if (p->signals.fd >= 0)
		(void)close(p->signals.fd);
}

static void close_index(struct program *p)
{
	if (p->d.tables.blocks)
		blocks_close(p->d.tables.blocks);
	changes_end(&p->d.changes);
	if (p->d.tables.index)
		index_close(p->d.tables.index);
}

/* Calls with the arguments that the table below cannot give. */
#define OPEN(name, ...)                           \
	static int open_##name(struct program *p) \
	{                                         \
		return __VA_ARGS__;               \
	}
#define CLOSE(name, call)                           \
	static void close_##name(struct program *p) \
	{                                           \
		call;                               \
	}
OPEN(loop, loop_open(config_spin_us(), &p->d.loop))
OPEN(hints, hints_open(&p->d.tables, p->d.loop,
		       config_max_hinted(&p->config, tables_host(&p->d.tables)->capacity_bytes),
		       CONFIG_HINTS_TTL_S, &p->d.tables.hints))
static int open_reuse(struct program *p)
{
	struct stats_values *v = &p->d.stats->v;
	const struct reuse_times times = {
		.gap = &v->reuse_gap_us,
		.age = &v->tiers_host_evicted_age_us,
		.idle = &v->tiers_host_evicted_idle_us,
	};
	uint64_t seed;
	int r;

	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		return -EIO;
	r = reuse_open(seed, &times, loop_now(p->d.loop), &p->d.tables.reuse);
	p->d.tables.mover.reuse = p->d.tables.reuse;
	return r;
}

OPEN(purge, purge_open(&p->d.tables, p->d.loop, &p->d.purge))
OPEN(ops, ops_open(&p->d.tables, p->d.loop, &p->d.devices, &p->config, &p->d.ops))
OPEN(pump, (op_pump_start(p->d.ops), 0))
OPEN(nvme, nvme_up(&p->d, p->text, sizeof(p->text)))
OPEN(redis, of_redis(p, redis_up(&p->d, &p->redis_conf, p->text, sizeof(p->text))))
OPEN(ctl, ctl_open(&p->d, &p->d.ctl, p->text, sizeof(p->text)))
CLOSE(loop, loop_close(p->d.loop))
CLOSE(stats, stats_close(p->d.stats, p->config.stats_path))
CLOSE(host, tier_close(tables_host(&p->d.tables)))
CLOSE(gpu_cache, gpu_cache_close(p->d.tables.gpu_cache))
CLOSE(hints, (hints_close(p->d.tables.hints), p->d.tables.hints = NULL))
CLOSE(spaces, spaces_close(p->d.tables.spaces))
CLOSE(emptier, (emptier_close(p->d.tables.mover.emptier), p->d.tables.mover.emptier = NULL))
CLOSE(reuse, (reuse_close(p->d.tables.reuse), p->d.tables.mover.reuse = NULL))
CLOSE(purge, purge_close(p->d.purge))
CLOSE(devices, devices_close(&p->d.devices))
CLOSE(gpus, cuda_search_close(p->search))
CLOSE(ops, ops_close(p->d.ops))
CLOSE(pump, op_pump_stop(p->d.ops))
CLOSE(nvme, nvme_down(&p->d))
CLOSE(redis, redis_down(&p->d))
CLOSE(ctl, ctl_close(p->d.ctl))
CLOSE(server, (reload_close(p->d.reload), files_close(p->d.files), server_close(p->d.server)))

static const struct module {
	/* 0 or -errno; NULL: serve() opens it, when all records are found */
	int (*open)(struct program *p);
	/* also of a module that was not opened, or half; NULL: another's does it */
	void (*close)(struct program *p);
	/* of a failure, before strerror(); NULL: open() wrote one to p->text */
	const char *sentence;
} modules[] = {
	{ check_held, NULL, NULL },
	{ lock_runtime_dir, close_lock, NULL },
	{ open_loop, close_loop, "cannot make the event loop" },
	{ open_stats, close_stats, NULL },
	{ open_signals, close_signals, "cannot listen for signals" },
	{ open_host, close_host, NULL },
	{ open_device, close_devices, NULL },
	{ open_gpus, close_gpus, NULL },
	{ open_gpu_cache, close_gpu_cache, NULL },
	{ open_hints, close_hints, "out of memory for hints: lower [index] max_blocks" },
	{ open_index, close_index, NULL },
	{ open_spaces, close_spaces, NULL },
	{ open_emptier, close_emptier, "cannot make the jobs that empty a slab" },
	{ open_reuse, close_reuse, "cannot make the sample of keys" },
	{ open_purge, close_purge, "cannot make a purge" },
	{ open_ops, close_ops, "cannot make the ops of [socket] max_clients" },
	{ open_pump, close_pump, NULL },
	{ open_nvme, close_nvme, NULL },
	{ open_redis, close_redis, NULL },
	{ open_ctl, close_ctl, NULL },
	{ NULL, close_server, NULL },
};
enum { MODULES = sizeof(modules) / sizeof(modules[0]) };

/* The soft limit of a shell is 1024 descriptors, for programs that call select(). A connection
 * takes six. */
static void raise_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

static int start(struct program *p)
{
	int r = config_make_dirs(&p->config, p->text, sizeof(p->text));

	p->d.config = &p->config;
	for (size_t i = 0; r == 0 && i < MODULES; i++) {
		r = modules[i].open ? modules[i].open(p) : 0;
		if (r && modules[i].sentence)
			(void)fail(p, r, "%s: %s", modules[i].sentence, strerror(-r));
	}
	config_redis_close(p->redis);
	return r;
}

static void stop(struct program *p)
{
	for (size_t i = MODULES; i-- > 0;)
		if (modules[i].close)
			modules[i].close(p);
	notify_close(&p->notify);
}

static void say_ready(struct program *p)
{
	const struct kvtierd *d = &p->d;

	static_assert((int)STATS_SOCKETS == (int)CONFIG_SOCKETS_MAX, "all are on the page");
	for (uint32_t i = 0; i < p->config.n_sockets; i++)
		log_info("serves",
			 "kvtierd " KVTIER_VERSION " serves %s: host tier %" PRIu64
			 " MiB in slabs of %" PRIu64 " KiB, kernels %s, tenant %s",
			 p->config.sockets[i].path, tables_host(&d->tables)->capacity_bytes >> 20,
			 p->config.host_slab_bytes >> 10, codec_kernels(NULL)->name,
			 p->config.sockets[i].tenant);
	for (uint32_t i = 0; i < p->config.n_sockets; i++)
		stats_text_set(d->stats->sockets[i], sizeof(d->stats->sockets[i]),
			       p->config.sockets[i].path);
	/* a reader takes the last heartbeat for that of a daemon that serves */
	stats_heartbeat(d->stats, clock_ns());
	stats_health_set(d->stats, STATS_HEALTH_STARTING, false);
	(void)notify_send(&p->notify, "READY=1\nSTATUS=serving");
}

/* When the time for a stop is over, workers or a device may still have jobs, and so they may after
 * a start that failed. Closing under a job would be worse than an abrupt end. Acknowledged blocks
 * are safe either way. */
static void exit_if_busy(struct program *p, int status)
{
	struct kvtierd *d = &p->d;

	if (ops_outstanding(d->ops) == 0 && nvme_up_idle(d) && !d->verify &&
	    !emptier_busy(d->tables.mover.emptier)) {
		if (!closing(d))
			return;
		/* Everything is written. A client's descriptor blocks a helper, and the exit closes
		 * it. */
		log_info("stop",
			 "descriptors of clients were still being closed, or a path looked at: "
			 "exit without that");
		leave(p, status);
	}
	if (nvme_up_starting(d)) {
		log_info("stop", "records were still being found: nothing is lost");
		leave(p, status);
	}
	log_error("stop", "%u ops and %s did not end in time: exit without them",
		  ops_outstanding(d->ops), nvme_up_idle(d) ? "no I/O" : "some I/O");
	if (status)
		leave(p, status);
	_exit(EXIT_FAILURE);
}

static int serve(struct program *p)
{
	struct kvtierd *d = &p->d;
	int r;

	p->heartbeat.fire = on_heartbeat;
	p->drained.fire = on_drained;
	on_heartbeat(&p->heartbeat);
	/* Records are found before engines come: the first lookup after a restart then hits. */
	r = nvme_up_find(d, FIND_NS);
	if (r)
		return fail(p, r, "the event loop failed: %s", strerror(-r));
	if (!p->stopping)
		r = server_open(d, &d->server, p->text, sizeof(p->text));
	if (r)
		return r;
	r = p->stopping ? 0 : files_open(d, &d->files);
	if (r == 0 && !p->stopping)
		r = reload_open(d, &p->config, p->path, &p->notify, &d->reload);
	if (r)
		return fail(p, r, "out of memory or threads for a look at own files");
	if (!p->stopping)
		say_ready(p);
	if (p->reload_due && d->reload)
		(void)reload_begin(d->reload);
	if (!p->ended) /* a signal came while records were being found */
		r = loop_run(d->loop);
	return r ? fail(p, r, "the event loop failed: %s", strerror(-r)) : 0;
}

/* The exit status. */
static int run(struct program *p)
{
	int r;

	log_open((enum log_level)p->config.daemon_log_level);
	(void)notify_open(&p->notify);
	raise_descriptors();
	if (!vault_open())
		log_info("memlock",
			 "no memory can be locked (RLIMIT_MEMLOCK): secrets may be swapped out");
	r = start(p);
	if (r == 0)
		r = serve(p);
	if (r) {
		fprintf(stderr, "kvtierd: %s\n", p->text);
		p->status = p->status ? p->status : EXIT_FAILURE;
	}
	exit_if_busy(p, p->status);
	stop(p);
	return p->status;
}

/* --- the command line --- */

struct command_line {
	const char *config; /* NULL: the defaults */
	bool check, print, example;
	bool man; /* for the Makefile, which makes kvtierd.conf.5 */
};

static void print_help(FILE *out)
{
	fputs("kvtierd - keeps the KV-cache blocks of this node's LLM engines and gives them back\n"
	      "\n"
	      "usage: kvtierd [--config FILE] [--check-config] [--print-config]\n"
	      "       kvtierd --example-config\n"
	      "\n"
	      "  --config FILE    read FILE (INI); without it the defaults below are used\n"
	      "  --check-config   say that the configuration is good, exit 0; or name each wrong "
	      "line, exit 78\n"
	      "  --print-config   print the configuration in effect as a file\n"
	      "  --example-config print a file with every key and its help, commented out\n"
	      "  --version        print the version\n"
	      "  --help           this text\n"
	      "\n"
	      "example: kvtierd &   then   kvtierctl status\n"
	      "\n"
	      "Configuration keys, by [section]; reload: a reload applies it, too:\n",
	      out);
	config_print_help(out);
}

/* -1: go on. Otherwise exit with this status; all output was written. *ret begins as zero. */
static int parse_command_line(int argc, char **argv, struct command_line *ret)
{
	static const struct option options[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "check-config", no_argument, NULL, 'k' },
		{ "print-config", no_argument, NULL, 'p' },
		{ "example-config", no_argument, NULL, 'e' },
		{ "man", no_argument, NULL, 'm' },
		{ "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
		switch (option) {
		case 'c':
			ret->config = optarg;
			break;
		case 'k':
			ret->check = true;
			break;
		case 'p':
			ret->print = true;
			break;
		case 'e':
			ret->example = true;
			break;
		case 'm':
			ret->man = true;
			break;
		case 'v':
			puts("kvtierd " KVTIER_VERSION);
			return 0;
		case 'h':
			print_help(stdout);
			return 0;
		default:
			fputs("try: kvtierd --help\n", stderr);
			return 64;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "kvtierd takes no argument \"%s\"; try: kvtierd --help\n",
			argv[optind]);
		return 64;
	}
	return -1;
}

/* Takes the configuration, and answers the options that ask about it. The exit status, or -1: go
 * on. */
static int configure(struct program *p, const struct command_line *a)
{
	static struct config_notes faults;
	int r = config_load(a->config, &p->config, &faults);

	if (r == 0)
		r = config_derive(&p->config, &faults);
	if (r) {
		fprintf(stderr, "kvtierd: %s\n", faults.text);
		return EXIT_CONFIG;
	}
	if (a->print)
		config_print(&p->config, stdout);
	if (a->check) {
		config_tell_stores(&p->config, stdout);
		printf("%s: ok\n", p->config.file);
	}
	return a->print || a->check ? 0 : -1;
}

int main(int argc, char **argv)
{
	struct program *p = calloc(1, sizeof(*p));
	struct command_line a = { 0 };
	int r = parse_command_line(argc, argv, &a);

	if (r >= 0 || !p) {
		free(p);
		return r >= 0 ? r : EXIT_FAILURE;
	}
	/* free() keeps a packet's memory: munmap() waits for tens of milliseconds while others
	 * touch the host tier or unmap an engine's memory, and the core thread would wait. */
	(void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
	(void)mallopt(M_TRIM_THRESHOLD, 16 << 20);
	p->lock_fd = p->signals.fd = p->notify.fd = -1;
	p->path = a.config;
	if (a.man)
		config_print_man(stdout);
	if (a.example)
		config_print_example(stdout);
	r = a.man || a.example ? 0 : configure(p, &a);
	if (r < 0)
		r = run(p);
	free(p);
	return r;
}
