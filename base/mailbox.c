/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mailbox.c - see mailbox.h.
 *
 * Invariants
 *   B1 `told` is set only while the mailbox has mail: mailbox_take() clears both under the lock.
 *      So the taker is told of mail that comes into an empty mailbox.
 *   B2 the thread that sets `told` writes to the eventfd afterwards, and the taker reads the
 *      eventfd before it takes. So when mail waits and `told` is set, the eventfd is readable, or
 *      will be in a moment, or the taker is about to take.
 */
#include "mailbox.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

void mails_clear(struct mails *mails)
{
	*mails = (struct mails){ .end = &mails->first };
}

void mails_append(struct mails *mails, struct mail *mail)
{
	mail->next = NULL;
	*mails->end = mail;
	mails->end = &mail->next;
	mails->n++;
}

void mails_move(struct mails *to, struct mails *from)
{
	if (from->n == 0)
		return;
	*to->end = from->first;
	to->end = from->end;
	to->n += from->n;
	mails_clear(from);
}

struct mail *mails_take(struct mails *mails)
{
	struct mail *mail = mails->first;

	if (!mail)
		return NULL;
	mails->first = mail->next;
	if (!mails->first)
		mails->end = &mails->first;
	mails->n--;
	return mail;
}

void mails_remove(struct mails *mails, struct mail *mail)
{
	struct mail **link = &mails->first;

	while (*link != mail)
		link = &(*link)->next;
	*link = mail->next;
	if (!mail->next)
		mails->end = link;
	mails->n--;
}

int mailbox_open(struct mailbox *box)
{
	*box = (struct mailbox){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	if (box->fd < 0)
		return -errno;
	mails_clear(&box->in);
	(void)pthread_mutex_init(&box->lock, NULL);
	return 0;
}

void mailbox_close(struct mailbox *box)
{
	if (box->fd < 0)
		return;
	(void)close(box->fd);
	(void)pthread_mutex_destroy(&box->lock);
}

uint32_t mailbox_put(struct mailbox *box, struct mails *mails)
{
	uint32_t ret;

	(void)pthread_mutex_lock(&box->lock);
	mails_move(&box->in, mails);
	__atomic_store_n(&box->any, box->in.n > 0, __ATOMIC_RELAXED);
	ret = box->told ? 0 : box->in.n;
	(void)pthread_mutex_unlock(&box->lock);
	return ret;
}

void mailbox_tell(struct mailbox *box)
{
	bool tell;

	(void)pthread_mutex_lock(&box->lock);
	tell = box->in.n > 0 && !box->told;
	box->told = box->told || tell;
	(void)pthread_mutex_unlock(&box->lock);
	if (tell)
		mailbox_ring(box);
}

void mailbox_post(struct mailbox *box, struct mails *mails)
{
	if (mailbox_put(box, mails) > 0)
		mailbox_tell(box);
}

void mailbox_ring(struct mailbox *box)
{
	const uint64_t one = 1;

	(void)!write(box->fd, &one, sizeof(one)); /* full: then it was rung long ago */
}

void mailbox_take(struct mailbox *box, struct mails *ret)
{
	if (!__atomic_load_n(&box->any, __ATOMIC_RELAXED))
		return;
	(void)pthread_mutex_lock(&box->lock);
	mails_move(ret, &box->in);
	__atomic_store_n(&box->any, 0, __ATOMIC_RELAXED);
	box->told = false;
	(void)pthread_mutex_unlock(&box->lock);
}

void mailbox_hear(struct mailbox *box)
{
	uint64_t count;

	(void)!read(box->fd, &count, sizeof(count));
}
