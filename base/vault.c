/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vault.c - see vault.h. The vault is OpenSSL's secure heap, one mapping between two guard pages,
 * so OpenSSL's private keys lie there, too. If the kernel refuses a lock or MADV_DONTDUMP, the
 * daemon goes on: swap and core dumps that tell a secret are rare, and a daemon that refused to
 * start would help less.
 */
#include "vault.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

/* --- registers --- */

#if defined(__x86_64__)

#define XMM                                                                                      \
	"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
		"xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

/* Each instruction runs only where the processor has it. The compiler does not know of xmm16 and
 * above, so it keeps no value there. */
__attribute__((noinline)) void registers_forget(void)
{
	if (__builtin_cpu_supports("avx512f"))
		__asm__ volatile(".irp i, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t"
				 "vpxord %%zmm\\i, %%zmm\\i, %%zmm\\i\n\t"
				 ".endr" ::
					 : "memory");
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vzeroall" ::: XMM);
	else
		__asm__ volatile(".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n\t"
				 "pxor %%xmm\\i, %%xmm\\i\n\t"
				 ".endr" ::
					 : XMM);
}

#else

void registers_forget(void)
{
}

#endif

/* --- memory --- */

enum { PAGE = 4096, PLACE_BYTES = 256 << 10, PLACE_LEAST = 16 };

static size_t whole_pages(size_t n)
{
	return (n + PAGE - 1) / PAGE * PAGE;
}

void vault_hide(void *p, size_t n)
{
	(void)madvise(p, whole_pages(n), MADV_DONTDUMP);
}

/* mlock2(), as mlock() has no effect where a sanitizer is linked. */
static bool lock_pages(void *p, size_t n)
{
	return mlock2(p, whole_pages(n), 0) == 0;
}

void *vault_buffer(size_t n)
{
	void *p = mmap(NULL, whole_pages(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	vault_hide(p, n);
	return p;
}

void *vault_alloc(size_t n)
{
	void *p = CRYPTO_secure_malloc_initialized() ? OPENSSL_secure_zalloc(n) : NULL;

	if (CRYPTO_secure_allocated(p))
		return p;
	p = vault_buffer(n); /* there is no place, or it is full */
	if (p)
		(void)lock_pages(p, n);
	return p;
}

void vault_free(void *p, size_t n)
{
	if (!p)
		return;
	registers_forget(); /* they may have a part of it */
	if (CRYPTO_secure_allocated(p)) {
		OPENSSL_secure_clear_free(p, n);
		return;
	}
	explicit_bzero(p, n);
	(void)munmap(p, whole_pages(n)); /* unlocks, too */
}

/* --- files --- */

static int check_file(int fd, char *why, size_t n)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return text_fail(why, n, -errno, "%s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return text_fail(why, n, -EPERM, "is no regular file");
	if ((st.st_mode & S_IRWXO) != 0)
		return text_fail(
			why, n, -EPERM,
			"has mode %04o, others than its owner and group have access: chmod o= it",
			(unsigned)(st.st_mode & 07777));
	return 0;
}

int vault_read(const char *path, void *ret, size_t room, size_t *ret_bytes, char *why, size_t n)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	ssize_t got = 1;
	int r;

	if (fd < 0)
		return text_fail(why, n, -errno, "%s", strerror(errno));
	r = check_file(fd, why, n);
	*ret_bytes = 0;
	while (r == 0 && got > 0 && *ret_bytes < room) {
		got = read(fd, (uint8_t *)ret + *ret_bytes, room - *ret_bytes);
		if (got > 0)
			*ret_bytes += (size_t)got;
		else if (got < 0)
			r = text_fail(why, n, -errno, "%s", strerror(errno));
	}
	(void)close(fd);
	return r;
}

/*
 * OpenSSL's memory. OpenSSL frees some pieces without wiping them, for example the text of a
 * private key. Its large pieces are the buffers of TLS connections, with values in clear in them.
 */
struct vault_head { /* before each piece: 16 bytes, so it stays aligned */
	size_t bytes;
	size_t mapped; /* 0: of malloc() */
};
static_assert(sizeof(struct vault_head) == 16, "the alignment of malloc()");

static void *openssl_alloc(size_t n, const char *file, int line)
{
	const size_t whole = n + sizeof(struct vault_head);
	const bool large = n >= PAGE;
	struct vault_head *head;

	(void)file;
	(void)line;
	if (n == 0 || whole < n)
		return NULL;
	head = large ? vault_buffer(whole) : malloc(whole);
	if (!head)
		return NULL;
	*head = (struct vault_head){ .bytes = n, .mapped = large ? whole : 0 };
	return head + 1;
}

static void openssl_free(void *p, const char *file, int line)
{
	struct vault_head *head;

	(void)file;
	(void)line;
	if (!p)
		return;
	head = (struct vault_head *)p - 1;
	if (head->mapped) {
		vault_free(head, head->mapped);
		return;
	}
	explicit_bzero(p, head->bytes);
	free(head);
}

static void *openssl_realloc(void *p, size_t n, const char *file, int line)
{
	void *ret = NULL;

	if (n > 0)
		ret = openssl_alloc(n, file, line);
	if (p && ret) {
		const size_t before = ((struct vault_head *)p - 1)->bytes;

		memcpy(ret, p, before < n ? before : n);
	}
	if (ret || n == 0)
		openssl_free(p, file, line);
	return ret;
}

bool vault_open(void)
{
	void *p = vault_buffer(PAGE);
	const bool locks = p && lock_pages(p, PAGE);

	vault_free(p, PAGE);
	(void)CRYPTO_set_mem_functions(openssl_alloc, openssl_realloc, openssl_free);
	if (!CRYPTO_secure_malloc_initialized())
		(void)CRYPTO_secure_malloc_init(PLACE_BYTES, PLACE_LEAST);
	return locks;
}
