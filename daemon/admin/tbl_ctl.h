/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_ctl.h - every kvtierctl command, once: dispatch in kvtierctl and in the daemon, help and man
 * page. No include guard: included with CTL() defined, which it undefines.
 *
 *	CTL(name, where, arguments, prose, example)
 *
 * where   local: kvtierctl answers by itself; admin: the daemon answers at once, through ctl.c;
 *         waits: the daemon answers when its work is done, and tells meanwhile how far it is
 */
#include "client/tbl_hints.h"

CTL(stats, local, "[--json] [--all] [-f GLOB] [--watch[=SEC] [--count N]] [--list]",
    "A page for people: what was loaded and stored since the daemon's start, how fast, and from "
    "which tier; how full the tiers are; what is wrong. P50 and P99 are times of ops that had a "
    "block at least, from when the core thread reads the op until it completes it, at most 1/32 "
    "off. The hit rate is of the blocks that engines looked up, SHARE a tier's part of the blocks "
    "that loads asked for. --watch prints a page every SEC seconds (1), "
    "each about the time since the page before; --count ends it after N pages. --all lists every "
    "number instead, with --watch also its rate; -f lists the numbers whose names match GLOB; "
    "--list explains the names. The daemon need not answer: stats works while it is stopped, and "
    "says so.",
    "kvtierctl stats --watch=2")
CTL(status, local, "[--json]",
    "OK, WARN, ERR or STARTING, with the reasons and what to do about each. A NOTE is no trouble: "
    "for example, that io_uring is not in use. STARTING: the daemon is there, and no engine can "
    "connect yet. Exit status: 0 for OK, 1 for WARN, 2 for ERR, 4 for STARTING, 3 if no daemon is "
    "there.",
    "kvtierctl status && echo fine")
CTL(clients, admin, "[--json]",
    "Connected engines: process, tenant, how their pages are reached, ops, blocks. PATH: shared "
    "(a memfd), staged (libkvtier copies), cuda-ipc, cuda-fd, cuda-fabric (a GPU's memory, by "
    "that kind of handle), cuda-engine (kvtierd does not reach them). MODE: whose kernels encode "
    "and decode pages on a GPU: the daemon's, the engine's, or none; NOT IN ENGINE MODE: why not "
    "the engine's, where those were wanted. GPU STAGED: why the engine's CPU copies its pages. "
    "STATE: open, or ending: the connection was cut, and workers still use PAGES of its pages; or "
    "refused: a process that was refused or cut in the last ten minutes, and REFUSED FOR what. "
    "WIRE: the version of the protocol that they speak.",
    "kvtierctl clients")
CTL(spaces, admin, "[--json]",
    "Spaces (model, geometry, codec) with their blocks, bytes and state. open: an engine has the "
    "space open. idle: no engine has it open. unknown: it was found on NVMe, and no engine has "
    "opened it since. going: it is being removed with its blocks, to make room for another space. "
    "RAW: blocks that fp8 could not hold. ERROR: how far values come back from what was stored, "
    "RMS, of a sample: a block a second at most, of engines whose pages the CPU reads. "
    "HINTED: its blocks are the first to leave memory (demoted), or to go at all (retired).",
    "kvtierctl spaces --json")
CTL(disks, admin, "[--json]",
    "The paths of the NVMe tier: state and why, size, what is in use, errors.", "kvtierctl disks")
CTL(devices, admin, "[--json]",
    "What moves bytes between engines' pages and images: the CPU, and each GPU that can be "
    "served. (Paths of the NVMe tier are disks.) STATE of a GPU: idle (no engine uses it, and "
    "kvtierd takes nothing of it), up, silent (a call of its driver does not return), failed (it "
    "is tried again when an engine comes), out (it failed too often: start kvtierd again), absent "
    "(the row says why there is no GPU). MPS: kernels of kvtierd run beside the engine's; without "
    "MPS the processes take turns, but for clients in engine mode. OWN: memory of the GPU that "
    "kvtierd's buffers and kernels take, and IMAGES, which are what [gpu] bytes got there, and "
    "LENT, which clients in engine mode have. CONTEXT: memory that the driver took besides when "
    "kvtierd came to the GPU, as NVML saw it (0: no NVML). What other processes took or gave "
    "back in that moment is in the number, too.",
    "kvtierctl devices")
CTL(endpoints, admin, "[--json]",
    "The endpoints of the Redis tier: state and why, what each did, and when an endpoint that is "
    "left alone is tried again. --json has more counters.",
    "kvtierctl endpoints")
CTL(trace, admin, "[--json]",
    "The last steps of each op that is under way, and of the last 64 ops that ended, up to 32 "
    "steps an op: what each block did, what it waits for, and microseconds since the op began. "
    "FROM: where a block's bytes come from. STATUS of a block that is done: ok, present (it was "
    "stored before) or an error.",
    "kvtierctl trace")
CTL(hint, admin,
    "ACTION --session N [--turn N] | --model NAME | --space N --key HEX | prefetch --space N "
    "--key HEX... | prefetch --space N --session N [--turn N] [--tenant NAME] [--ttl S] "
    "[--priority P] [--json]",
    "Says what becomes of blocks, as engines do by kvtier_hint(). On a session; on all spaces with "
    "this model, as `kvtierctl spaces` names it; or on one block. Actions:" HINT_ACTIONS_TEXT
    " To prefetch, kvtierctl opens the space as an engine does, by the client socket. An engine "
    "has to have opened the space since kvtierd's start. The NUMBER is that of `kvtierctl spaces`. "
    "From Redis a block is kept only under the block before it: give the keys of a chain from its "
    "beginning, in their order. After 60 s prefetch ends with what has come. Of --model, release, "
    "superseded and ended make all its blocks the first to go, at once, however many there are; "
    "retain, or an engine that opens the model again, ends that. --ttl in seconds; not given: "
    "[hints] max_ttl. --priority -100 to 100. --turn: only blocks of that turn or later. Hints are "
    "in memory: when kvtierd starts again, all are forgotten. Answers, one for each "
    "block:" HINT_ANSWERS_TEXT
    " Exit status 1: all were rejected or missing, or prefetch has not come to all of them.",
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
CTL(purge, waits, "--tenant NAME [--json]",
    "Drops all blocks of a tenant from memory and NVMe for good: no restart brings them back. "
    "Copies in Redis stay, since other nodes use them, too. Exit status 1: a disk could not be "
    "told; purge again when the disk is back.",
    "kvtierctl purge --tenant acme")
CTL(verify, waits, "[--scrub] [--json]",
    "Reads all blocks back from memory, NVMe and the memory of GPUs, and compares their checksums. "
    "Bad blocks are listed by key and segment; --scrub also drops them. DISK of a GPU's image is "
    "the GPU's number; a bad one is always dropped, since it is no block's last copy. DROPPED says "
    "so of each; in the sum \"dropped\" is true if all that were bad went. Exit status 1: there "
    "were bad blocks, or no block could be checked.",
    "kvtierctl verify --scrub")
CTL(format, local, "PATH --bytes N [--segment-bytes N] [--prewrite] [--yes] [--json]",
    "Makes an empty store for [nvme] path: in a file, which is made if it is absent, or on a "
    "block device, for which --bytes may be left out. All that the file or device holds is lost: "
    "format asks before that, unless --yes is given. --prewrite writes the whole store once, so "
    "that no later write has to find space. --segment-bytes: 64K to 256M; not given: 64M, fitted "
    "to N. No kvtierd may have the store open.",
    "kvtierctl format /var/lib/kvtier/nvme.store --bytes 200G")
CTL(version, local, "[--json]", "Versions of kvtierctl and of the running daemon.",
    "kvtierctl version")
#undef CTL
