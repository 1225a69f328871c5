/* SPDX-License-Identifier: Apache-2.0 */

#include "lib_man.h"

#include "test.h"

void man_has(const char *page, void (*print)(FILE *out), const char *test)
{
	static char want[1 << 16], text[1 << 17];
	FILE *in = fopen(page, "r"), *out;
	size_t n;

	if (!in) {
		print_message("not run from the source's top directory\n");
		skip();
	}
	out = fmemopen(want, sizeof(want), "w");
	assert_non_null(out);
	print(out);
	(void)fclose(out);
	n = fread(text, 1, sizeof(text) - 1, in);
	text[n] = '\0';
	(void)fclose(in);
	if (!strstr(text, want))
		fail_msg("%s differs from the tables; put in it what `%s man` prints", page, test);
}
