/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mailbox.h - a list that any threads put things into and one thread takes out of, with an eventfd
 * that wakes the taker. Things embed a struct mail; nothing is allocated, and a mailbox is as large
 * as its mail.
 *
 *  any thread: mailbox_put --list--> mailbox_tell --eventfd--> taker: mailbox_hear, mailbox_take
 *
 * The taker is told once of the mail there: a thread that puts more in before the next
 * mailbox_take() makes no system call. A taker that looks now and then (a poller) needs no eventfd,
 * and pays no lock where the mailbox is empty.
 */
#ifndef KVTIER_MAILBOX_H
#define KVTIER_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Embedded in its owner; in one list at a time. */
struct mail {
	struct mail *next;
};

/* A list, first in first out, of one thread. */
struct mails {
	struct mail *first, **end;
	uint32_t n;
};

void mails_clear(struct mails *mails); /* also makes one */
void mails_append(struct mails *mails, struct mail *mail);
/* all of `from` to the end of `to` */
void mails_move(struct mails *to, struct mails *from);
struct mail *mails_take(struct mails *mails);              /* NULL: empty */
void mails_remove(struct mails *mails, struct mail *mail); /* which is in it; a walk */

struct mailbox {
	pthread_mutex_t lock; /* guards in, told. Take no locks while holding it */
	struct mails in;
	bool told;    /* of the mail in it */
	uint32_t any; /* in.n > 0; atomic, read without the lock */
	int fd;       /* eventfd, non-blocking; the mailbox's */
};

int mailbox_open(struct mailbox *box); /* 0 or -errno */
/* no other thread knows it any more; a mailbox that failed to open is fine */
void mailbox_close(struct mailbox *box);

/* Any thread: all of `mails`, which is then empty. Returns how many lie there of which the taker
 * was not told. */
uint32_t mailbox_put(struct mailbox *box, struct mails *mails);
/* any thread: of the mail there, if it was not told yet */
void mailbox_tell(struct mailbox *box);
void mailbox_post(struct mailbox *box, struct mails *mails); /* put, and tell */
/* any thread: the fd becomes readable; for news that are no mail */
void mailbox_ring(struct mailbox *box);

/* The taker: all that lies there, to the end of ret. */
void mailbox_take(struct mailbox *box, struct mails *ret);
void mailbox_hear(struct mailbox *box); /* when the fd is readable, before mailbox_take() */

#endif
