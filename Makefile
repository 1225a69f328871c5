# kvtier: `make` builds what can be built here, `make test` proves it, `make demo` shows it. Variables:
#   CC=gcc|clang   SAN=address,undefined|thread   BUILD=dir   V=1   PREFIX=/usr/local DESTDIR=
comma   := ,
BUILD   ?= build$(if $(SAN),-$(firstword $(subst $(comma), ,$(SAN))))
PREFIX  ?= /usr/local
Q       := $(if $(V),,@)
SAY      = @$(if $(V),:,printf '  %-7s %s\n')
VERSION := 0.1.0
export PATH := $(CURDIR)/build/bin:$(PATH)
CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Werror
SANFLAG := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
ALLCF   := -I. -std=c11 -D_GNU_SOURCE -DKVTIER_VERSION='"$(VERSION)"' $(WARN) -fPIC -fvisibility=hidden -MMD -MP \
	   $(CFLAGS) $(SANFLAG)
ALLLD   := $(LDFLAGS) $(SANFLAG)
D_LIBS  := -linih -lcrypto -lxxhash -lnuma -ljson-c -luring -lhiredis -lssl -lpthread
C_LIBS  := -lcrypto -lpthread
T_LIBS  := -lcmocka -lm $(D_LIBS)
CF_avx2 := -mavx2 -mfma -mf16c -mbmi2
CF_avx512 := $(CF_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq

# The rooms of the tree: a source is in by lying there.
objs_of  = $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard $(1))))
D_OBJS  := $(call objs_of,$(filter-out daemon/main.c,$(wildcard kernels/*.c daemon/*/*.c tiers/*.c tiers/*/*.c tiers/*/*/*.c)) tests/lib/fault.c)
C_OBJS  := $(call objs_of,client/lib/*.c)
CTL_OBJS := $(call objs_of,client/ctl/*.c)
BENCH_OBJS := $(call objs_of,tests/bench/*.c tests/lib/lib_hostile.c tests/lib/lib_hostile_wire.c)
# A test is in by its name: its kind, then its subject.
TESTS   := $(basename $(notdir $(foreach kind,unit fault sim fuzz regr sys,$(sort $(wildcard tests/$(kind)/$(kind)_*.c)))))
WRAP     = $(addprefix -Wl$(comma)--wrap=,$(1))
LDF_fault_index  := $(call WRAP,memfd_create ftruncate fcntl getrandom calloc mmap munmap)
LDF_fault_host   := $(call WRAP,mmap mbind madvise mlock2 pthread_create pthread_join calloc)
LDF_fault_daemon := $(call WRAP,memfd_create ftruncate fcntl mmap munmap getrandom write fsync link epoll_create1 epoll_ctl \
	eventfd calloc aligned_alloc pthread_create)
LDF_fault_io     := $(call WRAP,pread pwrite fdatasync io_uring_peek_batch_cqe)
LDF_fault_nvme_back := $(LDF_fault_io)
LDF_fault_nvme_io := $(LDF_fault_io)
LDF_fault_nvme_open := $(call WRAP,fallocate)
LDF_fault_io_open := $(call WRAP,eventfd epoll_ctl calloc pthread_create pthread_join io_uring_queue_init_params \
	io_uring_get_probe_ring io_uring_submit io_uring_register_eventfd io_uring_register_files \
	io_uring_register_files_update io_uring_register_buffers_sparse io_uring_register_buffers_update_tag)
LDF_fault_client := $(call WRAP,calloc malloc free mmap munmap memfd_create ftruncate fcntl fstat eventfd epoll_create1 \
	epoll_ctl socket connect sendmsg recvmsg EVP_MD_fetch EVP_MD_CTX_new EVP_DigestInit_ex2)
SCRIPTS := $(sort $(wildcard tests/sys/sys_*.sh))

objs     = $(patsubst %,$(BUILD)/$(1)/%.o,$(2))
PROGRAMS := $(addprefix $(BUILD)/,kvtierd kvtierctl kvtier-bench libkvtier.so.0 libkvtier.a kvtier.pc)
TEST_BINS := $(addprefix $(BUILD)/tests/,$(TESTS))
all: $(PROGRAMS)
	@echo "built in $(BUILD)/: kvtierd kvtierctl kvtier-bench libkvtier.so.0 libkvtier.a"
	@echo "left out: the CUDA device (this version has the CPU device only)"

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(ALLCF) $(CF_$(notdir $*)) -c -o $@ $<

$(BUILD)/daemon.a: $(D_OBJS) Makefile
	$(Q)rm -f $@ && ar rcs $@ $(D_OBJS)

# One object with only kvtier_* visible, so that a static engine meets none of our inner names.
$(BUILD)/libkvtier.a: $(C_OBJS) Makefile
	$(SAY) AR $@
	$(Q)ld -r -o $(BUILD)/kvtier.o $(C_OBJS) && objcopy --localize-hidden $(BUILD)/kvtier.o && rm -f $@ && \
		ar rcs $@ $(BUILD)/kvtier.o

$(BUILD)/libkvtier.so.0: $(C_OBJS) client/lib/kvtier.map Makefile
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -shared -Wl,-soname,libkvtier.so.0 -Wl,--version-script=client/lib/kvtier.map $(if $(SAN),,-Wl,-z$(comma)defs) \
		-o $@ $(C_OBJS) $(C_LIBS) && ln -sf libkvtier.so.0 $(BUILD)/libkvtier.so

PC_SED   = sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' client/lib/kvtier.pc.in
$(BUILD)/kvtier.pc: client/lib/kvtier.pc.in Makefile
	$(Q)$(PC_SED) > $@

$(BUILD)/kvtierd: $(BUILD)/daemon/main.o $(BUILD)/daemon.a
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(D_LIBS)

$(BUILD)/kvtierctl: $(CTL_OBJS) $(BUILD)/daemon.a
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(D_LIBS)

$(BUILD)/kvtier-bench: $(BENCH_OBJS) $(BUILD)/daemon.a $(BUILD)/client/lib/map.o $(BUILD)/libkvtier.a
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(T_LIBS)

# --- tests ---
$(BUILD)/tests/unit_client_%: $(BUILD)/tests/unit/unit_client_%.o $(call objs,tests/lib,fake_peer fake_engine) $(C_OBJS)
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(T_LIBS)
SYS_OBJS := $(call objs,tests/lib,lib lib_disk lib_engine lib_faulty lib_hostile lib_hostile_beside lib_hostile_wire lib_io_plan lib_nvme_kill lib_raw \
	lib_redis lib_redis_cluster lib_fake_redis lib_shared lib_shared_load lib_tls)
SYS_BINS := $(addprefix $(BUILD)/tests/,$(filter sys_% regr_%,$(TESTS)) soak_ops soak_nvme_kill soak_redis soak_hostile fault_client)
$(SYS_BINS): $(SYS_OBJS) $(BUILD)/libkvtier.a $(BUILD)/daemon.a
	$(Q)$(CC) $(ALLLD) -o $@ $(filter %.o,$^) $(BUILD)/libkvtier.a $(BUILD)/daemon.a $(LDF_$(@F)) $(T_LIBS)
PLAIN_BINS := $(filter-out $(SYS_BINS) $(BUILD)/tests/unit_client_%,$(TEST_BINS))
$(PLAIN_BINS): $(BUILD)/tests/%: $(BUILD)/daemon.a $(BUILD)/client/lib/map.o
	$(Q)$(CC) $(ALLLD) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDF_$*) $(T_LIBS)
# The object of a test lies in the folder of its kind.
$(foreach t,$(TESTS) soak_ops soak_nvme_kill soak_redis soak_hostile,$(eval $(BUILD)/tests/$(t): $(BUILD)/tests/$(firstword $(subst _, ,$(t)))/$(t).o))

T_OBJS   = $(addprefix $(BUILD)/tests/,$(1)): $(call objs,tests/lib,$(2))
$(call T_OBJS,unit_nvme_log unit_nvme_start sim_nvme_crash sim_nvme_faults sim_nvme_lies sim_nvme_trace,disk_sim lib_nvme lib_trace)
$(call T_OBJS,sim_evict_trace sim_admit_trace,lib_trace)
$(call T_OBJS,unit_nvme_tier fault_nvme_back fault_nvme_bits fault_nvme_file fault_nvme_io,disk_sim lib_nvme lib_nvme_tier)
$(call T_OBJS,fault_io fault_nvme_back fault_nvme_io,lib_io_faults lib_io_plan)
$(call T_OBJS,$(filter unit_redis_conn% unit_redis_tls fault_redis_% sim_redis_conn unit_redis_tier unit_redis_bad_values unit_redis_rig,$(TESTS)),lib_redis lib_redis_cluster \
	lib_fake_redis lib_redis_tier lib_tls)

# A daemon whose disk fails as its test says.
$(BUILD)/tests/kvtierd_faulty: $(BUILD)/daemon/main.o $(call objs,tests/lib,kvtierd_faulty lib_io_faults lib_io_plan) $(BUILD)/daemon.a
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(LDF_fault_io) $(D_LIBS)
$(addprefix $(BUILD)/tests/,sys_nvme_io sys_nvme_stall sys_redis_disk regr_11_14_readonly_ends): | $(BUILD)/tests/kvtierd_faulty
tests: $(PROGRAMS) $(TEST_BINS)
check: tests			# this build alone, no installation of anything
	@BUILD=$(BUILD) bash tests/run.sh $(addprefix $(BUILD)/tests/,$(filter-out $(BESIDE),$(TESTS))) $(SCRIPTS) -- \
		$(addprefix $(BUILD)/tests/,$(BESIDE))

# Run beside the others, since it mostly waits; and not run with SAN=thread: what waits, its threads being in others, or has one.
BESIDE  := $(addprefix sys_nvme_,block budget io path stall) regr_11_14_readonly_ends fault_nvme_back $(filter sys_redis_% fault_redis_%,$(TESTS))
ONE     := $(addprefix sys_nvme_,budget io path stall) regr_11_14_readonly_ends $(addprefix sys_redis_,cluster fake refused values write) $(filter sim_% fuzz_% unit_redis_conn% unit_redis_rig,$(TESTS))
in       = $(addprefix build-address/tests/,$(1)) $(addprefix build-thread/tests/,$(filter-out $(ONE),$(1)))
# Every test once, in a plain build: the command a newcomer types.
test: deps
	$(Q)$(MAKE) --no-print-directory check
# The same tests under the sanitizers, and everything compiled by clang.
test-all: deps
	$(Q)$(MAKE) --no-print-directory tests SAN=address,undefined
	$(Q)$(MAKE) --no-print-directory tests SAN=thread
	$(Q)if command -v clang >/dev/null; then $(MAKE) --no-print-directory tests CC=clang BUILD=build-clang; \
		else echo "clang is not installed: not compiled with it"; fi
	@bash tests/run.sh $(call in,$(filter-out $(BESIDE),$(TESTS))) -- $(call in,$(BESIDE))

# Each parser under libFuzzer for FUZZ_SECONDS; finds go to build-fuzz/. Not part of `make test`, where the same targets run
# a bounded number of seeded mutations.
FUZZ    := $(filter fuzz_%,$(TESTS))
FUZZ_SECONDS ?= 60
fuzz: deps
	@printf 'int LLVMFuzzerTestOneInput(void);int LLVMFuzzerTestOneInput(void){return 0;}' | clang -fsanitize=fuzzer -xc - -o /dev/null \
		2>/dev/null || { echo "clang has no libFuzzer here: apt-get install libclang-rt-14-dev (or clang's version)"; exit 1; }
	$(Q)$(MAKE) --no-print-directory CC=clang BUILD=build-fuzz SAN=address,undefined,fuzzer-no-link build-fuzz/daemon.a \
		build-fuzz/client/lib/map.o
	@set -e; for f in $(FUZZ); do mkdir -p build-fuzz/corpus/$$f; for b in 0 1 2 3 4 5 6 7; do \
		{ printf "\\$$b"; head -c 12288 /dev/zero; } > build-fuzz/corpus/$$f/pages$$b; done; echo "== $$f, $(FUZZ_SECONDS) s"; \
		clang -std=c11 -D_GNU_SOURCE -DKVTIER_LIBFUZZER -g -O1 -fsanitize=address,undefined,fuzzer -o build-fuzz/$$f \
			-I. tests/fuzz/$$f.c build-fuzz/daemon.a $(T_LIBS); \
		build-fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -print_final_stats=1 -artifact_prefix=build-fuzz/ \
			build-fuzz/corpus/$$f 2>&1 | tail -n 12; done

# 10 M ops, 64 clients, 1,000 connections: no growth. 10,000 kill -9 with an NVMe tier: nothing lost. Ten minutes with a Redis
# that is stopped: no growth. Ten minutes beside a hostile client: no wrong byte. Under an hour.
SOAK    := $(addprefix $(BUILD)/tests/soak_,ops nvme_kill redis hostile)
soak: all $(SOAK)
	set -e; for s in $(SOAK); do $$s; done

demo: deps all
	@bash client/examples/demo.sh

bench: all
	$(BUILD)/kvtier-bench

# redis-tools has all of the server but its name: the package redis-server would start one on this machine.
PACKAGES := gcc libc6-dev make pkg-config libinih-dev libssl-dev libxxhash-dev libnuma-dev libjson-c-dev libcmocka-dev liburing-dev \
	    python3-venv systemd clang util-linux libhiredis-dev redis-tools openssl
deps:
	@command -v dpkg-query >/dev/null || { echo "not a Debian system; kvtier needs: $(PACKAGES)"; exit 0; }; \
	missing=""; for p in $(PACKAGES); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing:$$missing"; sudo=""; [ $$(id -u) = 0 ] || sudo=sudo; $$sudo apt-get update -q && \
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing || exit 1; fi; \
	command -v redis-server >/dev/null || { mkdir -p build/bin && ln -sf "$$(command -v redis-check-rdb)" build/bin/redis-server; }

SOURCES := $(wildcard $(foreach room,client daemon kernels tiers tests,$(room)/*.[ch] $(room)/*/*.[ch] $(room)/*/*/*.[ch]))
# daemon/base uses nobody; kernels and tiers use it and no other room of daemon/ or client/; libkvtier uses nothing of the daemon.
lint:
	@! grep -nE '#include "(daemon|tiers|kernels|client|tests)/' daemon/base/*.[ch]
	@! grep -nE '#include "(daemon/[^b]|client/|tests/)' $(filter tiers/%,$(SOURCES)) /dev/null
	@! grep -nE '#include "(daemon|tiers|client|tests)/' kernels/*.[ch]
	@! grep -nE '#include "(daemon|tiers|kernels|tests)/' client/*.h client/lib/*.[ch]
	@! LC_ALL=C.UTF-8 grep -nP '^.{121,}' $(SOURCES) /dev/null
	@! wc -l $(SOURCES) | awk '$$1 > 600 && $$2 != "total" { print $$2 ": more than 600 lines"; n++ } END { exit !n }'
	cppcheck --quiet --enable=warning,portability --inline-suppr --suppress=arrayIndexOutOfBoundsCond:daemon/base/loop.c \
		--error-exitcode=1 -D_GNU_SOURCE -I. client daemon kernels tiers

# Where the Python that runs this looks: below /usr python3, below /usr/local python3.N.
PYDIR   := lib/$(if $(filter /usr,$(PREFIX)),python3,$(shell python3 -c 'import sys; print("python3.%d" % sys.version_info[1])'))/dist-packages/kvtier
install: all
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin lib/pkgconfig include lib/systemd/system share/man/man1 share/man/man3 \
		share/man/man8 $(PYDIR))
	install $(BUILD)/kvtierd $(BUILD)/kvtierctl $(BUILD)/kvtier-bench $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(BUILD)/libkvtier.so.0 $(BUILD)/libkvtier.a $(DESTDIR)$(PREFIX)/lib
	ln -sf libkvtier.so.0 $(DESTDIR)$(PREFIX)/lib/libkvtier.so
	install -m 644 client/kvtier.h $(DESTDIR)$(PREFIX)/include
	$(PC_SED) > $(DESTDIR)$(PREFIX)/lib/pkgconfig/kvtier.pc
	install -m 644 client/man/kvtierctl.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 client/man/kvtier.3 $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 644 daemon/kvtierd.8 $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 644 client/python/kvtier/*.py $(DESTDIR)$(PREFIX)/$(PYDIR)
	sed 's|^ExecStart=/usr/local/bin/|ExecStart=$(PREFIX)/bin/|' systemd/kvtierd.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/kvtierd.service

clean:
	rm -rf build build-address build-thread build-clang build-fuzz
.PHONY: all tests check test test-all demo fuzz soak bench deps lint install clean
.SECONDARY:
-include $(wildcard $(BUILD)/*/*.d $(BUILD)/*/*/*.d $(BUILD)/*/*/*/*.d)
