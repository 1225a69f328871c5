/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_ctl.h - every kvtierctl command, once: dispatch in kvtierctl and in the daemon, help and man page. No
 * include guard: included with CTL() defined, which it undefines.
 *
 *	CTL(name, where, arguments, prose, example)
 *
 * where   local: kvtierctl answers from the stats page; admin: the daemon does, through ctl.c
 */
CTL(stats, local, "[--json] [--watch[=SEC] [--count N]] [-f GLOB] [--list]",
    "Numbers from the stats page; works while the daemon is stopped, and says so. --watch repeats every SEC "
    "seconds (1) and adds rates, --count ends after N; -f shows only names that match; --list explains the "
    "names.",
    "kvtierctl stats -f 'tiers.host.*' --watch=2")
CTL(status, local, "[--json]",
    "OK, WARN or ERR with the reasons and what to do about each. Exit status 0, 1, 2; 3: no daemon there.",
    "kvtierctl status && echo fine")
CTL(clients, admin, "[--json]",
    "Connected engines: process, tenant, how their pages are reached, ops and blocks.", "kvtierctl clients")
CTL(spaces, admin, "[--json]", "Identities (model, geometry, codec) with their blocks.",
    "kvtierctl spaces --json")
CTL(evict, admin, "--all | --bytes N [--json]",
    "Drops least recently used blocks from host memory: all that nobody uses now, or about N bytes (K M G "
    "T).",
    "kvtierctl evict --bytes 512M")
CTL(version, local, "[--json]", "Versions of kvtierctl and of the running daemon.", "kvtierctl version")
#undef CTL
