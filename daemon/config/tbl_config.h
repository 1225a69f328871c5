/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_config.h - every configuration key, once. config.c makes struct config, defaults, parser,
 * --help and the man page of it. No include guard: included with CONFIG() defined, which it
 * undefines.
 *
 *	CONFIG(section, key, TYPE, default, min, max, unit, prose)
 *
 * TYPE    BYTES COUNT INT US SECONDS BOOL ENUM STRING PATH PATHS ENDPOINTS HOSTS MODE; what each
 *	   accepts: config.h
 * default as written in a file; it goes through the same parser
 * min,max of the value; for STRING, PATH, PATHS, ENDPOINTS and HOSTS of the length in bytes
 * unit    for people; for ENUM the choices, a|b|c, whose positions are the values
 */
CONFIG(daemon, runtime_dir, PATH, "", 0, 255, "directory",
       "Sockets and the stats page. Empty: $RUNTIME_DIRECTORY (systemd), else /run/kvtier for root,"
       " else $XDG_RUNTIME_DIR/kvtier, else /tmp/kvtier-UID.")
CONFIG(daemon, state_dir, PATH, "", 0, 255, "directory",
       "What must outlive the daemon, such as tenant secrets. Empty: $STATE_DIRECTORY (systemd), "
       "else /var/lib/kvtier for root, else $XDG_STATE_HOME/kvtier, else ~/.local/state/kvtier.")
CONFIG(daemon, log_level, ENUM, "info", 0, 3, "error|warning|info|debug",
       "Least urgent messages that are still written to standard error.")
CONFIG(daemon, spin_us, US, "-1", -1, 1000000, "us",
       "How long the core thread looks at the rings before it sleeps. More is quicker to react and "
       "takes a CPU. -1: 0 on two CPUs or fewer, else 50.")

CONFIG(socket, path, PATH, "", 0, 107, "path",
       "Where engines connect. Empty: kvtier.sock in runtime_dir.")
CONFIG(socket, mode, MODE, "0600", 0, 0777, "octal",
       "Permissions of that socket: who may connect is who may write it.")
CONFIG(socket, group, STRING, "", 0, 63, "group",
       "Group that the socket is given to, by name or number; useful with mode 0660. Empty: "
       "unchanged.")
CONFIG(socket, tenant, STRING, "default", 1, 31, "name",
       "Tenant of everybody who connects here. Blocks are never shared between tenants.")
CONFIG(socket, max_clients, COUNT, "256", 1, 4096, "clients",
       "Connections at once; one more is refused and counted. The last is kept for root and the "
       "daemon's own user.")
CONFIG(socket, max_clients_per_uid, COUNT, "0", 0, 4096, "clients",
       "Connections of one user at once, so that others find one. 0: three quarters of "
       "max_clients.")
CONFIG(socket, ring_entries, COUNT, "256", 8, 1024, "entries",
       "Submissions a client may have on its way; a power of two.")
CONFIG(socket, arena_blocks, COUNT, "16384", 64, 65536, "blocks",
       "Blocks in all outstanding ops of a client; a power of two. 76 bytes each, touched as used.")
CONFIG(socket, max_ops, COUNT, "4096", 16, 65536, "ops", "Outstanding ops of all clients together.")

CONFIG(admin, path, PATH, "", 0, 107, "path",
       "Where kvtierctl asks. Empty: admin.sock in runtime_dir. Only root and the daemon's own "
       "user are answered, whatever the mode.")
CONFIG(admin, mode, MODE, "0600", 0, 0777, "octal", "Permissions of the admin socket.")

CONFIG(host, bytes, BYTES, "1G", 64LL << 10, 64LL << 40, "bytes",
       "Memory for blocks, reserved and touched at start.")
CONFIG(host, slab_bytes, BYTES, "64M", 64LL << 10, 1LL << 30, "bytes",
       "Unit in which memory goes to a block size, and the largest block that can be kept; a "
       "multiple of 4096, with huge_pages = 2m of 2M. Not given and more than bytes: bytes.")
CONFIG(host, huge_pages, ENUM, "thp", 0, 2, "no|thp|2m",
       "no: 4 KiB pages. thp: ask for transparent huge pages. 2m: take reserved ones (sysctl "
       "vm.nr_hugepages), or refuse to start.")
CONFIG(host, numa_node, INT, "-1", -1, 1023, "node",
       "NUMA node that the memory comes from; -1: spread over all nodes allowed.")
CONFIG(host, lock, BOOL, "no", 0, 1, "yes|no",
       "Keep the memory from being swapped out; needs a memlock limit (ulimit -l, LimitMEMLOCK=) "
       "of bytes.")
CONFIG(host, pin, BOOL, "yes", 0, 1, "yes|no",
       "Register the memory with the CUDA driver while GPUs are in use, in the background, so that "
       "their copy engines reach it. What is not registered is copied twice. Where the driver "
       "refuses (memlock limit, container) kvtierctl status says so.")
CONFIG(host, pin_bytes, BYTES, "64M", 64LL << 10, 1LL << 30, "bytes",
       "Most that one call registers; at least a slab. A driver may keep other calls waiting "
       "meanwhile.")
CONFIG(host, verify, ENUM, "once", 0, 1, "once|always",
       "once: checksums are compared when an image arrives from a medium. always: before each load "
       "too.")
CONFIG(host, prefault_threads, COUNT, "0", 0, 256, "threads",
       "Threads that touch the memory at start. 0: one per CPU, at most 8.")

CONFIG(nvme, path, PATHS, "", 0, 1023, "paths",
       "Stores on disk: files or whole block devices, one for each disk, ':' between them or a "
       "line for each. A file is made where there is none; what is there and is no store of "
       "kvtier's is left alone (kvtierctl format PATH makes one of it). Blocks are spread over "
       "them by key. Empty: nvme.store in state_dir.")
CONFIG(nvme, bytes, BYTES, "8G", 0, 64LL << 40, "bytes",
       "Of each path; 0: no NVMe tier. A block device may be larger.")
CONFIG(nvme, segment_bytes, BYTES, "64M", 64LL << 10, 256LL << 20, "bytes",
       "Unit in which space is taken back, of a store that is made; a multiple of 4096, best 64M "
       "to 256M. bytes must have room for 4. Not given: smaller where bytes is small, larger where "
       "it is large.")
CONFIG(nvme, queue_depth, COUNT, "32", 1, 256, "reads", "Reads in one disk at once.")
CONFIG(nvme, write_depth, COUNT, "16", 1, 256, "writes",
       "Writes in one disk at once; reads go first.")
CONFIG(nvme, write_budget_bytes_per_day, BYTES, "0", 0, 64LL << 40, "bytes",
       "Most that is written to all paths together in a day, to spare the disks; 0: no limit. When "
       "it is used up, blocks are kept in memory only.")
CONFIG(nvme, io, ENUM, "auto", 0, 2, "auto|io_uring|threads",
       "How: auto is io_uring, or where that is refused (containers) a pool of threads; kvtierctl "
       "status says which.")
CONFIG(nvme, stall_us, US, "5s", 10000, 600000000, "us",
       "A read or write that takes longer makes its disk offline until it answers again.")
CONFIG(nvme, drain_us, US, "10s", 0, 600000000, "us",
       "How long a clean stop may take to write what is in memory only; what a disk has in its "
       "hands then may take stall_us more. systemd's TimeoutStopSec must be more than both.")

CONFIG(redis, endpoints, ENDPOINTS, "", 0, 4095, "endpoints",
       "Redis or Valkey that nodes share, each an endpoint: host:port, [v6]:port or unix:/path, "
       "blanks between or a line for each; port 6379 if left out. Several that are no Cluster "
       "share the blocks by key: spell them alike on all nodes. Of a Cluster some endpoints are "
       "enough. Empty: no Redis tier.")
CONFIG(redis, cluster, ENUM, "auto", 0, 2, "auto|yes|no",
       "Whether they are a Cluster. auto: as the first that answers says.")
CONFIG(redis, cluster_hosts, HOSTS, "", 0, 2047, "hosts",
       "Which hosts a Cluster's slot map may name, beside those of endpoints: names, .domain for "
       "all names below it, addresses, networks such as 10.0.0.0/8; blanks between or a line for "
       "each. No other is connected to, nor shown the password. Empty: the networks of the "
       "endpoints' own addresses (/24, of IPv6 /64; of loopback that address).")
CONFIG(redis, username, STRING, "", 0, 63, "name",
       "User of its ACL, goes with password_file. Empty: the default user.")
CONFIG(redis, password_file, PATH, "", 0, 255, "path",
       "File whose first line is the password, at most 511 bytes; it may be one of systemd's "
       "LoadCredential=. Others than owner and group must have no access to it. Read once, at "
       "start. Empty: no password.")
CONFIG(redis, tls, BOOL, "no", 0, 1, "yes|no",
       "TLS (1.2 or later) to all host:port endpoints and the rest of their Cluster; what goes "
       "through unix:/path is never encrypted. Servers are verified.")
CONFIG(redis, tls_ca_file, PATH, "", 0, 255, "path",
       "PEM file with the certificates of the authorities that may have signed a server's. Empty: "
       "those the system trusts. This and the next two are read once, at start.")
CONFIG(redis, tls_cert_file, PATH, "", 0, 255, "path",
       "PEM file with this node's certificate and its chain; Redis asks for one unless "
       "tls-auth-clients is no. Empty: none.")
CONFIG(redis, tls_key_file, PATH, "", 0, 255, "path",
       "PEM file with its private key, without passphrase. Access as for password_file.")
CONFIG(redis, tls_name, STRING, "", 0, 63, "name",
       "Name or IP address that servers' certificates must have. Empty: the host of the endpoint, "
       "or what a Cluster calls its endpoint. *: any that tls_ca_file's authorities signed.")
CONFIG(redis, key_prefix, STRING, "kvtier:", 0, 63, "text",
       "Before tenant and key in each value's name; an ACL can allow ~kvtier:* and nothing else. "
       "Printable, no blanks.")
CONFIG(redis, ttl, SECONDS, "0", 0, 315360000, "s",
       "How long Redis keeps a block after it was written. 0: until it evicts it, by its "
       "maxmemory-policy.")
CONFIG(redis, connections, COUNT, "4", 1, 64, "connections", "To each endpoint.")
CONFIG(redis, timeout_ms, COUNT, "1000", 10, 60000, "ms",
       "For an answer, and for connecting. A block that takes longer is a miss.")
CONFIG(redis, write, ENUM, "through", 0, 2, "through|on-evict|off",
       "through: what engines store is written there too, behind their backs. on-evict: when it "
       "leaves this node's memory. off: read only.")
CONFIG(redis, max_inflight_bytes, BYTES, "64M", 1LL << 20, 64LL << 30, "bytes",
       "Most memory that blocks on their way there, or waiting for that, may take; then the oldest "
       "are dropped.")
CONFIG(redis, drain_us, US, "2s", 0, 600000000, "us",
       "How long a clean stop may take to write what is still queued; [nvme] drain_us runs at the "
       "same time. systemd's TimeoutStopSec must be more.")
CONFIG(redis, secret_file, PATH, "", 0, 255, "path",
       "File with the secret that nodes share, so that their keys agree: 32 to 512 bytes, the same "
       "everywhere (head -c 32 /dev/urandom). Access as for password_file. What was kept under "
       "other keys is not found again. Empty: each node has its own in state_dir, and finds "
       "nothing of another's.")

CONFIG(device, workers, COUNT, "0", 0, 256, "threads",
       "Threads that move bytes between engine pages and images. 0: one per CPU this process may "
       "use.")
CONFIG(device, depth, COUNT, "64", 1, 4096, "jobs", "Blocks in the workers' hands at once.")
CONFIG(device, kernels, ENUM, "auto", 0, 3, "auto|ref|avx2|avx512",
       "Codec implementation. All give the same bytes; ref is plain C and slow.")

CONFIG(gpu, devices, ENUM, "auto", 0, 2, "auto|off|required",
       "Whether pages in the memory of GPUs are served. auto: where there is a CUDA driver and a "
       "GPU. required: kvtierd does not start without one.")
CONFIG(gpu, max_ctas, COUNT, "16", 1, 1024, "blocks",
       "Thread blocks that a kernel of kvtierd has at most, so that the engine keeps the rest of "
       "the GPU. On most GPUs each takes a multiprocessor.")
CONFIG(gpu, staging_bytes, BYTES, "32M", 8LL << 20, 1LL << 30, "bytes",
       "Buffers on each GPU that is in use, and as much pinned host memory: an eighth is the "
       "largest copy that crosses the wire at once.")

CONFIG(gpu, bytes, BYTES, "0", 0, 1LL << 40, "bytes|auto",
       "Of the memory of each GPU that is in use, for images: what an engine on that GPU loads "
       "from there crosses no wire. Each of these blocks is in host memory or on NVMe, too. 0: "
       "none. auto: a quarter of what is free when the first engine comes. It is taken once, in "
       "whole [host] slab_bytes, and does not grow.")

CONFIG(index, max_blocks, COUNT, "0", 0, 0x7fffffffLL, "blocks",
       "Blocks that can be known at once, in memory and on NVMe; memory is taken as used. 0: as "
       "many as the host tier could hold if they were 4 KiB each, and the NVMe tier if they were "
       "256 KiB, at most 64 million.")
CONFIG(index, max_spaces, COUNT, "16384", 16, 20000, "spaces",
       "Identities (models, geometries) that are kept at once, 1.3 KiB each. When there are more, "
       "the least used one that nobody has open goes with its blocks, first those of a tenant with "
       "more than an equal share. Give more than 32 times [socket] max_clients: a client may have "
       "32 open.")
#undef CONFIG
