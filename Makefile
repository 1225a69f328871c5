# kvtier: `make` builds what can be built here, `make test` proves it, `make demo` shows it. Variables:
#   CC=gcc|clang   SAN=address,undefined|thread   BUILD=dir   V=1   PREFIX=/usr/local DESTDIR=
comma   := ,
BUILD   ?= build$(if $(SAN),-$(firstword $(subst $(comma), ,$(SAN))))
PREFIX  ?= /usr/local
Q       := $(if $(V),,@)
SAY      = @$(if $(V),:,printf '  %-7s %s\n')
VERSION := 0.1.0

CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Werror
SANFLAG := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
ALLCF   := -std=c11 -D_GNU_SOURCE -DKVTIER_VERSION='"$(VERSION)"' $(WARN) -fPIC -fvisibility=hidden -MMD -MP \
	   $(CFLAGS) $(SANFLAG)
ALLLD   := $(LDFLAGS) $(SANFLAG)
D_LIBS  := -linih -lcrypto -lxxhash -lnuma -ljson-c -lpthread
C_LIBS  := -lcrypto -lpthread
T_LIBS  := -lcmocka -lm $(D_LIBS)
CF_avx2 := -mavx2 -mfma -mf16c -mbmi2
CF_avx512 := $(CF_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq

KERNELS := image ref avx2 avx512 select walk
DAEMON  := block config config_derive config_print config_value conn ctl ctl_commands device device_cpu evict index json layout \
	   lease log loop mount mover notify op place proto request ring server space stats
TIERS   := tier host host_memory host_limits fault
CLIENT  := arena check client error keys map op ring session socket space staged submit
CTL     := kvtierctl kvtierctl_admin kvtierctl_stats kvtierctl_status kvtierctl_text
BENCH   := bench_main bench_codec bench_lookup bench_io
TESTS   := unit_image unit_codec_exact unit_codec_pages unit_codec_error unit_codec_race unit_index unit_map unit_map_race \
	   unit_block unit_tier unit_host unit_host_memory unit_place unit_mover unit_config unit_stats unit_ctl unit_notify \
	   unit_kvtierctl unit_client_arena unit_client_keys unit_client_check unit_client_staged unit_client_liar \
	   unit_client_ops unit_client_lost fault_index fault_host sim_evict sim_evict_trace sim_block sim_place fuzz_config \
	   sys_store_load
LDF_fault_host := -Wl,--wrap=memfd_create,--wrap=ftruncate,--wrap=fcntl,--wrap=mmap,--wrap=mbind,--wrap=madvise \
	   -Wl,--wrap=mlock2,--wrap=pthread_create,--wrap=pthread_join,--wrap=calloc
LDF_fault_index := -Wl,--wrap=memfd_create,--wrap=ftruncate,--wrap=fcntl,--wrap=getrandom,--wrap=calloc,--wrap=mmap,--wrap=munmap
SCRIPTS := tests/sys_service.sh tests/sys_python_binding.sh tests/sys_llama_layout.sh tests/sys_llama_prefix.sh

objs     = $(patsubst %,$(BUILD)/$(1)/%.o,$(2))
D_OBJS  := $(call objs,kernels,$(KERNELS)) $(call objs,daemon,$(DAEMON)) $(call objs,tiers,$(TIERS))
C_OBJS  := $(call objs,client,$(CLIENT))
PROGRAMS := $(addprefix $(BUILD)/,kvtierd kvtierctl kvtier-bench libkvtier.so.0 libkvtier.a kvtier.pc)
TEST_BINS := $(addprefix $(BUILD)/tests/,$(TESTS))

all: $(PROGRAMS)
	@echo "built in $(BUILD)/: kvtierd kvtierctl kvtier-bench libkvtier.so.0 libkvtier.a"
	@echo "left out: the CUDA device (this version has the CPU device only), NVMe and Redis tiers (not written yet)"

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(ALLCF) $(CF_$(notdir $*)) -c -o $@ $<

$(BUILD)/daemon.a: $(D_OBJS) Makefile
	$(Q)rm -f $@ && ar rcs $@ $(D_OBJS)

# One object with only kvtier_* visible, so that a static engine meets none of our inner names.
$(BUILD)/libkvtier.a: $(C_OBJS)
	$(SAY) AR $@
	$(Q)ld -r -o $(BUILD)/kvtier.o $^ && objcopy --localize-hidden $(BUILD)/kvtier.o && rm -f $@ && \
		ar rcs $@ $(BUILD)/kvtier.o

$(BUILD)/libkvtier.so.0: $(C_OBJS) client/kvtier.map
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -shared -Wl,-soname,libkvtier.so.0 -Wl,--version-script=client/kvtier.map $(if $(SAN),,-Wl,-z$(comma)defs) \
		-o $@ $(C_OBJS) $(C_LIBS) && ln -sf libkvtier.so.0 $(BUILD)/libkvtier.so

PC_SED   = sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' client/kvtier.pc.in
$(BUILD)/kvtier.pc: client/kvtier.pc.in Makefile
	$(Q)$(PC_SED) > $@

$(BUILD)/kvtierd: $(BUILD)/daemon/main.o $(BUILD)/daemon.a
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(D_LIBS)

$(BUILD)/kvtierctl: $(call objs,client,$(CTL)) $(call objs,daemon,stats json log)
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -o $@ $^ -ljson-c

$(BUILD)/kvtier-bench: $(call objs,tests,$(BENCH)) $(BUILD)/daemon.a $(BUILD)/client/map.o $(BUILD)/libkvtier.a
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(T_LIBS)

# --- tests ---
$(BUILD)/tests/unit_client_%: $(BUILD)/tests/unit_client_%.o $(call objs,tests,fake_peer fake_engine) $(C_OBJS)
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(T_LIBS)
$(BUILD)/tests/sys_%: $(BUILD)/tests/sys_%.o $(call objs,tests,lib lib_engine) $(BUILD)/libkvtier.a
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(T_LIBS)
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/daemon.a $(BUILD)/client/map.o
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(LDF_$*) $(T_LIBS)

tests: $(PROGRAMS) $(TEST_BINS)

check: tests			# this build alone, no installation of anything
	@bash tests/run.sh $(TEST_BINS) $(SCRIPTS)

# Everything that needs no GPU: plain, with each sanitizer, and compiled by clang.
test: deps
	$(Q)$(MAKE) --no-print-directory tests
	$(Q)$(MAKE) --no-print-directory tests SAN=address,undefined
	$(Q)$(MAKE) --no-print-directory tests SAN=thread
	$(Q)if command -v clang >/dev/null; then $(MAKE) --no-print-directory tests CC=clang BUILD=build-clang; \
		else echo "clang is not installed: not compiled with it"; fi
	@bash tests/run.sh $(TEST_BINS) $(TEST_BINS:build/%=build-address/%) $(TEST_BINS:build/%=build-thread/%) $(SCRIPTS)

demo: deps all
	@bash client/examples/demo.sh

bench: all
	$(BUILD)/kvtier-bench

PACKAGES := gcc make pkg-config libinih-dev libssl-dev libxxhash-dev libnuma-dev libjson-c-dev libcmocka-dev \
	    python3-venv systemd clang util-linux
deps:
	@if ! command -v dpkg-query >/dev/null; then echo "not a Debian system; kvtier needs: $(PACKAGES)"; exit 0; fi; \
	missing=""; for p in $(PACKAGES); do \
		dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	[ -z "$$missing" ] && exit 0; echo "installing:$$missing"; \
	sudo=""; [ $$(id -u) = 0 ] || sudo=sudo; \
	$$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing

SOURCES := $(wildcard client/*.[ch] daemon/*.[ch] kernels/*.[ch] tiers/*.[ch] tests/*.[ch])
lint:
	@! LC_ALL=C.UTF-8 grep -nP '^.{121,}' $(SOURCES) /dev/null
	@! wc -l $(SOURCES) | awk '$$1 > 500 && $$2 != "total" { print $$2 ": more than 500 lines"; n++ } END { exit !n }'
	cppcheck --quiet --enable=warning,portability --inline-suppr --error-exitcode=1 -D_GNU_SOURCE client daemon kernels tiers

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
	install -m 644 client/kvtierctl.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 client/kvtier.3 $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 644 daemon/kvtierd.8 $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 644 client/python/kvtier/*.py $(DESTDIR)$(PREFIX)/$(PYDIR)
	sed 's|^ExecStart=/usr/local/bin/|ExecStart=$(PREFIX)/bin/|' systemd/kvtierd.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/kvtierd.service

clean:
	rm -rf build build-address build-thread build-clang

.PHONY: all tests check test demo bench deps lint install clean
.SECONDARY:
-include $(wildcard $(BUILD)/*/*.d)
