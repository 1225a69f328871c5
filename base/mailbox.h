/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mailbox.h - a list that any thread may put mail into and one thread takes mail out of, with an
 * eventfd that wakes the taker. A struct mail is embedded in whatever is sent, so a mailbox
 * allocates no memory and has no bound of its own.
 *
 *  any thread: mailbox_put --list--> mailbox_tell --eventfd--> taker: mailbox_hear, mailbox_take
 *
 * The taker is told once of the mail that waits: a thread that puts more in before the next
 * mailbox_take() makes no system call. A taker that looks now and then, such as a poller, needs no
 * eventfd, and takes no lock while the mailbox is empty.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Embedded in its owner, and in one list at a time. */
struct mail {
	struct mail *next;
};

/* A list that one thread uses, first in, first out. */
struct mails {
	struct mail *first, **end;
	uint32_t n;
};

void mails_clear(struct mails *mails); /* also makes one */
void mails_append(struct mails *mails, struct mail *mail);
/* Moves all of `from` to the end of `to`. */
void mails_move(struct mails *to, struct mails *from);
struct mail *mails_take(struct mails *mails);              /* NULL: empty */
void mails_remove(struct mails *mails, struct mail *mail); /* walks to the mail, which is in it */

struct mailbox {
	pthread_mutex_t lock; /* guards in, told. Take no locks while holding it */
	struct mails in;
	bool told;    /* the taker was told of the mail in it */
	uint32_t any; /* in.n > 0; atomic, read without the lock */
	int fd;       /* eventfd, non-blocking; the mailbox's */
};

int mailbox_open(struct mailbox *box); /* 0 or -errno */
/* No other thread uses it any more. It may have failed to open. */
void mailbox_close(struct mailbox *box);

/* Any thread: puts in all of `mails`, which is empty then. Returns how much mail waits that the
 * taker was not told of. */
uint32_t mailbox_put(struct mailbox *box, struct mails *mails);
/* Any thread: tells the taker of the mail that waits, if it was not told yet. */
void mailbox_tell(struct mailbox *box);
void mailbox_post(struct mailbox *box, struct mails *mails); /* mailbox_put(), and mailbox_tell() */
/* Any thread: makes the fd readable, for news that are no mail. */
void mailbox_ring(struct mailbox *box);

/* The taker: moves all mail that waits to the end of ret. */
void mailbox_take(struct mailbox *box, struct mails *ret);
void mailbox_hear(struct mailbox *box); /* when the fd is readable, before mailbox_take() */
