# kvtier: `make` builds what can be built here, `make test` proves it, `make demo` shows it.
#? make             kvtierd, kvtierctl, kvtier-bench and libkvtier, in build/
#? make demo        installs what is missing, builds, runs a real model cold and warm
#? make test        installs what is missing, builds, runs every test once
#? make check       the same without installing; TEST="unit_io sys_redis*" runs these alone
#? make test-all    the tests under the sanitizers, and everything compiled by clang
#? make soak        an hour of operations, kills, outages and a hostile client: nothing grows
#? make fuzz        each parser under libFuzzer for FUZZ_SECONDS (60)
#? make bench       build/kvtier-bench
#? make lint        includes between the rooms, lengths, cppcheck
#? make deps        installs the packages that all of this needs (Debian, Ubuntu)
#? make install     below DESTDIR and PREFIX (/usr/local)
#? make clean       removes the builds
#? Variables: CC=gcc|clang CFLAGS="-O2 -g" SAN=address,undefined|thread BUILD=dir V=1
comma   := ,
SAN1    := $(firstword $(subst $(comma), ,$(SAN)))
BUILD   ?= build$(if $(SAN),-$(SAN1))
PREFIX  ?= /usr/local
Q       := $(if $(V),,@)
SAY      = @$(if $(V),:,printf '  %-7s %s\n')
# What a make below this one is told: all cores, unless this one was told how many.
J        = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
MAKEFLAGS += --no-print-directory
VERSION := 0.1.0
export PATH := $(CURDIR)/build/bin:$(PATH)
CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Werror
SANFLAG := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
ALLCF   := -I. -std=c11 -D_GNU_SOURCE -DKVTIER_VERSION='"$(VERSION)"' $(WARN) -fPIC \
	   -fvisibility=hidden -MMD -MP $(CFLAGS) $(SANFLAG)
ALLLD   := $(LDFLAGS) $(SANFLAG)
D_LIBS  := -linih -lcrypto -lxxhash -lnuma -ljson-c -luring -lhiredis -lssl -lpthread
C_LIBS  := -lcrypto -lpthread
T_LIBS  := -lcmocka -lm $(D_LIBS)
CF_avx2 := -mavx2 -mfma -mf16c -mbmi2
CF_avx512 := $(CF_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq

# The rooms of the tree: a source is in by lying there.
objs_of   = $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard $(1))))
D_OBJS   := $(filter-out %/daemon/main.o,$(call objs_of,kernels/*.c daemon/*.c daemon/*/*.c \
	    tiers/*.c tiers/*/*.c tiers/*/*/*.c))
C_OBJS   := $(call objs_of,client/lib/*.c)
CTL_OBJS := $(call objs_of,client/ctl/*.c)
BENCH_OBJS := $(call objs_of,tests/bench/*.c)
LIB_OBJS := $(call objs_of,tests/lib/*.c)
PROGRAMS := $(addprefix $(BUILD)/,kvtierd kvtierctl kvtier-bench libkvtier.so.0 libkvtier.a kvtier.pc)

# A test is in by lying in the folder of its kind. What else the build must know of a test stands in
# that test (tests/README.md): FACTS has a word NAME:KEY=VALUE for each fact.
FACTS   := $(shell tests/facts.sh)
$(if $(filter-out 0,$(.SHELLSTATUS)),$(error tests/facts.sh failed))
facts    = $(patsubst $(@F):$(1)=%,%,$(filter $(@F):$(1)=%,$(FACTS)))
ALL_TESTS := $(basename $(notdir $(foreach kind,unit fault sim fuzz regr sys soak,\
	     $(sort $(wildcard tests/$(kind)/$(kind)_*.c)))))
SOAK    := $(filter soak_%,$(ALL_TESTS))
NOT_RUN := $(SOAK) $(patsubst %:no=$(SAN1),%,$(filter %:no=$(SAN1),$(FACTS)))
TESTS   := $(filter $(if $(TEST),$(basename $(notdir $(wildcard $(TEST:%=tests/*/%.c)))),%),\
	   $(filter-out $(NOT_RUN),$(ALL_TESTS)))

all: $(PROGRAMS)
	@echo "built in $(BUILD)/: kvtierd kvtierctl kvtier-bench libkvtier.so.0 libkvtier.a"
	@echo "left out: the CUDA device (this version has the CPU device only)"
help:
	@sed -n 's/^#? //p' Makefile

# A file of flags changes when the flags in it do: what was made with other flags is made again.
FLAGS_cc = $(CC) $(ALLCF) $(CF_avx512)
FLAGS_ld = $(CC) $(ALLLD) $(T_LIBS) $(D_OBJS) $(C_OBJS) $(CTL_OBJS) $(BENCH_OBJS) $(LIB_OBJS)
FLAGS_pc = $(PREFIX) $(VERSION)
$(BUILD)/flags.%: FORCE
	@mkdir -p $(@D)
	@echo "$(FLAGS_$*)" | cmp -s - $@ || echo "$(FLAGS_$*)" >$@

$(BUILD)/%.o: %.c $(BUILD)/flags.cc
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(ALLCF) $(CF_$(notdir $*)) -c -o $@ $<

$(BUILD)/daemon.a: $(D_OBJS)
$(BUILD)/client.a: $(C_OBJS)
$(BUILD)/libtest.a: $(LIB_OBJS)
$(BUILD)/daemon.a $(BUILD)/client.a $(BUILD)/libtest.a: $(BUILD)/flags.ld
	$(Q)rm -f $@ && ar rcs $@ $(filter %.o,$^)

# One object with only kvtier_* visible, so that a static engine meets none of our inner names.
$(BUILD)/libkvtier.a: $(C_OBJS) $(BUILD)/flags.ld
	$(SAY) AR $@
	$(Q)ld -r -o $(BUILD)/kvtier.o $(C_OBJS) && objcopy --localize-hidden $(BUILD)/kvtier.o
	$(Q)rm -f $@ && ar rcs $@ $(BUILD)/kvtier.o

$(BUILD)/libkvtier.so.0: $(C_OBJS) client/lib/kvtier.map $(BUILD)/flags.ld
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -shared -Wl,-soname,libkvtier.so.0 -Wl,--version-script=client/lib/kvtier.map \
		$(if $(SAN),,-Wl,-z$(comma)defs) -o $@ $(C_OBJS) $(C_LIBS)
	$(Q)ln -sf libkvtier.so.0 $(BUILD)/libkvtier.so

PC_SED   = sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' client/lib/kvtier.pc.in
$(BUILD)/kvtier.pc: client/lib/kvtier.pc.in $(BUILD)/flags.pc
	$(Q)$(PC_SED) >$@

$(BUILD)/kvtierd: $(BUILD)/daemon/main.o
$(BUILD)/kvtierctl: $(CTL_OBJS)
$(BUILD)/kvtierd $(BUILD)/kvtierctl: $(BUILD)/daemon.a $(BUILD)/flags.ld
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) -o $@ $(filter %.o,$^) $(BUILD)/daemon.a $(D_LIBS)

# --- tests ---
in_tests  = $(addprefix $(BUILD)/tests/,$(1))
PARTS    := $(addprefix $(BUILD)/,libtest.a libkvtier.a daemon.a client.a)
$(BUILD)/kvtier-bench: $(BENCH_OBJS)
$(call in_tests,kvtierd_faulty): $(BUILD)/daemon/main.o $(call in_tests,lib/kvtierd_faulty.o)
.SECONDEXPANSION:
$(call in_tests,$(ALL_TESTS)): $(BUILD)/tests/%: $(BUILD)/tests/$$(firstword $$(subst _, ,$$*))/%.o
$(call in_tests,$(ALL_TESTS) kvtierd_faulty) $(BUILD)/kvtier-bench: $(PARTS) $(BUILD)/flags.ld \
		| $$(call in_tests,$$(call facts,needs))
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) $(patsubst %,-Wl$(comma)--wrap=%,$(call facts,wrap)) -o $@ $(filter %.o,$^) \
		-Wl,--start-group $(filter-out $(if $(call facts,link),%/libkvtier.a),$(PARTS)) \
		-Wl,--end-group $(T_LIBS)

tests: $(PROGRAMS) $(call in_tests,$(TESTS))
check:
	$(Q)$(MAKE) $(J) tests
	@tests/run.sh $(BUILD)
test: deps
	$(Q)$(MAKE) $(J) check
test-all: deps
	$(Q)$(MAKE) $(J) tests SAN=address,undefined
	$(Q)$(MAKE) $(J) tests SAN=thread
	$(Q)if command -v clang >/dev/null; then $(MAKE) $(J) tests CC=clang BUILD=build-clang; \
		else echo "clang is not installed: not compiled with it"; fi
	@tests/run.sh build-address build-thread
fuzz: deps
	$(Q)$(MAKE) $(J) CC=clang BUILD=build-fuzz SAN=address,undefined,fuzzer-no-link \
		build-fuzz/libtest.a build-fuzz/daemon.a build-fuzz/client.a
	@tests/fuzz.sh build-fuzz/libtest.a build-fuzz/daemon.a build-fuzz/client.a $(T_LIBS)
soak: all $(call in_tests,$(SOAK))
	set -e; for s in $(call in_tests,$(SOAK)); do $$s; done
bench: all
	$(BUILD)/kvtier-bench
demo: deps
	$(Q)$(MAKE) $(J) all
	@bash client/examples/demo.sh
lint deps:
	@tests/$@.sh

# Where the Python that runs this looks: below /usr python3, below /usr/local python3.N.
PYTHON   = $(if $(filter /usr,$(PREFIX)),python3,$(shell python3 -c \
	   'import sys; print("python3.%d" % sys.version_info[1])'))
PYDIR    = lib/$(PYTHON)/dist-packages/kvtier
DEST     = $(DESTDIR)$(PREFIX)
install: all
	install -d $(addprefix $(DEST)/,bin lib/pkgconfig include lib/systemd/system share/man/man1 \
		share/man/man3 share/man/man8 $(PYDIR))
	install $(BUILD)/kvtierd $(BUILD)/kvtierctl $(BUILD)/kvtier-bench $(DEST)/bin
	install -m 644 $(BUILD)/libkvtier.so.0 $(BUILD)/libkvtier.a $(DEST)/lib
	ln -sf libkvtier.so.0 $(DEST)/lib/libkvtier.so
	install -m 644 client/kvtier.h $(DEST)/include
	$(PC_SED) >$(DEST)/lib/pkgconfig/kvtier.pc
	install -m 644 client/man/kvtierctl.1 $(DEST)/share/man/man1
	install -m 644 client/man/kvtier.3 $(DEST)/share/man/man3
	install -m 644 daemon/kvtierd.8 $(DEST)/share/man/man8
	install -m 644 client/python/kvtier/*.py $(DEST)/$(PYDIR)
	sed 's|^ExecStart=/usr/local/bin/|ExecStart=$(PREFIX)/bin/|' systemd/kvtierd.service \
		>$(DEST)/lib/systemd/system/kvtierd.service
clean:
	rm -rf build build-address build-thread build-clang build-fuzz
FORCE:
.PHONY: all help tests check test test-all demo fuzz soak bench deps lint install clean FORCE
.SECONDARY:
-include $(wildcard $(BUILD)/*/*.d $(BUILD)/*/*/*.d $(BUILD)/*/*/*/*.d)
