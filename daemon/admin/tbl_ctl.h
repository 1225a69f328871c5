/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_ctl.h - every kvtierctl command, once: dispatch in kvtierctl and in the daemon, help and man page. No
 * include guard: included with CTL() defined, which it undefines.
 *
 *	CTL(name, where, arguments, prose, example)
 *
 * where   local: kvtierctl answers by itself; admin: the daemon does, through ctl.c; waits: likewise, and it takes
 *         its time, telling how far it is
 */
CTL(stats, local, "[--json] [--watch[=SEC] [--count N]] [-f GLOB] [--list]",
    "Numbers from the stats page; works while the daemon is stopped, and says so. --watch repeats every SEC "
    "seconds (1) and adds rates, --count ends after N; -f shows only names that match; --list explains the "
    "names.",
    "kvtierctl stats -f 'tiers.host.*' --watch=2")
CTL(status, local, "[--json]",
    "OK, WARN or ERR with the reasons and what to do about each. A daemon that starts and has no trouble is OK; a NOTE "
    "says what it still does. Exit status 0, 1, 2; 3: no daemon there.",
    "kvtierctl status && echo fine")
CTL(clients, admin, "[--json]",
    "Connected engines: process, tenant, state (open; ending: cut, but workers still use PAGES pages of it), how their "
    "pages are reached, ops and blocks.", "kvtierctl clients")
CTL(spaces, admin, "[--json]",
    "Identities (model, geometry, codec) with blocks, bytes and state: open; idle; unknown, found on NVMe and not "
    "opened yet; going, with its blocks, for others.",
    "kvtierctl spaces --json")
CTL(disks, admin, "[--json]", "The paths of the NVMe tier: state and why, size, what is in use, errors.",
    "kvtierctl disks")
CTL(endpoints, admin, "[--json]",
    "The servers of the Redis tier: state and why, what they hold and did, when one that is left alone is tried again. "
    "--json has more counters.",
    "kvtierctl endpoints")
CTL(evict, admin, "--all | --bytes N [--json]",
    "Drops least recently used blocks from host memory: all that nobody uses now, or about N bytes (K M G "
    "T). What is on NVMe, too, stays there.",
    "kvtierctl evict --bytes 512M")
CTL(flush, waits, "[--json]",
    "Writes all that is in memory now to NVMe and returns when it is there, synced. Exit status 1: it is not, with "
    "the reason.",
    "kvtierctl flush && systemctl reboot")
CTL(purge, waits, "--tenant NAME [--json]",
    "Drops all blocks of a tenant from memory and NVMe, for good: no restart brings them back. What is in Redis is "
    "other nodes', too, and stays. Exit status 1: a disk could not be told; purge again when it is back.",
    "kvtierctl purge --tenant acme")
CTL(verify, waits, "[--scrub] [--json]",
    "Reads all blocks back from memory and NVMe and compares checksums; bad ones are listed by key and segment. "
    "--scrub drops those, too. Exit status 1: there were bad ones, or none could be checked.",
    "kvtierctl verify --scrub")
CTL(format, local, "PATH --bytes N [--segment-bytes N] [--prewrite] [--yes] [--json]",
    "Makes an empty store for [nvme] path: in a file, made if absent, or on a block device, where N may be left out. "
    "What was there is gone; asks before that, --yes: does not. --prewrite: writes all of it once, so that no later "
    "write has to find space. --segment-bytes: 64K to 256M; not given: 64M, fitted to N. No kvtierd may have it open.",
    "kvtierctl format /var/lib/kvtier/nvme.store --bytes 200G")
CTL(version, local, "[--json]", "Versions of kvtierctl and of the running daemon.", "kvtierctl version")
#undef CTL
