/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_ctl.h - every kvtierctl command, once. Both programs find their commands and options here,
 * and help and man page are made of it. It has no include guard: it is included with CTL() defined,
 * which it undefines.
 *
 *	CTL(name, where, arguments, prose, example)
 *
 * where   local: kvtierctl answers by itself; admin: the daemon answers at once, through ctl.c;
 *         list: the daemon answers with a list of tbl_lists.h; waits: the daemon answers when its
 *         work is done, and says meanwhile how far it is; data: as waits, with bytes for a command
 *         of kvtierctl; both: kvtierctl answers what it can, and the daemon all else
 * arguments  for people, and the list of the command's options: "--name" or "--name VALUE"
 *
 * CTL_GROUP(word) begins a group of the short list, if it is defined.
 */
#include "client/abi/tbl_hints.h"

#ifndef CTL_GROUP
#define CTL_GROUP(word)
#endif

CTL_GROUP("health")
CTL(stats, local, "[--json] [--all] [-f GLOB] [--list]",
    "Prints a page for people: what was loaded and stored since the daemon's start, how fast, and "
    "from which tier; how full the tiers are; and what is wrong. P50, P90 and P99 are the times "
    "that 50, 90 and 99 of 100 do not exceed, at most 1/32 off; --list says what each time is. The "
    "hit rate counts the blocks that engines looked up. SHARE is the percentage of the blocks that "
    "loads asked for which came from this tier. --all lists every number instead. -f lists the "
    "numbers whose names match GLOB. --list explains the names. stats needs no answer of the "
    "daemon: it works while the daemon is stopped, and says so. top prints the page every second.",
    "kvtierctl stats -f 'tiers.*'")
CTL(status, local, "[--ready | --live] [--json]",
    "Says OK, WARN, ERR or STARTING, with the reasons and what to do about each. A NOTE is no "
    "trouble: for example, it says that io_uring is not in use. STARTING: the daemon is there, and "
    "no engine can connect yet. Exit status: 0 for OK, 1 for WARN, 2 for ERR, 4 for STARTING, 3 if "
    "no daemon is there. Probes of a supervisor: --ready ends with 0 only if the daemon serves and "
    "a connect to each of its client sockets succeeds within half a second; --live fails only if "
    "the daemon is stopped or gone, or was ready and has not moved for 2.5 s: a daemon that takes "
    "long to start is alive. Neither looks at what WARN and ERR say of the tiers.",
    "kvtierctl status && echo fine")
CTL(export, local, "--listen ADDRESS:PORT|unix:PATH | --textfile FILE [--every SEC]",
    "Serves the numbers of stats for Prometheus: GET /metrics, and /healthz, which says that this "
    "process runs. It reads the stats page, so a scrape makes the daemon do nothing; numbers by "
    "model, tenant, disk, endpoint and device are asked for at most once a second, as root or the "
    "daemon's own user. kvtier_up is 0 when kvtierd is dead, stopped or silent. Everybody who can "
    "connect may read, models' names too: there is no password and no TLS. --textfile writes FILE "
    "instead, for node_exporter's textfile collector, once or every SEC seconds.",
    "kvtierctl export --listen 127.0.0.1:9810")
CTL(top, local, "[--once] [--json]",
    "Prints the page of stats again each second, in place, with the engines and links that moved "
    "most since the page before, and the slowest ops of the last hour, as far as the screen has "
    "lines. q or Ctrl-C ends it. --once prints one page, since the start, and ends; so does top "
    "where the output is no terminal. --json prints the stats, devices, clients and slowlog of one "
    "moment, each as the command of its name does. While the daemon is stopped or dead the page "
    "says so, and has the numbers alone.",
    "kvtierctl top")
CTL_GROUP("lists")
CTL(clients, list, "[--json]",
    "Lists the connected engines: process, tenant, how their pages are reached, ops, blocks. PATH "
    "says how kvtierd reaches the pages: shared (a memfd), staged (libkvtier copies them), "
    "cuda-ipc, cuda-fd or cuda-fabric (a GPU's memory, by that kind of handle). GPU STAGED says "
    "why the engine's CPU copies its pages. STATE is open; or ending, if the connection was cut "
    "and workers still use PAGES of its pages; or refused, for a process that was refused or cut "
    "in the last ten minutes, and REFUSED FOR has the reason. WIRE is the version of the protocol "
    "in use.",
    "kvtierctl clients")
CTL(tenants, list, "[--json]",
    "Lists each tenant with its priority, its [socket] share, its connections, its blocks in all "
    "tiers, their bytes in host memory, the blocks that its engines looked up and found since the "
    "start, and how often it was refused anything. Then comes what each tenant has of everything "
    "that clients use together. GUARANTEED is how much no other tenant can take from it. For "
    "host_bytes and blocks that follows from [socket] share; a tenant without a share has a "
    "guarantee while its engines are active. LIMIT is what the tenant may have as things are now. "
    "REFUSED counts how often it was refused more since the start. Blocks of a tenant with a lower "
    "PRIORITY are evicted first. in_flight_bytes and parts are of ops that are under way; "
    "kept_bytes, hint_rows and sessions belong to hints. A daemon without [socket NAME] sections "
    "has one tenant.",
    "kvtierctl tenants")
CTL(spaces, list, "[--json]",
    "Lists spaces (model, geometry, codec) with their blocks, bytes and state. open: an engine has "
    "the space open. idle: no engine has it open. unknown: it was found on NVMe, and no engine has "
    "opened it since. going: it is being removed with its blocks, to make room for another space. "
    "RAW counts blocks that the codec could not hold. ERROR is how far loaded values are from "
    "stored ones: the root mean square of a sample, which has at most one block a second of "
    "engines whose pages the CPU reads. HINTED: its blocks are the first to leave memory "
    "(demoted), or to be evicted from memory and NVMe (retired). Two spaces of a model differ in "
    "its revision (MODEL), in a number of the geometry, or in EXTRAS: the engine's settings, "
    "adapters and options that change KV.",
    "kvtierctl spaces --json")
CTL(disks, list, "[--json]",
    "Lists the paths of the NVMe tier: state and reason, size, bytes in use, errors.",
    "kvtierctl disks")
CTL(devices, list, "[--json]",
    "Lists what moves bytes between engines' pages and images: the CPU, and each GPU that can be "
    "served. (Paths of the NVMe tier are disks.) STATE of a GPU: idle (no engine uses it, and "
    "kvtierd takes no memory of it), up, silent (a call of its driver does not return), failed (it "
    "is tried again when an engine comes), out (it failed too often: start kvtierd again), absent "
    "(the row says why there is no GPU). With MPS, kernels of kvtierd run beside the engine's; "
    "without it the processes take turns. OWN is the GPU's memory that kvtierd's buffers and "
    "kernels take. It includes IMAGES, which [gpu] bytes got there. CONTEXT is memory that the "
    "driver took besides when kvtierd came to the GPU, as NVML saw it (0: there is no NVML). It "
    "includes what other processes took or gave back in that moment.",
    "kvtierctl devices")
CTL(endpoints, list, "[--json]",
    "Lists the endpoints of the Redis tier: state and reason, what each did, and when an endpoint "
    "that is left alone is tried again. --json has more counters.",
    "kvtierctl endpoints")
CTL(trace, list, "[--json]",
    "Lists the last steps of each op that is under way, and of the last 64 ops that ended, up to "
    "32 steps for each op: what each block did, what it waits for, and the microseconds since the "
    "op began. FROM says where a block's bytes come from. STATUS of a block that is done is ok, "
    "present (it was stored before) or an error.",
    "kvtierctl trace")
CTL(slowlog, list, "[--json]",
    "Lists the 32 slowest ops that ended within the last hour, the slowest first, each with its "
    "last steps, up to 32, as trace shows them. The time of an op is from when the core thread "
    "reads it until it completes it; the time of a step is when it began, since then. So a gap "
    "before the first step was spent in the queue. Stores that are given layer by layer are not "
    "listed, since they take as long as their engine.",
    "kvtierctl slowlog | head -40")
CTL(events, admin, "[--since N | --from N] [--json]",
    "Says which blocks came, moved between tiers or left, for programs that follow what this node "
    "has; `python -m kvtier.events` tells routers. TIERS are those that have a copy from then on; "
    "none: the block has left. The first call begins to keep events, the last 65,536 of them. Each "
    "reply has some of them, and \"next\" in --json is the N of the next --since. \"lost\": events "
    "behind N are not kept any more; \"instance\" is another one after a restart. Then begin anew: "
    "--from 0 lists the blocks that are there, some in each reply, and \"more\" is the N of the "
    "next --from. When a reply has no \"more\", go on by --since with \"next\" of the first reply.",
    "kvtierctl events --json")
CTL_GROUP("blocks")
CTL(hint, admin,
    "ACTION --session N [--turn N] | --model NAME | --space N --key HEX [--tenant NAME] [--ttl S] "
    "[--priority P | --expected-back S] [--json]",
    "Tells kvtierd what will become of blocks, as engines do by kvtier_hint. The blocks are "
    "those of a session, those of all spaces with this model (`kvtierctl spaces` has its name), or "
    "one. "
    "Actions:" HINT_ACTIONS_TEXT
    " For a model, release, superseded and ended mark all its blocks at once as the first to be "
    "evicted, however many there are; retain ends that, and so does an engine that opens the model "
    "again. --ttl is in seconds, at most and by default a day. --priority is -100 to 100. "
    "--expected-back of retain: seconds until the blocks are used again; the tenant's block that "
    "is expected last is evicted first. --turn "
    "means only blocks of that turn or later. kvtierd forgets all hints when it starts again. "
    "Each block gets an answer:" HINT_ANSWERS_TEXT
    " Exit status 1: every block was rejected or missing.",
    "kvtierctl hint superseded --model llama-3.1-8b@0e9e39f")
CTL(evict, admin, "--all | --bytes N [--tier host|gpu] [--json]",
    "Drops the least recently used blocks from host memory: with --all every block that is not in "
    "use, with --bytes about N bytes (K M G T) of them. Copies on NVMe stay. --tier gpu: drops the "
    "images in the memory of all GPUs instead; copies in host memory and on NVMe stay.",
    "kvtierctl evict --bytes 512M")
CTL(flush, waits, "[--json]",
    "Writes all blocks that are in memory now to NVMe, and returns when they are there, synced. "
    "Exit status 1: not all of them could be written; the reason is printed.",
    "kvtierctl flush && systemctl reboot")
CTL(drain, waits, "[--timeout S] [--json]",
    "Before a stop or an upgrade: from now on no store begins. Engines are told that their blocks "
    "were not kept, and go on; loads, and blocks that are there, are served as before. Returns "
    "when the stores that were under way have ended, all blocks in memory are on NVMe, synced, and "
    "the queue for Redis is empty. Without NVMe, blocks that were not queued for Redis stay in "
    "memory alone. Exit status 1: that was not so after S seconds (60; 1 to 3600), or a disk "
    "failed; the reason is printed. `kvtierctl status` is WARN until `kvtierctl undrain`, or a "
    "restart, which stores again.",
    "kvtierctl drain --timeout 20 && systemctl restart kvtierd")
CTL(undrain, admin, "[--json]", "Ends `kvtierctl drain`: blocks are stored again.",
    "kvtierctl undrain")
CTL(purge, waits, "--tenant NAME [--json]",
    "Drops all blocks of a tenant from memory and NVMe for good: no restart brings them back. "
    "Copies in Redis stay, since other nodes use them, too. Exit status 1: there is no such "
    "tenant, or a disk could not be told; purge again when the disk is back.",
    "kvtierctl purge --tenant acme")
CTL(verify, waits, "[--drop] [--json]",
    "Reads all blocks back from memory, NVMe and the memory of GPUs, and compares their checksums. "
    "Bad copies are listed by key and segment; --drop also drops them. For a copy on a GPU, DISK "
    "is the GPU's number. Bad copies on a GPU are always dropped, since another copy of the block "
    "is there. DROPPED: this bad copy was dropped; in the sum, \"dropped\" is true if all were. "
    "Exit status 1: there were bad copies, or no block could be checked.",
    "kvtierctl verify --drop")
CTL_GROUP("codecs")
CTL(dump, data, "SPACE FILE [--blocks N] [--json]",
    "Writes blocks of a space that are in host memory now (64, or N of at most 4096) to a new FILE "
    "that its owner alone may read: images, one after the other, in the stored format. SPACE is "
    "the number in `kvtierctl spaces`. The file has users' prompts in another form: keep it as "
    "private as those. `kvtier-bench codec --input FILE` measures codecs on it.",
    "kvtierctl dump 0 /root/pages.kv --blocks 256")
CTL(probe, local, "SPACE [--blocks N] [--json]",
    "Says what each codec would make of a space's blocks that are in host memory now (64, or N of "
    "them): bytes beside raw, tokens in a GiB, the relative error (RMS) of keys and of values, "
    "that of the worst head, encode and decode in GB of pages a second of one CPU; and recommends "
    "a codec. SPACE is the number in `kvtierctl spaces`. Where the blocks are lossy already, "
    "errors are beside values that were rounded before.",
    "kvtierctl probe 0")
CTL_GROUP("set up")
CTL(replay, local, "FILE [--memory N --token-bytes N] [--block-tokens N] [--json]",
    "Sizes a node: says what hit rate kvtierd's policy would have had for a file of requests, "
    "beside exact LRU and the bound, which is that of memory without end. FILE has a JSON object "
    "in each line, whose \"hash_ids\" name the blocks of a request in order: the traces of "
    "Mooncake and Bailian; or those of sessions, whose \"keep\" says how many ids are the same "
    "as in the request of the \"session\" before. --token-bytes: KV bytes of a token as kvtierd "
    "keeps them (kvtierctl spaces: IMAGE / TOKENS). --memory: hit rates with half of so much, with "
    "it, and with twice as much; without it, with 1 to 50 % of the file's blocks. --block-tokens: "
    "tokens of an id, if the lengths in the file do not say that (else 512). A block counts as hit "
    "if all in front of it in its request are there.",
    "kvtierctl replay trace.jsonl --memory 64G --token-bytes 80K")
CTL(doctor, local, "[--config FILE] [--json]",
    "Looks at what kvtierd needs of this machine: the limits on locked memory and descriptors, "
    "huge pages, NUMA nodes, the file systems of [nvme] path and their O_DIRECT, io_uring, "
    "userfaultfd, seccomp, the clock, the GPU's driver, and who may use the socket and the stats "
    "page. Each is ok, or MEND with what mends it. It needs no daemon; while one runs, limits are "
    "the daemon's. FILE is its configuration; without it the defaults are looked at. The system "
    "calls and paths are tried by doctor itself: run it as kvtierd's user, in its container. Exit "
    "status 1: something needs mending.",
    "kvtierctl doctor --config /etc/kvtierd.conf")
CTL(config, both, "ACTION [FILE] [--json]",
    "config show: every value in effect, and FROM: the line of the file, default, or kvtierctl; "
    "RELOAD: whether a reload applies the key. config reload: has kvtierd read its file again, as "
    "SIGHUP does, and says what changed, what needs a restart, and each mistake; with a mistake "
    "nothing changes, and the exit status is 1. config check FILE: names each mistake of a file, "
    "as kvtierd --check-config does; exit status 78 if there is one. It needs no daemon.",
    "kvtierctl config check /etc/kvtierd.conf && kvtierctl config reload")
CTL(loglevel, admin, "[LEVEL] [--json]",
    "Says which messages the log has, or has it that LEVEL be the least urgent: error, warning, "
    "info, debug. That holds until the next reload or start; [daemon] log_level is for good.",
    "kvtierctl loglevel debug")
CTL(format, local, "PATH --bytes N [--segment-bytes N] [--prewrite] [--yes] [--json]",
    "Makes an empty store for [nvme] path: in a file, which is made if it is absent, or on a "
    "block device, for which --bytes may be left out. All that the file or device holds is lost: "
    "format asks before that, unless --yes is given. --prewrite writes the whole store once, so "
    "that no later write has to find space. --segment-bytes: 64K to 256M; not given: 64M, fitted "
    "to N. No kvtierd may have the store open.",
    "kvtierctl format /var/lib/kvtier/nvme.store --bytes 200G")
CTL(version, local, "[--json]",
    "Versions of kvtierctl and of the running daemon, which may be another one. Exit status: 3 if "
    "no daemon runs, 1 if one runs and does not tell its version.",
    "kvtierctl version")
#undef CTL
#undef CTL_GROUP
