/* SPDX-License-Identifier: Apache-2.0 */
/* lists.c - see lists.h. */
#include "lists.h"

#include <assert.h>
#include <errno.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/admin/ctl.h"
#include "daemon/ctl/kvtierctl_admin.h"
#include "metrics.h"

/* --- the tables --- */

enum kind { GAUGE, COUNTER, LARGEST, ROWS, STATE };

struct family {
	const char *name;
	enum kind kind;
	const char *member; /* of a row; STATE: its value is one of `states` */
	const char *times;  /* another member that it is multiplied by, or NULL */
	const char *states; /* a|b|c */
	const char *help;
};

#define TIER_STATES "starting|up|degraded|readonly|offline|misconfigured"
#define TOKENS      "; each rank of a model counts its own"

static const struct family model_families[] = {
	{ "model_blocks", GAUGE, "blocks", NULL, NULL, "Blocks kept, in whatever tier" },
	{ "model_bytes", GAUGE, "bytes", NULL, NULL, "Image bytes of these blocks" },
	{ "model_tokens", GAUGE, "blocks", "block_tokens", NULL, "Tokens whose KV is kept" TOKENS },
	{ "model_lookup_requested_blocks_total", COUNTER, "looked_up_blocks", NULL, NULL,
	  "Blocks that the model's engines asked the index for" },
	{ "model_lookup_hit_blocks_total", COUNTER, "hit_blocks", NULL, NULL,
	  "How many of these were present" },
	{ "model_lookup_requested_tokens_total", COUNTER, "looked_up_blocks", "block_tokens", NULL,
	  "Tokens of the blocks asked for" TOKENS },
	{ "model_lookup_hit_tokens_total", COUNTER, "hit_blocks", "block_tokens", NULL,
	  "Tokens of the blocks that were present" TOKENS },
	{ "model_stored_blocks_total", COUNTER, "stored_blocks", NULL, NULL, "Blocks stored" },
	{ "model_stored_tokens_total", COUNTER, "stored_blocks", "block_tokens", NULL,
	  "Tokens of the blocks stored" TOKENS },
	{ "model_loaded_blocks_total", COUNTER, "loaded_blocks", NULL, NULL,
	  "Blocks given back to engines" },
	{ "model_loaded_tokens_total", COUNTER, "loaded_blocks", "block_tokens", NULL,
	  "Tokens of these blocks, which engines did not compute again" TOKENS },
	{ "model_raw_blocks_total", COUNTER, "raw_blocks", NULL, NULL,
	  "Blocks kept raw because their codec could not hold them" },
	{ "model_quantization_error_ratio", LARGEST, "relative_error", NULL, NULL,
	  "How far loaded values are from stored ones, RMS of a sample; the worst space" },
	{ "model_spaces", ROWS, NULL, NULL, NULL, "Spaces: a rank, a codec, a geometry each" },
};

static const struct family tenant_families[] = {
	{ "tenant_used", GAUGE, "used", NULL, NULL, "What the tenant has now of what all share" },
	{ "tenant_guaranteed", GAUGE, "guaranteed", NULL, NULL,
	  "How much no other tenant can take from it" },
	{ "tenant_limit", GAUGE, "limit", NULL, NULL, "What it may have as things are now" },
	{ "tenant_refused_total", COUNTER, "refused", NULL, NULL,
	  "Times that it was refused more" },
};

static const struct family lookup_families[] = {
	{ "tenant_lookup_requested_blocks_total", COUNTER, "looked_up_blocks", NULL, NULL,
	  "Blocks that the tenant's engines asked the index for" },
	{ "tenant_lookup_hit_blocks_total", COUNTER, "hit_blocks", NULL, NULL,
	  "How many of these were present" },
};

static const struct family client_families[] = {
	{ "connections", ROWS, NULL, NULL, NULL,
	  "Rows of kvtierctl clients; refused: processes refused or cut in the last ten minutes" },
};

static const struct family disk_families[] = {
	{ "disk_state", STATE, "state", NULL, TIER_STATES, "State of a path of the NVMe tier" },
	{ "disk_capacity_bytes", GAUGE, "capacity_bytes", NULL, NULL, "Bytes that it may hold" },
	{ "disk_live_bytes", GAUGE, "live_bytes", NULL, NULL, "Bytes of blocks that it has" },
	{ "disk_written_bytes_total", COUNTER, "written_bytes", NULL, NULL,
	  "Bytes written to it, which wear it" },
	{ "disk_read_bytes_total", COUNTER, "read_bytes", NULL, NULL, "Bytes read from it" },
	{ "disk_read_errors_total", COUNTER, "read_errors", NULL, NULL, "Reads that failed" },
	{ "disk_write_errors_total", COUNTER, "write_errors", NULL, NULL, "Writes that failed" },
};

static const struct family endpoint_families[] = {
	{ "redis_endpoint_state", STATE, "state", NULL, TIER_STATES,
	  "State of an endpoint; offline: its breaker is open" },
	{ "redis_endpoint_gets_total", COUNTER, "gets", NULL, NULL, "Values asked for" },
	{ "redis_endpoint_hits_total", COUNTER, "hits", NULL, NULL, "Values that came" },
	{ "redis_endpoint_sets_total", COUNTER, "sets", NULL, NULL, "Values written" },
	{ "redis_endpoint_received_bytes_total", COUNTER, "received_bytes", NULL, NULL,
	  "Bytes received" },
	{ "redis_endpoint_sent_bytes_total", COUNTER, "sent_bytes", NULL, NULL, "Bytes sent" },
	{ "redis_endpoint_timeouts_total", COUNTER, "timeouts", NULL, NULL,
	  "Requests not answered within [redis] timeout_ms" },
	{ "redis_endpoint_breaker_opens_total", COUNTER, "breaker_opens", NULL, NULL,
	  "Times that it was left alone for a while" },
};

static const struct family device_families[] = {
	{ "device_state", STATE, "state", NULL, "idle|up|silent|failed|out|absent",
	  "State of a GPU, or of the CPU, which is device 0" },
	{ "device_jobs", GAUGE, "jobs", NULL, NULL, "Jobs under way" },
	{ "device_jobs_total", COUNTER, "jobs_total", NULL, NULL, "Jobs begun" },
	{ "device_failed_jobs_total", COUNTER, "failed_jobs_total", NULL, NULL,
	  "Jobs that failed" },
	{ "device_own_bytes", GAUGE, "own_bytes", NULL, NULL, "Its memory that kvtierd takes" },
	{ "device_copied_out_bytes_total", COUNTER, "copied_out_bytes_total", NULL, NULL,
	  "Bytes that crossed the wire to host memory" },
	{ "device_copied_in_bytes_total", COUNTER, "copied_in_bytes_total", NULL, NULL,
	  "Bytes that crossed the wire from host memory" },
	{ "device_busy_out_seconds_total", COUNTER, "busy_out_us_total", NULL, NULL,
	  "Time in which copies to host memory were under way, with the kernels of their lanes" },
	{ "device_busy_in_seconds_total", COUNTER, "busy_in_us_total", NULL, NULL,
	  "The same of copies from host memory" },
};

enum {
	CELLS = 32,
	SERIES = 256, /* of a list: 17 tenants, 13 rows each */
};

/* The numbers of one label set, a cell for each family, and for each state of a STATE. */
struct series {
	char *labels; /* a="x",b="y" */
	double cells[CELLS];
};

/* The numbers of a row at the last look, of which counters are the growth. */
struct row {
	uint64_t identity;
	double cells[CELLS];
};

/* What the series of a list were made of so far. */
struct list_counts {
	struct series series[SERIES + 1]; /* the last one: all others */
	size_t n_series;
	struct row *rows;
	size_t n_rows;
};

static const struct listing {
	const char *name;
	struct {
		const char *member, *label;
	} labels[2];
	const char *member, *value; /* of the rows that count; NULL: all do */
	size_t max_series;
	const struct family *families;
	size_t n_families;
} listings[] = {
#define FAMILIES(of) \
	.families = of##_families, .n_families = sizeof(of##_families) / sizeof(of##_families[0])
	{ .name = "spaces",
	  .labels = { { "model", "model_name" }, { "tenant", "tenant" } },
	  .max_series = LISTS_LABELS,
	  FAMILIES(model) },
	{ .name = "tenants",
	  .labels = { { "tenant", "tenant" }, { "what", "what" } },
	  .max_series = SERIES,
	  FAMILIES(tenant) },
	{ .name = "tenants", /* each of its rows has these numbers */
	  .labels = { { "tenant", "tenant" } },
	  .member = "what",
	  .value = "blocks",
	  .max_series = SERIES,
	  FAMILIES(lookup) },
	{ .name = "clients",
	  .labels = { { "tenant", "tenant" }, { "state", "state" } },
	  .max_series = SERIES,
	  FAMILIES(client) },
	{ .name = "disks",
	  .labels = { { "path", "disk" } },
	  .max_series = LISTS_LABELS,
	  FAMILIES(disk) },
	{ .name = "endpoints",
	  .labels = { { "address", "endpoint" } },
	  .max_series = LISTS_LABELS,
	  FAMILIES(endpoint) },
	{ .name = "devices",
	  .labels = { { "device", "device" }, { "uuid", "uuid" } },
	  .max_series = LISTS_LABELS,
	  FAMILIES(device) },
};
enum { LISTINGS = sizeof(listings) / sizeof(listings[0]) };

static struct list_counts all_counts[LISTINGS];

static struct list_counts *counts_of(const struct listing *listing)
{
	return &all_counts[listing - listings];
}

/* --- a row becomes numbers of its series --- */

static size_t states_of(const struct family *family)
{
	size_t n = 1;

	for (const char *at = family->states; at && *at != '\0'; at++)
		n += *at == '|';
	return n;
}

static const char *label_at(struct json_object *row, const char *member)
{
	const char *text = text_at(row, member);

	return text[0] != '\0' ? text : "unknown";
}

/* In base units. */
static double value_at(struct json_object *row, const char *member)
{
	struct json_object *value = NULL;

	(void)json_object_object_get_ex(row, member, &value);
	return json_object_get_double(value) / (strstr(member, "_us_") ? 1e6 : 1);
}

/* The row's cells, without regard to other rows. */
static void read_cells(const struct listing *listing, struct json_object *row, double *cell)
{
	for (size_t i = 0; i < listing->n_families; i++) {
		const struct family *family = &listing->families[i];
		const char *state = family->states;

		if (family->kind == ROWS) {
			*cell++ = 1;
		} else if (family->kind != STATE) {
			*cell = value_at(row, family->member);
			*cell++ *= family->times ? value_at(row, family->times) : 1;
		}
		while (family->kind == STATE && state) {
			const size_t length = strcspn(state, "|");
			const char *now = text_at(row, family->member);

			*cell++ = strlen(now) == length && memcmp(now, state, length) == 0;
			state = state[length] == '|' ? state + length + 1 : NULL;
		}
	}
}

static void merge_cells(const struct listing *listing, const double *from, const double *before,
			double *to)
{
	for (size_t i = 0; i < listing->n_families; i++) {
		const enum kind kind = listing->families[i].kind;

		for (size_t n = states_of(&listing->families[i]); n > 0;
		     n--, from++, before++, to++) {
			/* a counter that is less than before has begun anew */
			if (kind == COUNTER)
				*to += *from >= *before ? *from - *before : *from;
			else if (kind != LARGEST)
				*to += *from;
			else if (*from > *to)
				*to = *from;
		}
	}
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
	do {
		hash = (hash ^ (unsigned char)*text) * 1099511628211u;
	} while (*text++ != '\0');
	return hash;
}

/* What tells this row from all others of its list, now and later. */
static uint64_t identity(struct json_object *row, const char *labels)
{
	return hash_text(hash_text(14695981039346656037u, labels), text_at(row, "id"));
}

/* The labels of this row; NULL: out of memory. */
static char *labels_of(const struct listing *listing, struct json_object *row, bool other)
{
	char *text = NULL;
	size_t n;
	FILE *out = open_memstream(&text, &n);

	if (!out)
		return NULL;
	for (size_t i = 0; i < 2 && listing->labels[i].member; i++) {
		fputs(i > 0 ? "," : "", out);
		metric_label(out, listing->labels[i].label,
			     other ? "other" : label_at(row, listing->labels[i].member));
	}
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}

/* The series with these labels, which it takes. */
static struct series *series_of(const struct listing *listing, struct json_object *row,
				char *labels)
{
	struct list_counts *counts = counts_of(listing);
	struct series *other = &counts->series[SERIES];

	for (size_t i = 0; i < counts->n_series; i++) {
		if (strcmp(counts->series[i].labels, labels) == 0) {
			free(labels);
			return &counts->series[i];
		}
	}
	if (counts->n_series < listing->max_series) {
		counts->series[counts->n_series].labels = labels;
		return &counts->series[counts->n_series++];
	}
	free(labels);
	if (!other->labels)
		other->labels = labels_of(listing, row, true);
	return other->labels ? other : NULL;
}

/* What the row was at the last look; zeros: it is new. Rows mostly come in the same order. */
static const double *cells_before(const struct list_counts *counts, uint64_t row, size_t *cursor)
{
	static const double none[CELLS];

	for (size_t i = 0; i < counts->n_rows; i++) {
		const size_t at = (*cursor + i) % counts->n_rows;

		if (counts->rows[at].identity != row)
			continue;
		*cursor = at + 1;
		return counts->rows[at].cells;
	}
	return none;
}

static void gauges_forget(const struct listing *listing)
{
	for (size_t s = 0; s <= SERIES; s++) {
		double *cell = counts_of(listing)->series[s].cells;

		for (size_t i = 0; i < listing->n_families; i++) {
			for (size_t n = states_of(&listing->families[i]); n > 0; n--, cell++)
				if (listing->families[i].kind != COUNTER)
					*cell = 0;
		}
		assert(cell <= counts_of(listing)->series[s].cells + CELLS);
	}
}

/* False: out of memory. */
static bool take_rows(const struct listing *listing, struct json_object *array)
{
	const size_t n = json_object_array_length(array);
	struct row *rows = calloc(n + 1, sizeof(rows[0]));
	struct list_counts *counts = counts_of(listing);
	size_t cursor = 0;

	if (!rows)
		return false;
	gauges_forget(listing);
	for (size_t i = 0; i < n; i++) {
		struct json_object *row = json_object_array_get_idx(array, i);
		const bool wanted = !listing->member ||
				    strcmp(text_at(row, listing->member), listing->value) == 0;
		char *labels = wanted ? labels_of(listing, row, false) : NULL;
		struct series *series;

		if (!labels)
			continue;
		rows[i].identity = identity(row, labels);
		read_cells(listing, row, rows[i].cells);
		series = series_of(listing, row, labels);
		if (series)
			merge_cells(listing, rows[i].cells,
				    cells_before(counts, rows[i].identity, &cursor), series->cells);
	}
	free(counts->rows);
	counts->rows = rows;
	counts->n_rows = n;
	return true;
}

/* --- asking --- */

/* Asks for the list. 0 or -errno. */
static int ask(int fd, const struct listing *listing, uint64_t deadline_ns)
{
	static char packet[CTL_MAX_REPLY + 1];
	struct json_tokener *tokener = json_tokener_new();
	struct json_object *root = NULL, *rows = NULL;
	ssize_t n = -EPROTO;

	if (tokener && send(fd, listing->name, strlen(listing->name) + 1, MSG_NOSIGNAL) > 0) {
		do {
			n = next_packet(fd, deadline_ns, packet);
			if (n > 1 && (packet[0] == '+' || packet[0] == '.'))
				root = json_tokener_parse_ex(tokener, packet + 1, (int)n - 1);
		} while (n > 0 && packet[0] == '+');
	}
	if (json_object_object_get_ex(root, listing->name, &rows) &&
	    json_object_is_type(rows, json_type_array) && take_rows(listing, rows))
		n = 0;
	else
		n = n < 0 ? n : -EPROTO;
	json_object_put(root);
	json_tokener_free(tokener);
	return (int)n;
}

static int ask_all(const struct context *context)
{
	const uint64_t deadline_ns = clock_ns() + LISTS_DEADLINE_MS * 1000000ull;
	const int fd = connect_within(context->admin_path, LISTS_DEADLINE_MS);
	int r = fd < 0 ? fd : 0;

	for (size_t i = 0; i < LISTINGS && r == 0; i++)
		r = ask(fd, &listings[i], deadline_ns);
	if (fd >= 0)
		(void)close(fd);
	return r;
}

/* --- printing --- */

static void print_family(FILE *out, const struct listing *listing, const struct family *family,
			 size_t cell)
{
	char name[80];

	if (counts_of(listing)->n_series == 0)
		return;
	metric_family(out, family->name, family->kind == COUNTER ? "counter" : "gauge",
		      family->help);
	for (size_t s = 0; s <= SERIES; s++) {
		const struct series *series = &counts_of(listing)->series[s];
		const char *state = family->states;

		if (!series->labels)
			continue;
		snprintf(name, sizeof(name), "kvtier_%s", family->name);
		if (!state)
			fprintf(out, "%s{%s} %.15g\n", name, series->labels, series->cells[cell]);
		for (size_t i = 0; state; i++) {
			const size_t length = strcspn(state, "|");

			fprintf(out, "%s{%s,state=\"%.*s\"} %.15g\n", name, series->labels,
				(int)length, state, series->cells[cell + i]);
			state = state[length] == '|' ? state + length + 1 : NULL;
		}
	}
}

void lists_print(FILE *out, const struct context *context)
{
	static uint64_t asked_ns;
	static int r;
	static int said;
	const uint64_t now_ns = clock_ns();

	if (asked_ns == 0 || now_ns - asked_ns > LISTS_EVERY_MS * 1000000ull) {
		r = ask_all(context);
		asked_ns = now_ns;
	}
	if (r != said)
		fprintf(stderr, "kvtierctl: %s: %s\n", context->admin_path,
			r == 0 ? "answers" : strerror(-r));
	said = r;
	metric_family(out, "lists_up", "gauge",
		      "1: the admin socket answered; 0: no metrics of models, tenants, clients, "
		      "disks, endpoints and devices");
	fprintf(out, "kvtier_lists_up %d\n", r == 0);
	for (size_t i = 0; i < LISTINGS && r == 0; i++) {
		size_t cell = 0;

		for (size_t k = 0; k < listings[i].n_families; k++) {
			print_family(out, &listings[i], &listings[i].families[k], cell);
			cell += states_of(&listings[i].families[k]);
		}
	}
}
