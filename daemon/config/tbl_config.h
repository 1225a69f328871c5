/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_config.h - every configuration key, once. config.c makes struct config, defaults, parser,
 * --help and the man page of it. No include guard: included with CONFIG() defined, which it
 * undefines.
 *
 *	CONFIG(section, key, TYPE, default, min, max, unit, prose)
 *
 * TYPE    BYTES COUNT INT US SECONDS BOOL ENUM STRING PATH PATHS ENDPOINTS HOSTS MODE; config.h has
 *	   the values that each accepts
 * default as written in a file; it goes through the same parser
 * min,max of the value; for STRING, PATH, PATHS, ENDPOINTS and HOSTS of the length in bytes
 * unit    for people; for ENUM the choices, a|b|c, whose positions are the values
 */
CONFIG(daemon, runtime_dir, PATH, "", 0, 255, "directory",
       "Directory of the sockets and the stats page. Empty: $RUNTIME_DIRECTORY (systemd), else "
       "/run/kvtier for root, else $XDG_RUNTIME_DIR/kvtier, else /tmp/kvtier-UID.")
CONFIG(daemon, state_dir, PATH, "", 0, 255, "directory",
       "Directory for what must outlive the daemon: the tenants' secrets, and the store of an NVMe "
       "tier without a path. Empty: $STATE_DIRECTORY (systemd), else /var/lib/kvtier for root, "
       "else $XDG_STATE_HOME/kvtier, else ~/.local/state/kvtier.")
CONFIG(daemon, log_level, ENUM, "info", 0, 3, "error|warning|info|debug",
       "The least urgent messages that are written to standard error. debug writes each step of "
       "each op.")
CONFIG(daemon, spin_us, US, "-1", -1, 1000000, "us",
       "How long the core thread looks for new ops before it sleeps. A longer time makes an op's "
       "start quicker and takes a CPU. -1: 50, or 0 where the process may use two CPUs at most, "
       "since engine and workers need them.")

CONFIG(socket, path, PATH, "", 0, 107, "path",
       "Socket that engines connect to. Empty: kvtier.sock in runtime_dir.")
CONFIG(socket, mode, MODE, "0600", 0, 0777, "octal",
       "Permissions of that socket. A user who may write to the socket may connect.")
CONFIG(socket, group, STRING, "", 0, 63, "group",
       "Group of that socket, by name or number. With mode 0660 its members may connect. Empty: "
       "the daemon's own group.")
CONFIG(socket, tenant, STRING, "default", 1, 31, "name",
       "Tenant of every client that connects to this socket. Blocks are never shared between "
       "tenants.")
CONFIG(socket, max_clients, COUNT, "256", 1, 4096, "clients",
       "Connections at once. A further one is refused and counted. From 4 on, the last one is "
       "kept for root and the daemon's own user.")
CONFIG(socket, max_clients_per_uid, COUNT, "0", 0, 4096, "clients",
       "Connections of one user at once, so that other users can connect. One process may have as "
       "many as are left for the user's others: half, where it is alone. 0: three quarters of "
       "max_clients.")
CONFIG(socket, ring_entries, COUNT, "256", 8, 1024, "entries",
       "Ops that a connection may have outstanding; a power of two. libkvtier asks for 256 at "
       "most. There are 65536 divided by max_clients at most, so that no client takes another's.")
CONFIG(socket, arena_blocks, COUNT, "16384", 64, 65536, "blocks",
       "Blocks in all outstanding ops of a connection together; a power of two. Each takes 76 "
       "bytes, touched as used.")

CONFIG(admin, path, PATH, "", 0, 107, "path",
       "Socket that kvtierctl asks. Empty: admin.sock in runtime_dir. Only root and the daemon's "
       "own user are answered, whatever the mode.")
CONFIG(admin, mode, MODE, "0600", 0, 0777, "octal", "Permissions of the admin socket.")

CONFIG(host, bytes, NODES, "1G", 64LL << 10, 64LL << 40, "bytes|auto",
       "Memory for blocks, reserved and touched at start. The default is for a trial: give what "
       "the engines leave. 0:8G,1:4G: so much of each of these NUMA nodes, and of no other one. "
       "Without nodes it is spread over the nodes of this machine's GPUs, for each GPU as much; "
       "where there is no GPU, or its node is not known, over all nodes that the process may use. "
       "auto: a quarter of what the machine has available, spread likewise. A GPU's blocks take "
       "slots on its own node while some are free there.")
CONFIG(host, slab_bytes, BYTES, "64M", 64LL << 10, 1LL << 30, "bytes",
       "Memory goes to blocks of one size in slabs of so many bytes, and no block can be larger "
       "than a slab. A multiple of 4096; with huge_pages = 2m a multiple of 2M. Not given: no "
       "more than bytes.")
CONFIG(host, huge_pages, ENUM, "thp", 0, 2, "no|thp|2m",
       "no: pages of 4 KiB. thp: transparent huge pages, where the kernel has some. 2m: reserved "
       "huge pages (sysctl vm.nr_hugepages); kvtierd does not start without enough of them.")
CONFIG(host, lock, BOOL, "no", 0, 1, "yes|no",
       "Whether the memory is kept from being swapped out. This needs a memlock limit (ulimit -l, "
       "LimitMEMLOCK=) of bytes or more.")
CONFIG(host, pin, BOOL, "yes", 0, 1, "yes|no",
       "Whether the memory is registered with the CUDA driver, in the background, while GPUs are "
       "in use. The GPUs' copy engines then reach it directly; what is not registered is copied "
       "twice. kvtierctl status says where the driver refuses (a cgroup's or container's memory "
       "limit, the IOMMU).")
CONFIG(host, pin_bytes, BYTES, "64M", 64LL << 10, 1LL << 30, "bytes",
       "Memory that one call registers at most, at least a slab. A driver may keep its other calls "
       "waiting meanwhile.")
CONFIG(host, verify, ENUM, "once", 0, 1, "once|always",
       "When a block's checksum is compared. once: when the block has come from NVMe or Redis. "
       "always: before each load, too.")
CONFIG(host, prefault_threads, COUNT, "0", 0, 256, "threads",
       "Threads that touch the memory at start. 0: one per CPU, at most 8.")

CONFIG(nvme, path, PATHS, "", 0, 1023, "paths",
       "Stores on disk: files or whole block devices, one for each disk, with ':' between them or "
       "a line for each. A file that is absent is made. A file or device that is no store of "
       "kvtier's is left alone; kvtierctl format PATH makes it one. Blocks are spread over the "
       "stores by key. Empty: nvme.store in state_dir.")
CONFIG(nvme, bytes, BYTES, "8G", 0, 64LL << 40, "bytes",
       "Size of each store; 0: no NVMe tier. A block device may be larger. The default is for a "
       "trial: give most of the disk.")
CONFIG(nvme, segment_bytes, BYTES, "64M", 64LL << 10, 256LL << 20, "bytes",
       "A store takes space back a segment at a time. This is the size of a segment when a store "
       "is made: a multiple of 4096, best 64M to 256M. bytes must have room for 4. Not given: "
       "smaller if bytes is small, larger if bytes is large.")
CONFIG(nvme, queue_depth, COUNT, "32", 1, 256, "reads", "Reads that a disk has at once.")
CONFIG(nvme, write_depth, COUNT, "16", 1, 256, "writes",
       "Writes that a disk has at once. Reads go first.")
CONFIG(nvme, write_budget_bytes_per_day, BYTES, "0", 0, 64LL << 40, "bytes",
       "Bytes that may be written to all stores together in a day, to spare the disks; 0: no "
       "limit. When they are used up, new blocks are kept in memory only.")
CONFIG(nvme, io, ENUM, "auto", 0, 2, "auto|io_uring|threads",
       "auto: io_uring; where the kernel or a container refuses that, a pool of threads. "
       "kvtierctl status says which.")
CONFIG(nvme, stall_us, US, "5s", 10000, 600000000, "us",
       "When a read or write takes longer, its disk is offline until the disk answers again.")
CONFIG(nvme, drain_us, US, "10s", 0, 600000000, "us",
       "How long a clean stop may write blocks that only memory has. What a disk has in its hands "
       "then may take stall_us more. TimeoutStopSec= of systemd must be longer than both together.")

CONFIG(redis, endpoints, ENDPOINTS, "", 0, 4095, "endpoints",
       "Endpoints that nodes share, each a Redis or a Valkey: host:port, [v6]:port or unix:/path, "
       "with blanks between them or a line for each. The port is 6379 if left out. Several "
       "endpoints that are no Cluster share the blocks by key: spell them alike on all nodes. Of "
       "a Cluster some endpoints are enough. Empty: no Redis tier.")
CONFIG(redis, cluster, ENUM, "auto", 0, 2, "auto|yes|no",
       "Whether the endpoints are a Cluster. auto: as the first endpoint that answers says.")
CONFIG(redis, cluster_hosts, HOSTS, "", 0, 2047, "hosts",
       "Hosts that a Cluster's slot map may name, besides those of endpoints: names, .domain for "
       "all names below it, addresses, networks such as 10.0.0.0/8; with blanks between them or a "
       "line for each. kvtierd connects to no other host and shows no other host the password. "
       "Empty: the networks of the endpoints' addresses (/24, of IPv6 /64; of a loopback address "
       "itself alone).")
CONFIG(redis, username, STRING, "", 0, 63, "name",
       "ACL user to log in as; needs password_file. Empty: the default user.")
CONFIG(redis, password_file, PATH, "", 0, 255, "path",
       "File whose first line is the password, at most 511 bytes. Only its owner and group may "
       "have access to it; systemd's LoadCredential= makes such a file. Read once, at start. "
       "Empty: no password.")
CONFIG(redis, tls, BOOL, "no", 0, 1, "yes|no",
       "TLS (1.2 or later) to all host:port endpoints and to the rest of their Cluster. Their "
       "certificates are verified. Connections through unix:/path are never encrypted.")
CONFIG(redis, tls_ca_file, PATH, "", 0, 255, "path",
       "PEM file with the certificates of the authorities that may sign an endpoint's "
       "certificate. Empty: the authorities that the system trusts. This file and the next two are "
       "read once, at start.")
CONFIG(redis, tls_cert_file, PATH, "", 0, 255, "path",
       "PEM file with this node's certificate and its chain. Redis asks for one unless its "
       "tls-auth-clients is no. Empty: none.")
CONFIG(redis, tls_key_file, PATH, "", 0, 255, "path",
       "PEM file with the private key of tls_cert_file, without a passphrase. Access as for "
       "password_file.")
CONFIG(redis, tls_name, STRING, "", 0, 63, "name",
       "Name or IP address that an endpoint's certificate must have. Empty: the host of the "
       "endpoint, or the name that a Cluster gives the endpoint. *: any certificate that the "
       "authorities of tls_ca_file signed.")
CONFIG(redis, key_prefix, STRING, "kvtier:", 0, 63, "text",
       "A value's name in Redis begins with this; tenant and key follow. So an ACL can allow "
       "~kvtier:* and nothing else. Printable, no blanks.")
CONFIG(redis, ttl, SECONDS, "0", 0, 315360000, "s",
       "How long Redis keeps a block after it was written. 0: until Redis evicts it by its "
       "maxmemory-policy.")
CONFIG(redis, connections, COUNT, "4", 1, 64, "connections", "Connections to each endpoint.")
CONFIG(redis, timeout_ms, COUNT, "1000", 10, 60000, "ms",
       "How long an answer may take, and connecting. A block that takes longer is a miss.")
CONFIG(redis, write, ENUM, "through", 0, 2, "through|on-evict|off",
       "When blocks are written to Redis. through: once they are stored; the engine does not wait "
       "for it. on-evict: when they leave this node's memory. off: never, they are only read.")
CONFIG(redis, max_inflight_bytes, BYTES, "64M", 1LL << 20, 64LL << 30, "bytes",
       "Memory of blocks that are on their way to Redis or wait for that. When it is used up, the "
       "oldest that wait are dropped.")
CONFIG(redis, drain_us, US, "2s", 0, 600000000, "us",
       "How long a clean stop may write blocks that still wait for Redis; [nvme] drain_us runs at "
       "the same time. TimeoutStopSec= of systemd must be longer.")
CONFIG(redis, secret_file, PATH, "", 0, 255, "path",
       "File with the secret that keys of blocks are made from: 32 to 512 bytes, the same on all "
       "nodes that share blocks (head -c 32 /dev/urandom). Access as for password_file. Blocks "
       "that were stored under another secret are not found again. Empty: each node has its own "
       "secret in state_dir and finds no block of another node.")

CONFIG(device, workers, COUNT, "0", 0, 256, "threads",
       "Threads that move bytes between engines' pages and images. 0: one for each CPU that the "
       "process may use.")
CONFIG(device, depth, COUNT, "64", 1, 4096, "jobs",
       "Blocks that the workers have at once; further ones wait for their client's turn.")
CONFIG(device, kernels, ENUM, "auto", 0, 3, "auto|ref|avx2|avx512",
       "Implementation of the codec. auto: the fastest that the CPU can run. All give the same "
       "bytes; ref is plain C and slow.")

CONFIG(gpu, devices, ENUM, "auto", 0, 2, "auto|off|required",
       "Whether pages in the memory of GPUs are served. auto: if there is a CUDA driver and a "
       "GPU. required: kvtierd does not start without one.")
CONFIG(gpu, max_ctas, COUNT, "auto", 1, 1024, "blocks|auto",
       "Thread blocks that a kernel of kvtierd has at most. On most GPUs a thread block takes a "
       "multiprocessor. auto: 8 where kvtierd is a client of MPS, and in engine mode, so that the "
       "engine keeps the rest of the GPU; else as many as the GPU has multiprocessors, since a "
       "kernel of another process has the whole GPU for itself while it runs. Twice as many for a "
       "load from the GPU's own memory, which waits for no wire.")
CONFIG(gpu, staging_bytes, BYTES, "auto", 8LL << 20, 1LL << 30, "bytes|auto",
       "Buffers on each GPU that is in use, and as much pinned host memory. An eighth of it is "
       "the largest copy that crosses the wire at once. auto: 32M where kvtierd is a client of "
       "MPS, else 128M, since each such copy then costs the engine a turn on the GPU.")
CONFIG(gpu, bytes, BYTES, "0", 0, 1LL << 40, "bytes|auto",
       "Memory of each GPU that is in use, for images. What an engine on that GPU loads from there "
       "crosses no wire. Each of these blocks is in host memory or on NVMe, too. 0: none. auto: a "
       "quarter of what is free when the first engine comes. The memory is taken once, in whole "
       "slabs of [host] slab_bytes, and does not grow.")

CONFIG(gpu, mode, ENUM, "daemon", 0, 1, "daemon|engine",
       "Whose kernels encode and decode the pages of clients that do not choose "
       "(options.gpu_mode). daemon: those of kvtierd. engine: libkvtier launches them in the "
       "engine's own context, into memory that kvtierd lends it, and kvtierd does nothing but "
       "copies; so nothing takes turns on a GPU without MPS. A client that cannot do that is "
       "served as with daemon: `kvtierctl clients` says why.")
CONFIG(gpu, engine_bytes, BYTES, "256M", 2LL << 20, 1LL << 40, "bytes",
       "Memory of each GPU that clients in engine mode are lent, all together; each space takes "
       "what its client asks for (options.staging_bytes), in units of 2 MiB. A space for which "
       "too little is left is served as with mode = daemon.")

CONFIG(hints, share_percent, COUNT, "25", 0, 75, "percent",
       "Of host memory: what a tenant may retain and pin, by hints of its engines. What is more is "
       "clipped. All tenants together keep three quarters at most.")
CONFIG(hints, max_ttl, SECONDS, "86400", 1, 31536000, "s",
       "A ttl of a hint is at most so long; blocks that are retained or pinned without a ttl stay "
       "so for this time.")
CONFIG(hints, max_blocks, COUNT, "262144", 64, 16777216, "blocks",
       "Blocks that are retained, pinned, in a session or have a ttl, at once, 48 bytes each, "
       "touched as used. Of more than that a hint is clipped. A sixteenth of it is the most "
       "sessions at once.")

CONFIG(index, max_blocks, COUNT, "0", 0, 0x7fffffffLL, "blocks",
       "Blocks that kvtierd can know at once, in memory and on NVMe; each takes 96 bytes at most, "
       "touched as used. 0: as many as the host tier could hold if they were 4 KiB each, and the "
       "NVMe tier if they were 256 KiB, at most 64 million.")
CONFIG(index, max_spaces, COUNT, "16384", 16, 20000, "spaces",
       "Spaces (models, geometries) that are kept at once, 1.3 KiB each. When a new one needs "
       "room, the least used space that no engine has open goes with its blocks; spaces of a "
       "tenant with more than an equal share go first. A client may have 32 open. Half of "
       "max_spaces is divided among [socket] max_clients, at least one for each, so that nobody "
       "is shut out; the other half goes to whichever client asks first. From 64 times "
       "max_clients on each can be sure of 32.")
#undef CONFIG
