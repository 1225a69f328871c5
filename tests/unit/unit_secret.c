/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_secret - goal: a tenant's secret is its node's own, made once, or that of all nodes which
 * share one, and always the same. Method: spaces in temporary directories; their salts tell the
 * secrets apart.
 */
#include "tests/lib/lib_space.h"

#include "client/kvtier.h"
#include "daemon/config/secret.h"

/* Spaces of another node: another state directory, the same shared secret, if any. The salt of the
 * usual geometry. */
static void salt_elsewhere(const char *tenant, const char *shared, uint8_t ret[32])
{
	const struct wire_geometry g = home_geometry();
	char dir[SCRATCH_BYTES], command[128];
	struct quota quota = { 0 };
	struct spaces *other;
	struct space *space;

	scratch_make("/tmp", dir, sizeof(dir));
	assert_int_equal(spaces_open(dir, 64, &quota, &other, home_text, sizeof(home_text)), 0);
	if (shared)
		spaces_shared_secret(other, (const uint8_t *)shared, strlen(shared));
	assert_int_equal(spaces_tenant(other, tenant, home_text, sizeof(home_text)), 0);
	assert_int_equal(space_acquire(other, tenant, &g, &space, home_text, sizeof(home_text)), 0);
	space_salt(other, space, ret);
	spaces_close(other);
	/* with a shared secret, none of its own is made */
	snprintf(command, sizeof(command), "ls %s | grep -q .", dir);
	assert_int_equal(system(command) == 0, !shared);
	scratch_remove(dir);
}

TEST_EACH(home_set_up, home_tear_down);

TEST(nodes_that_share_a_secret_agree)
{
	static const char one[] = "0123456789abcdef0123456789abcdef",
			  two[] = "0123456789abcdef0123456789abcdeF";
	uint8_t a[32], b[32];

	salt_elsewhere("default", one, a);
	salt_elsewhere("default", one, b);
	assert_memory_equal(a, b, 32);
	salt_elsewhere("other", one, b);
	assert_memory_not_equal(a, b, 32);
	salt_elsewhere("default", two, b);
	assert_memory_not_equal(a, b, 32);
	salt_elsewhere("default", NULL, a);
	salt_elsewhere("default", NULL, b);
	assert_memory_not_equal(a, b, 32);
}

/* The output of `printf 'kvtier tenant 1\0default' | openssl dgst -sha256 -hmac KEY`: other
 * versions must agree, too. */
TEST(the_derivation_stays_as_it_is)
{
	static const uint8_t want[SECRET_BYTES] = {
		0xfb, 0xf7, 0xc1, 0xa2, 0x91, 0xa0, 0x70, 0x29, 0x42, 0x81, 0x21,
		0x67, 0xa8, 0x02, 0x8c, 0x15, 0xba, 0xff, 0x13, 0x90, 0xdf, 0x37,
		0x53, 0xe5, 0x10, 0xaf, 0x0f, 0x2f, 0x6e, 0x17, 0x16, 0x6e,
	};
	uint8_t secret[SECRET_BYTES];

	secret_derive((const uint8_t *)"0123456789abcdef0123456789abcdef", 32, "default", secret);
	assert_memory_equal(secret, want, sizeof(want));
}

TEST(secret_is_private_and_alone)
{
	char path[128], command[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/secret-default", home.dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, 32);
	assert_int_equal(st.st_nlink, 1); /* the temporary name is gone */
	snprintf(command, sizeof(command), "test $(ls -A %s | wc -l) = 1", home.dir);
	assert_int_equal(system(command), 0);
}

static void bad_secret(const char *bytes, mode_t mode, int error, const char *words)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/secret-bad", home.dir);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
	assert_int_equal(fchmod(fd, mode), 0);
	(void)close(fd);
	assert_int_equal(spaces_tenant(home.spaces, "bad", home_text, sizeof(home_text)), error);
	assert_non_null(strstr(home_text, words));
	assert_int_equal(unlink(path), 0);
	/* nothing half-applied */
	assert_int_equal(spaces_tenant(home.spaces, "bad", home_text, sizeof(home_text)), 0);
}

TEST_DO(secret_readable_by_others,
	bad_secret("0123456789abcdef0123456789abcdef", 0604, -EPERM, "mode 0600 (it is 0604)"));
TEST_DO(secret_too_short, bad_secret("0123", 0600, -EBADMSG, "it has 4"));
TEST_DO(secret_too_long,
	bad_secret("0123456789abcdef0123456789abcdef!", 0600, -EBADMSG, "it has 33"));

TEST(secret_that_is_a_link)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/secret-link", home.dir);
	assert_int_equal(symlink("secret-default", path), 0);
	assert_int_equal(spaces_tenant(home.spaces, "link", home_text, sizeof(home_text)), -ELOOP);
	assert_non_null(strstr(home_text, "secret-link"));
}
