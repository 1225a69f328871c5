/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - the log: one line for each fact that a test should know.
 *
 *	kvtierd[4711] violation: cuMemFree: 0x7f0012000000 was freed before
 *	kvtierd[4711] note: cuCtxSynchronize: waits for everything that the context has queued
 *	kvtierd[4711] leak: an event was not destroyed
 *	kvtierd[4711] exit: 1032 calls, 0 violations, 1 leak
 *
 * A violation is a mistake of the program, with any answer of the driver. A note is legal, and of
 * interest to tests. Several processes write one log: a line is one write() to a file opened for
 * appending.
 */
#include <signal.h>
#include <stdarg.h>

#include "emu.h"

static int log_fd = STDERR_FILENO;
static _Atomic uint64_t violations, leaks;
static struct sigaction before;
static char last_words[128]; /* a signal handler may not make them */

static void line(const char *kind, const char *format, va_list arguments)
{
	char text[512];
	int n = snprintf(text, sizeof(text) - 1, "%s[%d] %s: ", program_invocation_short_name,
			 (int)getpid(), kind);

	n += vsnprintf(text + n, sizeof(text) - 1 - (size_t)n, format, arguments);
	if (n > (int)sizeof(text) - 2)
		n = (int)sizeof(text) - 2;
	text[n] = '\n';
	(void)!write(log_fd, text, (size_t)n + 1);
}

#define LINE(kind)                     \
	va_list arguments;             \
	va_start(arguments, format);   \
	line(kind, format, arguments); \
	va_end(arguments)

void violation(const char *format, ...)
{
	LINE("violation");
	violations++;
	if (emu.settings.aborts)
		abort();
}

void note(const char *format, ...)
{
	LINE("note");
}

void leak(const char *format, ...)
{
	if (!emu.settings.leaks)
		return;
	LINE("leak");
	leaks++;
}

void trace(const char *what, const struct stream *s, const struct operation *op)
{
	if (emu.settings.trace)
		note("%s %s ticket %llu stream %llu priority %d bytes %zu grid %u", what,
		     call_name(op->call), (unsigned long long)op->ticket,
		     (unsigned long long)s->object.handle, s->priority, op->width * op->height,
		     op->grid[0]);
}

static void said(const char *format, ...)
{
	LINE("exit");
}

void report_open(void)
{
	if (*emu.settings.log)
		log_fd = open(emu.settings.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (log_fd < 0) {
		fprintf(stderr, "KVTIER_EMU: the log cannot be opened: %m\n");
		abort();
	}
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)context;
	if (address_of_device((uint64_t)info->si_addr)) {
		(void)!write(log_fd, last_words, strlen(last_words));
		violations++;
	}
	/* It comes again, and goes to the handler that had the signal before. */
	(void)sigaction(number, &before, NULL);
}

void report_host_accesses(void)
{
	const struct sigaction action = { .sa_sigaction = on_fault,
					  .sa_flags = SA_SIGINFO | SA_ONSTACK };

	snprintf(last_words, sizeof(last_words),
		 "%s[%d] violation: the program itself touched device memory\n",
		 program_invocation_short_name, (int)getpid());
	(void)sigaction(SIGSEGV, &action, &before);
}

/* The program ends by exit(): remaining objects are leaks. A signal or _exit() passes this by, as
 * does a process that only has a copy of the state, by fork(). */
__attribute__((destructor)) static void at_exit(void)
{
	uint64_t calls = 0;
	size_t i;

	if (!emu.pid || emu.pid != getpid())
		return;
	pthread_mutex_lock(&emu.lock);
	emu.exiting = true;
	context_at_exit();
	vmm_at_exit();
	for (i = 0; i < CALLS; i++) {
		calls += emu.counts[i];
		if (emu.settings.trace && emu.counts[i])
			note("called %s %llu times", call_name((enum call_id)i),
			     (unsigned long long)emu.counts[i]);
	}
	said("%llu calls, %llu violations, %llu leaks", (unsigned long long)calls,
	     (unsigned long long)violations, (unsigned long long)leaks);
	pthread_mutex_unlock(&emu.lock);
}
