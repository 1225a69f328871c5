/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_sparse_region.c - goal: memory that a client has not allocated is not allocated, and so not
 * paid for, by the daemon. Method: a raw client lends pages of an untouched memfd. Its stores and
 * loads have status -EFAULT, are counted, and the memfd stays empty; so does one from which it
 * punches pages that were there before, while loads of them go on. With libkvtier the same memfd
 * works, as the library touches pages before it lends them. Then all of this again beside a daemon
 * to which a seccomp filter refuses userfaultfd, as some containers do; its status says so.
 */
#include "tests/lib/lib_raw.h"

#include <linux/filter.h>
#include <linux/seccomp.h>

#include "daemon/device/guard.h"

enum { PAGES = 64, BLOCKS = 16 };

/* In the process that becomes the daemon. */
static void refuse_userfaultfd(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { .len = sizeof(filter) / sizeof(*filter),
					    .filter = filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(1);
}

static struct daemon d;

FIXTURE(begin)
{
	daemon_place(&d, false);
	daemon_configure(&d, HOST("8M", "256K"));
	d.enter = *state ? refuse_userfaultfd : NULL;
	daemon_restart(&d);
	return 0;
}

FIXTURE_DO(end, daemon_remove(&d));

/* A case twice: *state says whether userfaultfd is refused. */
#define WITH_AND_WITHOUT(name)                             \
	TEST_ROWS(name, { #name, name, begin, end, NULL }, \
		  { #name " [refused]", name, begin, end, "" })

static uint64_t allocated(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

/* An op of these blocks: keys i + 1, pages first + i. */
static void run_op(struct raw *r, uint32_t position, enum wire_op op, uint32_t space,
		   uint32_t first, uint32_t n)
{
	struct wire_sqe sqe = raw_sqe(op, space);

	sqe.op_id = position + 1;
	sqe.first = 0;
	sqe.n = n;
	for (uint32_t i = 0; i < n; i++) {
		memset(raw_keys(r) + 32 * i, (int)(i + 1), 32);
		raw_pages(r)[i] = first + i;
	}
	raw_run(r, position, &sqe);
}

/* Likewise, and each block ends so. */
static void ends(struct raw *r, uint32_t position, enum wire_op op, uint32_t space, uint32_t first,
		 uint32_t n, int32_t status)
{
	run_op(r, position, op, space, first, n);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(raw_status(r, i), status);
}

WITH_AND_WITHOUT(holes_are_refused)
{
	uint32_t space;
	uint8_t *memory;
	struct raw r;
	int fd;

	raw_open(&r, d.socket);
	fd = raw_space_open(&r, &space);
	assert_int_equal(allocated(fd), 0);
	ends(&r, 0, WIRE_OP_STORE, space, 0, 1, -EFAULT);
	assert_int_equal(allocated(fd), 0);

	/* Stored from pages that are there; loaded into some that are not. */
	memory = raw_region_map(fd);
	memset(memory, 1, raw_region_bytes());
	ends(&r, 1, WIRE_OP_STORE, space, 0, 4, 0);
	ends(&r, 2, WIRE_OP_LOAD, space, 4, 4, 0);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
				   (off_t)raw_region_bytes()),
			 0);
	ends(&r, 3, WIRE_OP_LOAD, space, 4, 4, -EFAULT);
	assert_int_equal(allocated(fd), 0);
	daemon_stat_becomes(&d, "store.sparse_blocks_total", 1, PATIENT_MS);
	daemon_stat_becomes(&d, "load.sparse_blocks_total", 4, PATIENT_MS);
	assert_int_equal(daemon_stat(&d, "tiers.host.corrupt_blocks_total"), 0);

	/* The blocks are as good as before. */
	memset(memory, 2, raw_region_bytes());
	ends(&r, 4, WIRE_OP_LOAD, space, 4, 4, 0);
	assert_int_equal(memory[4 * (raw_region_bytes() / RAW_PAGES)], 1);
	(void)munmap(memory, raw_region_bytes());
	(void)close(fd);
	raw_close(&r);
}

static _Atomic bool stop;

static void *punch(void *arg)
{
	const int fd = *(const int *)arg;
	struct stat st;

	if (fstat(fd, &st))
		return NULL;
	for (off_t at = 0; !stop; at = (at + 4096) % st.st_size)
		(void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, 4096);
	return NULL;
}

/* Holes come while pages are read and written: the daemon lives, and blocks that it says were
 * loaded, were. */
WITH_AND_WITHOUT(holes_may_come_at_any_time)
{
	uint32_t space, refused = 0, served = 0;
	pthread_t puncher;
	struct witness w;
	uint8_t *memory;
	struct raw r;
	int fd;

	stop = false;
	witness_start(&w, d.socket);
	raw_open(&r, d.socket);
	fd = raw_space_open(&r, &space);
	memory = raw_region_map(fd);
	memset(memory, 1, raw_region_bytes());
	run_op(&r, 0, WIRE_OP_STORE, space, 0, 8);
	assert_int_equal(pthread_create(&puncher, NULL, punch, &fd), 0);
	for (uint32_t i = 1; i < 400; i++) {
		memset(memory, 1, raw_region_bytes());
		run_op(&r, i, i % 4 ? WIRE_OP_LOAD : WIRE_OP_STORE, space, 8, 8);
		for (uint32_t b = 0; b < 8; b++) {
			const int32_t s = raw_status(&r, b);

			assert_true(s == 0 || s == 1 || s == -EFAULT || s == -ENOENT);
			refused += s == -EFAULT;
			served += s >= 0;
		}
		raw_taken(&r, i + 1);
	}
	stop = true;
	pthread_join(puncher, NULL);
	print_message("%u blocks served, %u refused\n", served, refused);
	witness_check(&w);
	witness_stop(&w);
	(void)munmap(memory, raw_region_bytes());
	(void)close(fd);
	raw_close(&r);
}

/* The engine never touched its region, and gives pages back in between. */
WITH_AND_WITHOUT(the_library_touches_pages)
{
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
	int32_t statuses[BLOCKS];
	struct engine e;

	engine_open(&e, d.socket, "sparse", &large_raw, PAGES);
	chain_keys(&e, 1, BLOCKS, keys);
	assert_int_equal(allocated(e.fd), 0);
	assert_int_equal(chain_store(&e, keys, 0, BLOCKS), 0);
	pages_from(BLOCKS, pages, BLOCKS);
	assert_true(allocated(e.fd) < (BLOCKS + 1) * e.page_bytes);
	assert_int_equal(engine_load(&e, keys, pages, BLOCKS, statuses), 0);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is(&e, pages[i], &keys[i], 0));
	assert_true(allocated(e.fd) >= 2 * BLOCKS * e.page_bytes);
	assert_int_equal(daemon_stat(&d, "load.sparse_blocks_total"), 0);

	/* Given back behind the library's back: refused once, then touched again. */
	assert_int_equal(fallocate(e.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
				   (off_t)(PAGES * e.page_bytes)),
			 0);
	assert_int_equal(engine_load(&e, keys, pages, BLOCKS, statuses), -EFAULT);
	assert_int_equal(engine_load(&e, keys, pages, BLOCKS, statuses), 0);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is(&e, pages[i], &keys[i], 0));
	engine_close(&e);
}

WITH_AND_WITHOUT(the_fallback_is_told)
{
	const bool refused = *state;
	bool told = refused;
	char text[8192];
	int guard;

	if (!refused) { /* then as this machine has it */
		assert_int_equal(guard_open(&guard), 0);
		told = guard < 0;
		guard_close(guard);
	}
	(void)daemon_ctl(&d, "status --json", text, sizeof(text));
	assert_non_null(strstr(text, "\"reasons\":["));
	assert_int_equal(strstr(text, "no_userfaultfd") != NULL, told);
	if (told)
		assert_non_null(strstr(text, "{\"code\":\"no_userfaultfd\",\"severity\":\"note\""));
}
