/* SPDX-License-Identifier: Apache-2.0 */
/* make: needs=kvtierd_nodes */
/*
 * sys_nodes - goal: memory that does not lie on the NUMA node that [host] bytes names is told of by
 * `status`, and serves all the same; where all of it does, nothing is said. Method: a kvtierd on a
 * machine of several nodes (kvtierd_nodes.c), one of which gives pages of another one.
 */
#include "tests/lib/lib.h"

#include <stdlib.h>
#include <string.h>

static void status_says(const char *full, bool ignored)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	char text[4096];
	struct daemon d;

	if (full)
		setenv("KVTIER_TEST_NODES_FULL", full, 1);
	else
		unsetenv("KVTIER_TEST_NODES_FULL");
	daemon_place(&d, false);
	d.program = "tests/kvtierd_nodes";
	daemon_configure(&d, "[host]\nbytes = 0:2M,1:2M\nslab_bytes = 1M\nhuge_pages = no\n");
	daemon_restart(&d);
	daemon_stat_becomes(&d, "tiers.host.capacity_bytes", 4 << 20, PATIENT_MS);
	do {
		(void)daemon_ctl(&d, "status --json", text, sizeof(text));
		if (now_ns() > until)
			fail_msg("with node %s full: %s", full ? full : "(none)", text);
	} while (strstr(text, "starting") || ignored != !!strstr(text, "numa_ignored"));
	engine_works(d.socket);
	daemon_remove(&d);
}

TEST(a_node_that_gives_pages_of_another_is_told_of)
{
	status_says("1", true);
}

TEST(nodes_that_give_their_own_are_no_news)
{
	status_says(NULL, false);
}
