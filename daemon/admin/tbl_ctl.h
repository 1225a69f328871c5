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
CTL(stats, local, "[--json] [--all] [-f GLOB] [--watch[=SEC] [--count N]] [--list]",
    "A page for people: what was loaded and stored since the daemon's start, how fast, from which "
    "tier, how full the tiers are and what is wrong. P50 and P99 are times of ops with a block at "
    "least, from the core thread's reading the op to its completing it, at most 1/32 off. Hit "
    "rates are of the blocks that were there or missed. --watch prints a page every SEC seconds "
    "(1), each about the time since the page before; --count ends after N. --all lists every "
    "number instead, with --watch its rate; -f lists the numbers whose names match; --list "
    "explains the names. All of it works while the daemon is stopped, and says so.",
    "kvtierctl stats --watch=2")
CTL(status, local, "[--json]",
    "OK, WARN or ERR, with the reasons and what to do about each. A NOTE is no trouble: it says, "
    "for example, that the daemon still starts. Exit status 0, 1, 2; 3: no daemon there.",
    "kvtierctl status && echo fine")
CTL(clients, admin, "[--json]",
    "Connected engines: process, tenant, how their pages are reached, ops and blocks. PATH: shared "
    "(a memfd), staged (libkvtier copies), cuda-ipc, cuda-fd, cuda-fabric (a GPU's memory, and by "
    "which handle). STATE is open or ending: that connection was cut, and workers still use PAGES "
    "pages of it.",
    "kvtierctl clients")
CTL(spaces, admin, "[--json]",
    "Identities (model, geometry, codec) with blocks, bytes and state. open: an engine has it "
    "open; idle: no engine has; unknown: found on NVMe, and no engine has opened it yet; going: it "
    "is being removed with its blocks, to make room for another.",
    "kvtierctl spaces --json")
CTL(disks, admin, "[--json]",
    "The paths of the NVMe tier: state and why, size, what is in use, errors.", "kvtierctl disks")
CTL(devices, admin, "[--json]",
    "What moves bytes between engines' pages and images: the CPU, and each GPU that can be served. "
    "STATE of a GPU: idle (no engine uses it, kvtierd takes nothing of it), up, silent (a call of "
    "its driver does not return), failed (and tried again when an engine comes), out (failed too "
    "often; kvtierd must be started again); absent: a row that says why there is no GPU. MPS: "
    "kernels of kvtierd run beside the engine's there; without MPS processes take turns. OWN: its "
    "memory that kvtierd's buffers and kernels take, with IMAGES: what [gpu] bytes got there. "
    "CONTEXT: what the driver took besides when kvtierd came to that GPU, as NVML saw it (0: no "
    "NVML); if other processes took or gave back memory in that moment, it is in the number. The "
    "paths of the NVMe tier are disks.",
    "kvtierctl devices")
CTL(endpoints, admin, "[--json]",
    "The endpoints of the Redis tier: state and why, what each did, and when an endpoint that is "
    "left alone is tried again. --json has more counters.",
    "kvtierctl endpoints")
CTL(trace, admin, "[--json]",
    "The last steps of each op that is under way, and of the last 64 that ended: what each block "
    "did, what it waits for, and microseconds since the op began; up to 32 steps an op. FROM: "
    "where a block's bytes come from. STATUS of a block that is done: ok, present (stored before) "
    "or an error.",
    "kvtierctl trace")
CTL(evict, admin, "--all | --bytes N [--tier host|gpu] [--json]",
    "Drops the least recently used blocks from host memory: all that are not in use, or about N "
    "bytes (K M G T). Their copies on NVMe stay. --tier gpu: from the memory of all GPUs instead; "
    "what host memory and NVMe have of them stays.",
    "kvtierctl evict --bytes 512M")
CTL(flush, waits, "[--json]",
    "Writes all blocks that are in memory now to NVMe and returns when they are there, synced. "
    "Exit status 1: not all could be written; the reason is printed.",
    "kvtierctl flush && systemctl reboot")
CTL(purge, waits, "--tenant NAME [--json]",
    "Drops all blocks of a tenant from memory and NVMe, for good: no restart brings them back. "
    "Copies in Redis stay, since other nodes use them, too. Exit status 1: a disk could not be "
    "told; purge again when it is back.",
    "kvtierctl purge --tenant acme")
CTL(verify, waits, "[--scrub] [--json]",
    "Reads all blocks back from memory and NVMe and compares checksums. Bad blocks are listed by "
    "key and segment; --scrub also drops them. Exit status 1: there were bad blocks, or none could "
    "be checked.",
    "kvtierctl verify --scrub")
CTL(format, local, "PATH --bytes N [--segment-bytes N] [--prewrite] [--yes] [--json]",
    "Makes an empty store for [nvme] path: in a file, made if absent, or on a block device, where "
    "N may be left out. All that the file or device holds is lost: format asks before that, unless "
    "--yes is given. --prewrite writes the whole store once, so that no later write has to find "
    "space. --segment-bytes: 64K to 256M; not given: 64M, fitted to N. No kvtierd may have it "
    "open.",
    "kvtierctl format /var/lib/kvtier/nvme.store --bytes 200G")
CTL(version, local, "[--json]", "Versions of kvtierctl and of the running daemon.",
    "kvtierctl version")
#undef CTL
