/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_redis_cluster.c - six redis-servers that are a Cluster: see lib_redis.h. Made and changed by
 * the commands that redis-cli --cluster uses. No replica takes over by itself: only tests decide
 * when.
 */
#include "lib_redis.h"
#include "test.h"

enum {
	MASTERS = 3,
	SLOTS = 16384,
	PATIENCE_S = 60,
	NAP_US = 20000,
	NODES_BYTES = 8192,
	ID_BYTES = 64,
	KEYS_BYTES = 65536
};

/* Sends, and the reply must be OK. */
__attribute__((format(printf, 2, 3))) static void ok(const struct redis_server *s,
						     const char *format, ...)
{
	char command[512], text[512];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	redis_say(s, text, sizeof(text), "%s", command);
	if (strcmp(text, "OK") != 0)
		fail_msg("%s: \"%s\" is answered with \"%s\"", s->address, command, text);
}

/* Asks until the reply has this word so many times. */
static void becomes_times(const struct redis_server *s, const char *command, const char *word,
			  uint32_t times)
{
	char text[NODES_BYTES];

	for (time_t until = time(NULL) + PATIENCE_S; time(NULL) < until; (void)usleep(NAP_US)) {
		uint32_t n = 0;

		redis_say(s, text, sizeof(text), "%s", command);
		for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
			n++;
		if (n == times || (n > times && times == 1))
			return;
	}
	fail_msg("%s: \"%s\" does not say \"%s\" but:\n%s", s->address, command, word, text);
}

static void becomes(const struct redis_server *s, const char *command, const char *word)
{
	becomes_times(s, command, word, 1);
}

static void server_id(const struct redis_server *s, char ret[ID_BYTES])
{
	redis_say(s, ret, ID_BYTES, "CLUSTER MYID");
}

/* --- making it --- */

static void meet(struct redis_cluster_rig *rig)
{
	for (uint32_t i = 0; i < REDIS_CLUSTER_SERVERS; i++)
		ok(&rig->server[i], "CLUSTER SET-CONFIG-EPOCH %u", i + 1);
	for (uint32_t i = 0; i < MASTERS; i++)
		ok(&rig->server[i], "CLUSTER ADDSLOTSRANGE %u %u", SLOTS * i / MASTERS,
		   SLOTS * (i + 1) / MASTERS - 1);
	for (uint32_t i = 1; i < REDIS_CLUSTER_SERVERS; i++)
		ok(&rig->server[i], "CLUSTER MEET 127.0.0.1 %u", rig->server[0].port);
	for (uint32_t i = 0; i < REDIS_CLUSTER_SERVERS; i++)
		becomes(&rig->server[i], "CLUSTER INFO", "cluster_known_nodes:6");
}

/* A server may have heard of a master and not yet shaken hands with it. */
static void replicate(const struct redis_server *replica, const struct redis_server *master)
{
	char id[ID_BYTES], command[128];

	server_id(master, id);
	(void)snprintf(command, sizeof(command), "CLUSTER REPLICATE %s", id);
	becomes(replica, "CLUSTER NODES", id);
	becomes(replica, command, "OK");
}

void redis_cluster_start(struct redis_cluster_rig *rig, const char *options)
{
	char all[1024];

	memset(rig, 0, sizeof(*rig));
	(void)snprintf(
		all, sizeof(all),
		"--cluster-enabled yes --cluster-node-timeout 5000 --cluster-replica-no-failover "
		"yes --cluster-require-full-coverage no --repl-diskless-sync-delay 0 %s",
		options ? options : "");
	for (uint32_t i = 0; i < REDIS_CLUSTER_SERVERS; i++)
		redis_start(&rig->server[i], all);
	meet(rig);
	for (uint32_t i = MASTERS; i < REDIS_CLUSTER_SERVERS; i++)
		replicate(&rig->server[i], &rig->server[i - MASTERS]);
	for (uint32_t i = 0; i < REDIS_CLUSTER_SERVERS; i++) {
		becomes(&rig->server[i], "CLUSTER INFO", "cluster_state:ok");
		becomes(&rig->server[i], "CLUSTER INFO", "cluster_slots_ok:16384");
		becomes(&rig->server[i], "CLUSTER INFO", "cluster_size:3");
		becomes(&rig->server[i], "INFO replication",
			i < MASTERS ? "connected_slaves:1" : "master_link_status:up");
		/* The names of masters and their replicas go about as gossip, behind all else. */
		becomes_times(&rig->server[i], "CLUSTER NODES", "slave",
			      REDIS_CLUSTER_SERVERS - MASTERS);
	}
}

void redis_cluster_stop(struct redis_cluster_rig *rig)
{
	for (uint32_t i = 0; i < REDIS_CLUSTER_SERVERS; i++)
		redis_stop(&rig->server[i]);
}

/* --- resharding --- */

/* Up to n slots of the server; its line in CLUSTER NODES ends with them: "0-5460 6000". */
static uint32_t slots_of(const struct redis_server *s, uint32_t *ret, uint32_t n)
{
	char nodes[NODES_BYTES], *line, *rest = NULL, *word;
	uint32_t found = 0;

	redis_say(s, nodes, sizeof(nodes), "CLUSTER NODES");
	line = strstr(nodes, "myself");
	assert_non_null(line);
	line[strcspn(line, "\n")] = 0;
	word = strtok_r(line, " ", &rest);
	for (int field = 2; word; word = strtok_r(NULL, " ", &rest), field++) {
		char *dash = strchr(word, '-');
		uint32_t first, last;

		if (field < 8 || word[0] == '[')
			continue;
		first = (uint32_t)strtoul(word, NULL, 10);
		last = dash ? (uint32_t)strtoul(dash + 1, NULL, 10) : first;
		for (; first <= last && found < n; first++)
			ret[found++] = first;
	}
	return found;
}

static void move_keys(const struct redis_server *from, const struct redis_server *to, uint32_t slot)
{
	char keys[KEYS_BYTES], text[512], *rest;

	for (;;) {
		redis_say(from, keys, sizeof(keys), "CLUSTER GETKEYSINSLOT %u 100", slot);
		if (!keys[0])
			return;
		rest = NULL;
		for (char *key = strtok_r(keys, "\n", &rest); key;
		     key = strtok_r(NULL, "\n", &rest)) {
			redis_say(from, text, sizeof(text),
				  "MIGRATE 127.0.0.1 %u %s 0 10000 REPLACE", to->port, key);
			if (strcmp(text, "OK") != 0 && strcmp(text, "NOKEY") != 0)
				fail_msg("MIGRATE %s: %s", key, text);
		}
	}
}

void redis_cluster_move(struct redis_cluster_rig *rig, uint32_t from, uint32_t to, uint32_t n_slots)
{
	uint32_t *slots = calloc(n_slots, sizeof(*slots));
	char from_id[ID_BYTES], to_id[ID_BYTES];

	assert_non_null(slots);
	assert_int_equal(slots_of(&rig->server[from], slots, n_slots), n_slots);
	server_id(&rig->server[from], from_id);
	server_id(&rig->server[to], to_id);
	for (uint32_t i = 0; i < n_slots; i++) {
		ok(&rig->server[to], "CLUSTER SETSLOT %u IMPORTING %s", slots[i], from_id);
		ok(&rig->server[from], "CLUSTER SETSLOT %u MIGRATING %s", slots[i], to_id);
		move_keys(&rig->server[from], &rig->server[to], slots[i]);
		/* The new owner first: nobody must ever find the slot without one. */
		ok(&rig->server[to], "CLUSTER SETSLOT %u NODE %s", slots[i], to_id);
		ok(&rig->server[from], "CLUSTER SETSLOT %u NODE %s", slots[i], to_id);
	}
	free(slots);
}

/* --- failover --- */

/* Which server this line of CLUSTER NODES is about; its second word is "host:port@bus". */
static uint32_t server_of(const struct redis_cluster_rig *rig, const char *line)
{
	for (uint32_t i = 0; i < REDIS_CLUSTER_SERVERS; i++) {
		char word[64];
		const char *at;

		(void)snprintf(word, sizeof(word), ":%u@", rig->server[i].port);
		at = strstr(line, word);
		if (at && at < line + strcspn(line, "\n"))
			return i;
	}
	fail_msg("no server of ours: %s", line);
	return 0;
}

/* A replica of this master that runs, as the other servers see it: the master may be dead. */
static uint32_t replica_of(const struct redis_cluster_rig *rig, uint32_t master)
{
	char nodes[NODES_BYTES], id[ID_BYTES], word[ID_BYTES + 16];
	uint32_t asked = 0;

	while (asked == master || rig->server[asked].pid == 0)
		asked++;
	assert_true(asked < REDIS_CLUSTER_SERVERS);
	redis_say(&rig->server[asked], nodes, sizeof(nodes), "CLUSTER NODES");
	id[0] = 0;
	for (const char *line = nodes; *line; line += strcspn(line, "\n"), line += *line == '\n')
		if (server_of(rig, line) == master)
			(void)snprintf(id, sizeof(id), "%.40s", line);
	assert_int_equal(strlen(id), 40);
	/* behind its own id and flags: its master */
	(void)snprintf(word, sizeof(word), " %s ", id);
	for (const char *line = nodes; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		const char *at = strstr(line, word);
		const uint32_t server = server_of(rig, line);

		if (at && at < line + strcspn(line, "\n") && rig->server[server].pid > 0)
			return server;
	}
	fail_msg("server %u has no replica that runs:\n%s", master, nodes);
	return 0;
}

uint32_t redis_cluster_failover(struct redis_cluster_rig *rig, uint32_t master)
{
	const uint32_t replica = replica_of(rig, master);

	ok(&rig->server[replica], "CLUSTER FAILOVER TAKEOVER");
	becomes(&rig->server[replica], "ROLE", "master");
	return replica;
}
