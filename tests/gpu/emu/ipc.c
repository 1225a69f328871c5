/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc.c - handles that one process gives to another: of memory, fabric handles.
 *
 * A handle is a ticket: which process has which descriptor of which file. Opening it opens
 * /proc/PID/fd/N, and looks whether process and file are still the same. So a handle ends with its
 * process, and with the memory that it was made of; memory that is open lives on. A handle
 * opens in the PID namespace that it was made in, and never in the process that made it; a legacy
 * handle in processes of the same user alone.
 *
 * Memory is opened once for each process: the same handle again is a violation (and counts, as a
 * driver does); opened by two contexts, it is refused.
 */
#include <sys/stat.h>

#include "emu.h"

static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "what the driver's handles hold");

/* A process never leaves its own; a fork of it is refused before it comes here. */
static uint64_t pid_namespace(void)
{
	static uint64_t inode;
	struct stat status;

	if (!inode && !stat("/proc/self/ns/pid", &status))
		inode = status.st_ino;
	return inode;
}

static uint32_t check_of(const struct ticket *ticket)
{
	const unsigned char *at = (const unsigned char *)&ticket->pid;
	uint32_t sum = 2166136261;

	while (at < (const unsigned char *)(ticket + 1))
		sum = (sum ^ *at++) * 16777619;
	return sum;
}

void ticket_make(enum ticket_kind kind, uint32_t gpu, const struct physical *memory, void *ret)
{
	struct ticket t = { .magic = kind,
			    .pid = emu.pid,
			    .fd = memory->fd,
			    .started = emu.started,
			    .pid_namespace = pid_namespace(),
			    .gpu = (uint16_t)gpu,
			    .user = emu.settings.user,
			    .bytes = memory->bytes,
			    .handle_types = memory->handle_types };
	struct stat status;

	if (!fstat(memory->fd, &status))
		t.inode = status.st_ino;
	t.check = check_of(&t);
	memcpy(ret, &t, sizeof(t));
}

int ticket_open(enum ticket_kind kind, const void *bytes, struct ticket *ret)
{
	struct ticket t;
	struct stat status;
	char path[64];
	int fd;

	memcpy(&t, bytes, sizeof(t));
	if (t.magic != kind || t.check != check_of(&t))
		return -EINVAL;
	if (t.pid_namespace != pid_namespace() || process_started(t.pid) != t.started)
		return -ESRCH;
	if (kind != TICKET_FABRIC && t.user != emu.settings.user)
		return -EPERM;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", t.pid, t.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &status) || status.st_ino != t.inode) {
		close(fd);
		return -ESTALE;
	}
	*ret = t;
	return fd;
}

CUresult ticket_refused(int error)
{
	return error == -EPERM && draw(&emu.random) & 1 ? CUDA_ERROR_NOT_PERMITTED :
							  CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	const struct range *r;

	CALL(cuIpcGetMemHandle, NEEDS_CONTEXT);
	r = range_at(ptr);
	if (!handle || !r || r->kind != RANGE_ALLOC || r->base != ptr)
		return CUDA_ERROR_INVALID_VALUE;
	if (!emu.settings.ipc)
		return CUDA_ERROR_NOT_SUPPORTED;
	ticket_make(TICKET_MEMORY, r->gpu->physical, r->memory, handle);
	return CUDA_SUCCESS;
}

static struct range *find_open(uint64_t inode)
{
	struct range *r;
	uint32_t at = 0;

	while ((r = range_next(&at)) != NULL)
		if (r->kind == RANGE_IMPORT && r->memory->inode == inode)
			return r;
	return NULL;
}

static CUresult import(struct context *ctx, const struct ticket *ticket, int fd, CUdeviceptr *ret)
{
	struct device *gpu = device_of(ticket->gpu);
	struct range r = { .kind = RANGE_IMPORT,
			   .bytes = ticket->bytes,
			   .ctx = ctx,
			   .gpu = gpu,
			   .peer = ctx->gpu,
			   .opens = 1,
			   .access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	if (!gpu)
		return CUDA_ERROR_INVALID_DEVICE;
	if (gpu != ctx->gpu && !emu.settings.peer)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	r.memory = physical_open(gpu, fd, ticket->bytes, 0);
	return r.memory ? range_add_device(&r, ret) : CUDA_ERROR_MAP_FAILED;
}

static CUresult open_again(const struct call *call, struct range *r, CUdeviceptr *ret)
{
	violation("%s: the memory at %#llx is open already", call_name(call->id), r->base);
	if (r->ctx != call->ctx)
		return CUDA_ERROR_ALREADY_MAPPED;
	r->opens++;
	*ret = r->base;
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags)
{
	struct ticket ticket;
	struct range *open;
	CUresult r;
	int fd;

	CALL(cuIpcOpenMemHandle, NEEDS_CONTEXT);
	if (!ptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if (!emu.settings.ipc)
		return CUDA_ERROR_NOT_SUPPORTED;
	fd = ticket_open(TICKET_MEMORY, &handle, &ticket);
	if (fd < 0)
		return ticket_refused(fd);
	open = find_open(ticket.inode);
	if (ticket.pid == getpid())
		r = CUDA_ERROR_INVALID_CONTEXT;
	else if (open)
		r = open_again(&call, open, ptr);
	else
		r = import(call.ctx, &ticket, fd, ptr);
	close(fd);
	return r;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	struct range *r;

	CALL(cuIpcCloseMemHandle, NEEDS_CONTEXT);
	r = range_at(ptr);
	if (!r || r->kind != RANGE_IMPORT || r->base != ptr) {
		violation("%s(%#llx): no handle is open there", call_name(call.id), ptr);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (r->ctx != call.ctx) {
		violation("%s(%#llx): another context opened it", call_name(call.id), ptr);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (--r->opens)
		return call_done(&call);
	range_settle(r, call_name(call.id));
	range_drop(r);
	return call_done(&call);
}
