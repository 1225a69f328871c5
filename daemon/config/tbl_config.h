/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_config.h - every configuration key, once. struct config, the defaults, the parser, --help and
 * the man page are made of it. It has no include guard: it is included with CONFIG() defined, which
 * it undefines.
 *
 *	CONFIG(section, key, TYPE, default, min, max, unit, when, prose)
 *	SOCKET(key, TYPE, default, min, max, unit, when, prose)
 *	                                     a key of [socket], and of each [socket NAME]
 *
 * TYPE    BYTES NODES COUNT US SECONDS BOOL ENUM CHOICES STRING PATH PATHS ENDPOINTS HOSTS MODE;
 *	   config.h says what each accepts
 * default as a file would give it; the same parser reads it
 * min,max limits of the value; for STRING, PATH, PATHS, ENDPOINTS and HOSTS of the length in bytes
 * unit    for people; for ENUM and CHOICES the choices, a|b|c, whose positions are the values
 * when    the value takes effect: START, or RELOAD: a reload applies it, too (admin/reload.c)
 */
#ifndef SOCKET
#define SOCKET(key, ...) CONFIG(socket, key, __VA_ARGS__)
#endif
CONFIG(daemon, runtime_dir, PATH, "", 0, 255, "directory", START,
       "Directory of the sockets and the stats page. If empty, it is $RUNTIME_DIRECTORY "
       "(systemd), else /run/kvtier for root, else $XDG_RUNTIME_DIR/kvtier, else /tmp/kvtier-UID.")
CONFIG(daemon, state_dir, PATH, "", 0, 255, "directory", START,
       "Directory for what must outlive the daemon: the tenants' secrets, and the store of an NVMe "
       "tier without a path. If empty, it is $STATE_DIRECTORY (systemd), else /var/lib/kvtier for "
       "root, else $XDG_STATE_HOME/kvtier, else ~/.local/state/kvtier.")
CONFIG(daemon, log_level, ENUM, "info", 0, 3, "error|warning|info|debug", RELOAD,
       "The least urgent messages that the log has; it is written to standard error. debug writes "
       "each step of each op.")
CONFIG(daemon, stop_us, US, "10s", 0, 600000000, "us", START,
       "How long a clean stop may take. In this time blocks that only memory has are written to "
       "NVMe, and blocks that wait for Redis are written there. I/O that a disk still has then may "
       "take [nvme] stall_us more. systemd's TimeoutStopSec= must be longer than both together.")

SOCKET(path, PATH, "", 0, 107, "path", START,
       "Socket that engines connect to. If empty, it is kvtier.sock in runtime_dir. Each section "
       "[socket NAME], of which there may be 15, adds a socket with a path, mode, group, tenant, "
       "share and priority of its own. Unless they are given, its path is kvtier-NAME.sock in "
       "runtime_dir, and its tenant is NAME.")
SOCKET(mode, MODE, "0600", 0, 0777, "octal", START,
       "Permissions of that socket. A user who may write to the socket may connect. If systemd "
       "listens there (kvtierd.socket), SocketMode= and SocketGroup= of its unit count instead.")
SOCKET(group, STRING, "", 0, 63, "group", START,
       "Group of that socket, by name or number. With mode 0660 its members may connect. If "
       "empty, it is the daemon's own group.")
SOCKET(tenant, STRING, "default", 1, 31, "name", START,
       "Tenant of all clients that connect to this socket. Tenants never share blocks. Each socket "
       "has another tenant.")
SOCKET(share, COUNT, "0", 0, 75, "percent", RELOAD,
       "How much of host memory, and of the numbers of blocks, other tenants cannot take from this "
       "one, whether its engines run or not. All tenants together can have 75 at most. 0: tenants "
       "without a share divide a quarter among those whose engines are active. Memory beyond all "
       "shares is given to whichever tenant uses it. kvtierctl tenants shows what each tenant has.")
SOCKET(priority, COUNT, "50", 0, 100, "", RELOAD,
       "Blocks of a tenant with a lower priority are evicted first, down to its share.")
CONFIG(socket, max_clients, COUNT, "256", 1, 4096, "clients", START,
       "Connections that there may be at once. A further one is refused and counted. From 4 on, "
       "the last one is kept for root and the daemon's own user.")
CONFIG(socket, max_clients_per_uid, COUNT, "0", 0, 4096, "clients", RELOAD,
       "Connections that one user may have at once, so that other users can connect. A process may "
       "have as many of these as it leaves to the user's other processes: half of them, if it is "
       "the only one. 0: three quarters of max_clients.")

CONFIG(host, bytes, NODES, "1G", 64LL << 10, 64LL << 40, "bytes|auto", START,
       "Memory for blocks, which is reserved and touched at start. The default is for a trial: "
       "give what the engines leave. 0:8G,1:4G takes this much from NUMA nodes 0 and 1, and no "
       "memory from other nodes. Without nodes, the memory is spread over the nodes of this "
       "machine's GPUs, with the same amount for each GPU; if there is no GPU or its node is not "
       "known, it is spread over all nodes that the process may use. auto: a quarter of the "
       "memory that is available, spread in the same way. A GPU's blocks take slots on its own "
       "node while some are free there.")
CONFIG(host, slab_bytes, BYTES, "64M", 64LL << 10, 1LL << 30, "bytes", START,
       "Host memory is divided into slabs of this size. A slab holds blocks of one size, and no "
       "block can be larger than a slab. It is a multiple of 4096, and with huge_pages = 2m of 2M. "
       "If it is not given, it is no more than bytes.")
CONFIG(host, huge_pages, ENUM, "thp", 0, 2, "no|thp|2m", START,
       "no: pages of 4 KiB. thp: transparent huge pages, where the kernel has some. 2m: reserved "
       "huge pages (sysctl vm.nr_hugepages); kvtierd does not start without enough of them.")
CONFIG(host, lock, BOOL, "no", 0, 1, "yes|no", START,
       "Whether the memory is kept from being swapped out. This needs a memlock limit (ulimit -l, "
       "LimitMEMLOCK=) of bytes or more.")
CONFIG(host, pin, BOOL, "yes", 0, 1, "yes|no", START,
       "Whether the memory is registered with the CUDA driver, in the background, while GPUs are "
       "in use. The GPUs' copy engines then reach it directly; memory that is not registered is "
       "copied twice. kvtierctl status says if the driver refuses (because of the memory limit of "
       "a cgroup or container, or the IOMMU).")
CONFIG(host, verify, ENUM, "once", 0, 1, "once|always", RELOAD,
       "When a block's checksum is compared. once: when the block has come from NVMe or Redis. "
       "always: also before each load.")

CONFIG(nvme, path, PATHS, "", 0, 1023, "paths", START,
       "Stores on disk: files or whole block devices, one for each disk, with ':' between them or "
       "a line for each. A file that is absent is made. A file or device that is no store of "
       "kvtier's is left alone; kvtierctl format PATH makes it one. Blocks are spread over the "
       "stores by key. If empty, there is one store, nvme.store in state_dir.")
CONFIG(nvme, bytes, BYTES, "8G", 0, 64LL << 40, "bytes", START,
       "Size of each store; 0: no NVMe tier. A block device may be larger. The default is for a "
       "trial: give most of the disk.")
CONFIG(nvme, segment_bytes, BYTES, "64M", 64LL << 10, 256LL << 20, "bytes", START,
       "A store takes space back a segment at a time. This is the size of a segment when a store "
       "is made: a multiple of 4096, best 64M to 256M. bytes must have room for 4 segments. If it "
       "is not given, a small store has smaller segments, and a store above 4T larger ones.")
CONFIG(nvme, queue_depth, COUNT, "32", 1, 256, "reads", START,
       "Reads that kvtierd keeps in flight on each disk. At most half as many writes are in "
       "flight, and reads have precedence.")
CONFIG(nvme, write_budget_bytes_per_day, BYTES, "0", 0, 64LL << 40, "bytes", RELOAD,
       "Bytes that may be written to all stores together in a day, to spare the disks; 0: no "
       "limit. When they are used up, new blocks are kept in memory only.")
CONFIG(nvme, io, ENUM, "auto", 0, 2, "auto|io_uring|threads", START,
       "How kvtierd reads and writes. auto: by io_uring, or by a pool of threads where the kernel "
       "or a container refuses io_uring. kvtierctl status says which is in use.")
CONFIG(nvme, compress, ENUM, "off", 0, 1, "off|auto", START,
       "auto: blocks become fewer bytes on NVMe, without loss, where that saves 6 % of a space's "
       "bytes or more: 12 % of fp8 blocks. An older kvtierd does not find such blocks.")
CONFIG(nvme, codec, ENUM, "same", 0, 2, "same|q4|int8v4", START,
       "Codec of blocks on NVMe. same: the block's own. q4 or int8v4, which must be in [codec] "
       "allow: blocks of int8 and fp8 spaces lose values there to be half as many bytes or fewer, "
       "and have the lesser values once they come back. Those of a prompt's first 64 tokens, and "
       "of spaces that GPUs have pages of, stay as they are, and so does fp8 where fp8 has lost "
       "more of K than q4 would. An older kvtierd does not find such blocks.")
CONFIG(nvme, stall_us, US, "5s", 10000, 600000000, "us", START,
       "If a read or write takes longer, its disk is offline until the disk answers again.")

CONFIG(redis, endpoints, ENDPOINTS, "", 0, 4095, "endpoints", RELOAD,
       "Endpoints that nodes share, each a Redis or a Valkey: host:port, [v6]:port or unix:/path, "
       "with blanks between them or a line for each. The port is 6379 if left out. Several "
       "endpoints that are no Cluster divide the blocks by key: spell them alike on all nodes. "
       "Some endpoints of a Cluster are enough. If empty, there is no Redis tier.")
CONFIG(redis, cluster_hosts, HOSTS, "", 0, 2047, "hosts", RELOAD,
       "Hosts that a Cluster's slot map may name, besides those of endpoints: names, .domain for "
       "all names below it, addresses, networks such as 10.0.0.0/8; with blanks between them or a "
       "line for each. kvtierd connects to no other host and shows no other host the password. If "
       "empty, the networks of the endpoints' addresses are allowed: /24, /64 for IPv6, and of a "
       "loopback network that address alone.")
CONFIG(redis, username, STRING, "", 0, 63, "name", RELOAD,
       "ACL user to log in as, which needs password_file. If empty, it is the default user.")
CONFIG(redis, password_file, PATH, "", 0, 255, "path", RELOAD,
       "File whose first line is the password, at most 511 bytes. Only its owner and group may "
       "have access to it; systemd's LoadCredential= makes such a file, and renews it with a "
       "restart only. If empty, there is no password.")
CONFIG(redis, tls, BOOL, "no", 0, 1, "yes|no", RELOAD,
       "Whether kvtierd speaks TLS (1.2 or later) to all host:port endpoints and to the rest of "
       "their Cluster, and verifies their certificates. Connections through unix:/path are never "
       "encrypted.")
CONFIG(redis, tls_ca_file, PATH, "", 0, 255, "path", RELOAD,
       "PEM file with the certificates of the authorities that may sign an endpoint's "
       "certificate. If empty, these are the authorities that the system trusts. With TLS each "
       "reload reads this file and the next two, and connects anew.")
CONFIG(redis, tls_cert_file, PATH, "", 0, 255, "path", RELOAD,
       "PEM file with this node's certificate and its chain. Redis asks for one unless its "
       "tls-auth-clients is no. If empty, kvtierd shows no certificate.")
CONFIG(redis, tls_key_file, PATH, "", 0, 255, "path", RELOAD,
       "PEM file with the private key of tls_cert_file, without a passphrase. Only its owner and "
       "group may have access to it.")
CONFIG(redis, tls_name, STRING, "", 0, 63, "name", RELOAD,
       "Name or IP address that an endpoint's certificate must have. If empty, it is the host of "
       "the endpoint, or the name that a Cluster gives the endpoint. * accepts any certificate "
       "that the authorities of tls_ca_file signed.")
CONFIG(redis, key_prefix, STRING, "kvtier:", 0, 63, "text", START,
       "A value's name in Redis begins with this; tenant and key follow. So an ACL can allow "
       "~kvtier:* alone. It has printable characters and no blanks.")
CONFIG(redis, ttl, SECONDS, "0", 0, 315360000, "s", START,
       "How long Redis keeps a block after it was written, or read when less than half of that was "
       "left. 0: Redis keeps it until it evicts it by its maxmemory-policy.")
CONFIG(redis, timeout_ms, COUNT, "1000", 10, 60000, "ms", START,
       "How long Redis may take to answer, and to accept a connection. A block that takes longer "
       "is a miss.")
CONFIG(redis, write, ENUM, "through", 0, 3, "through|on-evict|off|auto", RELOAD,
       "When blocks are written to Redis. through: once they are stored; the engine does not wait "
       "for that. on-evict: when they leave this node's memory. off: never; they are only read. "
       "auto: when they are used again or leave memory, while this node reads less than a sixth of "
       "the bytes from Redis that it stores (tiers.redis.read_percent), as where each conversation "
       "has its node, so that most values would never be read; otherwise through.")
CONFIG(redis, max_inflight_bytes, BYTES, "64M", 1LL << 20, 64LL << 30, "bytes", START,
       "Memory of blocks that are being written to Redis or wait for it. When it is used up, the "
       "oldest waiting blocks are dropped.")
CONFIG(redis, compress, ENUM, "off", 0, 1, "off|auto", START,
       "auto: blocks become fewer bytes in Redis, without loss, where that saves 6 % of a space's "
       "bytes or more: 12 % of fp8 blocks. Set it when all nodes have a kvtierd that knows this "
       "option: to an older one such a block is a miss.")
CONFIG(redis, codec, ENUM, "same", 0, 2, "same|q4|int8v4", START,
       "Codec of blocks in Redis, as [nvme] codec is on NVMe, for the same blocks: same, q4 or "
       "int8v4. It is of this node's writes; a block that Redis has already stays as it is. Set it "
       "when all nodes have a kvtierd that knows this option: to an older one such a block is a "
       "miss, as it is where [codec] allow forbids it.")
CONFIG(redis, secret_file, PATH, "", 0, 255, "path", START,
       "File with the secret that keys of blocks are made from: 32 to 512 bytes, the same on all "
       "nodes that share blocks (head -c 32 /dev/urandom). Only its owner and group may have "
       "access to it. Blocks that were stored under another secret are not found again. If empty, "
       "each node has its own secret in state_dir and finds no block of another node.")
CONFIG(redis, seal_files, PATHS, "", 0, 511, "paths", RELOAD,
       "One or two files with secrets as that of secret_file, ':' between them. Values are written "
       "with a MAC that follows from the first, and are read if they have that of either file, so "
       "that all nodes can change to another secret while they run, and keep their blocks. If "
       "empty, the MAC follows from secret_file, which may be named here, too.")

CONFIG(codec, allow, CHOICES, "raw fp8 int8 lossless q4 int8v4", 0, 0,
       "raw|fp8|int8|lossless|q4|int8v4", START,
       "Codecs that spaces of BF16 and FP16 may have. An engine that asks for another one is "
       "refused, and the error names this key: \"raw lossless\" forbids all that is lossy. Values "
       "of other types are always kept as they are, as is a block that its codec cannot hold. "
       "Blocks that are stored already stay, and only spaces with an allowed codec find them.")
CONFIG(codec, default, ENUM, "fp8", 0, 5, "raw|fp8|int8|lossless|q4|int8v4", START,
       "Codec of spaces of BF16 and FP16 whose engine asks for none. It is one of allow. Where "
       "int8, q4 or int8v4 does not apply, since the engine does not tell heads and channels, it "
       "is fp8, or raw if fp8 is not allowed. Adapters that keep every bit by default ask for raw.")

CONFIG(device, workers, COUNT, "0", 0, 256, "threads", START,
       "Threads that move bytes between engines' pages and images. 0: one for each CPU that the "
       "process may use.")

CONFIG(gpu, devices, ENUM, "auto", 0, 2, "auto|off|required", START,
       "Whether pages in the memory of GPUs are served. auto: they are, if there is a CUDA driver "
       "and a GPU. required: kvtierd does not start without a GPU.")
CONFIG(gpu, max_ctas, COUNT, "auto", 1, 1024, "blocks|auto", START,
       "Thread blocks that a kernel of kvtierd has at most. On most GPUs a thread block takes a "
       "multiprocessor. auto: 8 where kvtierd is a client of MPS, so that the engine keeps the "
       "rest of the GPU; otherwise as many as the GPU has multiprocessors, since the kernel of a "
       "process then has the whole GPU while it runs. A load from the GPU's own memory, which "
       "waits for no wire, has twice as many.")
CONFIG(gpu, staging_bytes, BYTES, "auto", 8LL << 20, 1LL << 30, "bytes|auto", START,
       "Bytes of buffers on each GPU that is in use, and as much pinned host memory. An eighth of "
       "it is the largest copy that crosses the wire at once. auto: 32M where kvtierd is a client "
       "of MPS; otherwise 128M, since each such copy then costs the engine a time slice of the "
       "GPU.")
CONFIG(gpu, bytes, BYTES, "0", 0, 1LL << 40, "bytes|auto", START,
       "Memory of each GPU that is in use, for images. Blocks that an engine on that GPU loads "
       "from there cross no wire. Each of these blocks is also in host memory or on NVMe. 0: GPUs "
       "keep no images. auto: a quarter of the memory that is free when the first engine comes. "
       "Lossless images are not kept there. The memory is taken once, in whole slabs of [host] "
       "slab_bytes, and does not grow.")

CONFIG(hints, prefetch_lead, SECONDS, "5", 0, 3600, "s", RELOAD,
       "How long before the return that expected_back_s announced a block is brought from NVMe to "
       "memory, as far as room is free there, or blocks have it that are less likely to be used. "
       "0: a block is brought when it is asked for.")
CONFIG(hints, share_percent, COUNT, "25", 0, 75, "percent", RELOAD,
       "How much of host memory the hints of a tenant's engines may retain and pin. A hint beyond "
       "that is clipped. All tenants together keep three quarters at most.")

CONFIG(index, max_blocks, COUNT, "0", 0, 0x7fffffffLL, "blocks", START,
       "Blocks that kvtierd can know at once, in memory and on NVMe. Each takes 96 bytes at most, "
       "of memory that is touched as it is used: 23 GB for the 240 million blocks of 128 KiB that "
       "eight disks of 3.84 TB hold. When all are in use, a new block costs an old one whatever "
       "room there is, and `kvtierctl status` says so. 0: as many as the host tier could hold if "
       "each had 4 KiB, and the NVMe tier if each had 128 KiB, at most 268 million.")
CONFIG(index, max_spaces, COUNT, "16384", 16, 20000, "spaces", START,
       "Spaces (models, geometries) that are kept at once, 1.3 KiB each. When a new one needs "
       "room, the least used space that no engine has open is removed with its blocks, first from "
       "tenants beyond their guarantee. A client may have 32 spaces open. Half of "
       "max_spaces is divided among [socket] max_clients, at least one for each, so that every "
       "client can open one; the other half is for whichever client asks first. From 64 times "
       "max_clients on, each client can be sure of 32.")
CONFIG(stats, mode, MODE, "0600", 0, 0644, "octal", START,
       "Permissions of the stats page. 0640 lets the members of the group read it, with kvtierctl "
       "status, stats, top and export; 0644 everybody. It has counters, paths and the names of "
       "clients, and nothing of prompts.")
CONFIG(stats, group, STRING, "", 0, 63, "group", START,
       "Group that mode is for, by name or number; kvtierd need not be in it, since it gives the "
       "group its right by an ACL. If empty, mode is for the daemon's own group.")
#undef CONFIG
#undef SOCKET
