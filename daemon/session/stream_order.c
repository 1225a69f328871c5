/* SPDX-License-Identifier: Apache-2.0 */
/* stream_order.c - see stream_order.h. */
#include "stream_order.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/text.h"
#include "ring.h"

/* With all seals no later act of the client can make a touch of the page fail. The seals are
 * looked at first, since only a memfd has them. */
static int check_words(int fd, char *text, size_t n)
{
	const int needed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	const int seals = fcntl(fd, F_GET_SEALS);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || (seals & needed) != needed)
		return text_fail(
			text, n, -EPERM,
			"order: the words need a memfd with the seals SHRINK, GROW and SEAL");
	if (fstat(fd, &st) || st.st_size != (off_t)sizeof(struct wire_words) || fstatfs(fd, &fs) ||
	    fs.f_type == HUGETLBFS_MAGIC)
		return text_fail(text, n, -EINVAL,
				 "order: the words' memfd must have %zu bytes of ordinary pages",
				 sizeof(struct wire_words));
	return 0;
}

static int map_words(int fd, struct stream_order *o, char *text, size_t n)
{
	void *map;
	const int r = check_words(fd, text, n);

	if (r)
		return r;
	map = mmap(NULL, sizeof(*o->words), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return text_fail(text, n, -EPERM, "order: the words cannot be mapped: %s",
				 strerror(errno));
	o->words = map;
	return 0;
}

static int import(const struct devices *devices, const uint8_t device[WIRE_UUID_BYTES], int fd,
		  struct stream_order *o, char *text, size_t n)
{
	o->device = devices_find(devices, device);
	if (!o->device || o->device == devices_cpu(devices))
		return text_fail(text, n, -ENODEV,
				 "order.device: this daemon serves no such device");
	return map_words(fd, o, text, n);
}

int stream_order_import(const struct devices *devices, const uint8_t device[WIRE_UUID_BYTES],
			int fd, struct stream_order **ret, char *text, size_t n)
{
	struct stream_order *o = calloc(1, sizeof(*o));
	int r;

	if (!o)
		return text_fail(text, n, -ENOMEM, "out of memory for an order");
	r = import(devices, device, fd, o, text, n);
	if (r)
		stream_order_release(o);
	else
		*ret = o;
	return r;
}

void stream_order_release(struct stream_order *o)
{
	if (o->words)
		(void)munmap(o->words, sizeof(*o->words));
	free(o);
}

struct stream_order *stream_order_find(struct stream_order *list, const struct device *device)
{
	while (list && list->device != device)
		list = list->next;
	return list;
}

struct device_order stream_order_of(const struct stream_order *o, const struct wire_sqe *sqe)
{
	struct device_order ret = { 0 };

	if (sqe->flags & WIRE_SQE_READY) {
		ret.ready = &o->words->ready[sqe->word - 1];
		ret.value = sqe->op_id;
	}
	if (sqe->flags & WIRE_SQE_GIVEN) {
		ret.given = &o->words->given[sqe->word - 1];
		ret.given_value = wire_groups(sqe->op_id, 0);
		ret.groups = sqe->groups;
	}
	return ret;
}

FETCHES_TO_WRITE void stream_order_prefetch(const struct stream_order *o,
					    const struct wire_sqe *sqe)
{
	if (sqe->word == 0)
		return;
	if (sqe->groups > 0)
		__builtin_prefetch(&o->words->layers[sqe->word - 1], 1);
	__builtin_prefetch(&o->words->done[sqe->word - 1], 1);
}

/* The client also raises words, of ops that end with their connection. */
static void raise_word(uint64_t *word, uint64_t to)
{
	uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

	while ((int64_t)(to - old) > 0 &&
	       !__atomic_compare_exchange_n(word, &old, to, false, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED))
		;
}

void stream_order_layers(const struct stream_order *o, const struct wire_sqe *sqe, uint32_t groups)
{
	if (o && sqe->word > 0)
		raise_word(&o->words->layers[sqe->word - 1], wire_groups(sqe->op_id, groups));
}

void stream_order_done(const struct stream_order *o, const struct wire_sqe *sqe)
{
	if (!o || sqe->word == 0)
		return;
	if (sqe->groups > 0)
		stream_order_layers(o, sqe, WIRE_ALL_GROUPS);
	raise_word(&o->words->done[sqe->word - 1], sqe->op_id);
}
