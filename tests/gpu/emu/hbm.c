/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hbm.c - how much memory of each GPU is in use, by all processes of the machine together.
 *
 * A table in a file below $KVTIER_EMU_DIR that all processes map; without that variable a process
 * knows of itself only. A row says that a process holds a piece of memory. Several rows of one
 * inode count once: the piece is there as long as any of them. The rows of a dead process are free.
 *
 * A row is taken by one compare-and-swap of its owner; there is no lock that a killed process could
 * leave behind. Two processes that take the last bytes at once may both get them.
 */

#include "emu.h"

enum { ROWS = 16384 };

static struct row {
	_Atomic uint64_t owner; /* pid; 0: free; ROW_BUSY: being written */
	uint64_t started;
	uint64_t inode;
	uint64_t bytes;
	uint64_t gpu;
} * rows;

/* Shared by all processes. No row behind the first `used` was ever taken. */
static struct table {
	_Atomic uint64_t used;
	struct row rows[ROWS];
} * table;

#define ROW_BUSY UINT64_MAX

void hbm_open(void)
{
	const char *dir = getenv("KVTIER_EMU_DIR");
	char path[256];
	int fd = -1;

	if (dir) {
		snprintf(path, sizeof(path), "%s/hbm", dir);
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (fd < 0 || ftruncate(fd, sizeof(*table))) {
			fprintf(stderr, "KVTIER_EMU_DIR: %s: %m\n", path);
			abort();
		}
	}
	table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE,
		     fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
	if (table == MAP_FAILED)
		abort();
	rows = table->rows;
	if (fd >= 0)
		close(fd);
}

uint64_t process_started(pid_t pid)
{
	unsigned long long started = 0;
	char path[64], text[1024], *at;
	ssize_t n;
	int fd, field;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	at = strrchr(text, ')'); /* field 2 may hold blanks; a zombie has let go of its memory */
	if (!at || at[2] == 'Z' || at[2] == 'X')
		return 0;
	for (field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at)
		started = strtoull(at, NULL, 10);
	return started;
}

static bool row_alive(struct row *row, uint64_t owner)
{
	const bool own = owner == (uint64_t)emu.pid;

	if ((own ? emu.started : process_started((pid_t)owner)) == row->started)
		return true;
	(void)atomic_compare_exchange_strong(&row->owner, &owner, 0);
	return false;
}

/* The memory of one GPU that a walk over the rows has counted: a hash table of inodes, good for the
 * walk whose number its entries have. The lock guards both. */
static struct {
	uint64_t inode, walk;
} counted[2 * ROWS];
static uint64_t walks;

static bool counted_before(uint64_t inode)
{
	uint32_t at = (uint32_t)(inode * 0x9e3779b97f4a7c15u >> 32) % (2 * ROWS);

	for (; counted[at].walk == walks; at = (at + 1) % (2 * ROWS))
		if (counted[at].inode == inode)
			return true;
	counted[at].inode = inode;
	counted[at].walk = walks;
	return false;
}

uint64_t hbm_used(uint32_t physical_gpu)
{
	uint64_t used = 0, alive_pid = 0;

	walks++;
	for (uint32_t i = 0; i < table->used; i++) {
		const uint64_t owner = rows[i].owner;

		if (!owner || owner == ROW_BUSY || rows[i].gpu != physical_gpu)
			continue;
		if (owner != alive_pid && !row_alive(&rows[i], owner))
			continue;
		alive_pid = owner;
		if (!counted_before(rows[i].inode))
			used += rows[i].bytes;
	}
	return used;
}

bool hbm_take(uint32_t physical_gpu, uint64_t inode, uint64_t bytes, uint32_t *ret_row)
{
	uint64_t used = 0;

	if (hbm_used(physical_gpu) + bytes > emu.settings.hbm_bytes)
		return false;
	for (uint32_t i = 0; i < ROWS; i++) {
		uint64_t none = 0;

		if (!atomic_compare_exchange_strong(&rows[i].owner, &none, ROW_BUSY))
			continue;
		rows[i].started = emu.started;
		rows[i].inode = inode;
		rows[i].bytes = bytes;
		rows[i].gpu = physical_gpu;
		while (used < i + 1 && !atomic_compare_exchange_weak(&table->used, &used, i + 1))
			;
		rows[i].owner = (uint64_t)emu.pid;
		*ret_row = i;
		return true;
	}
	return false;
}

void hbm_give(uint32_t row)
{
	rows[row].owner = 0;
}
