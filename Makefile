# kvtier: `make` builds what can be built here, `make test` proves it, `make demo` shows it.
#? make             builds kvtierd, kvtierctl, kvtier-bench and libkvtier, in build/
#? make demo        installs what is missing, builds, runs a real model cold and warm: 5 minutes
#? make test        installs what is missing, builds, runs every test once
#? make check       the same without installing; TEST="unit_io sys_redis*": these tests alone
#? make test-all    make lint, every test under the sanitizers, everything compiled by clang
#? make test-containers  compose.yaml as it is written, by podman, with engines that store and load
#? make test-kubernetes  the manifests of systemd/kubernetes, and their commands as their users
#? make test-upgrade  builds the release before: its library at this kvtierd, and the reverse
#? make test-service  boots a systemd (nspawn): from source, by make deb's packages, to the purge
#? make test-engines  real engines from PyPI: cold, warm, the daemon dies; ENGINES="vllm"
#? make soak        over an hour of ops, kills, outages, lies and a hostile client: nothing may grow
#? make fuzz        each parser under libFuzzer for FUZZ_SECONDS (60)
#? make bench       measures; build/kvtier-bench --help says what, and how to run a part
#? make check-gpu   the gpu tests on this machine's CUDA driver; make bench-gpu: the figures
#? make gpu-bundle  both in a folder, for a machine that has a driver and no compiler
#? make wheel       build/kvtier-*.whl: what pip installs, with library, daemon and kvtierctl in it
#? make deb         build/deb/*.deb: Debian packages of daemon, kvtierctl, library and Python
#? make test-dashboard  a Prometheus from apt asks each query of the board, and tries the alerts
#? make test-wheel  the wheel in a new venv: daemon, status, a store, a hit
#? make install     below DESTDIR and PREFIX (/usr/local); make uninstall: takes it away again
#? Others: make lint deps clean
#? Variables: CC=gcc|clang CFLAGS="-O2 -g" SAN=address,undefined|thread BUILD=dir V=1 STATIC=1
comma   := ,
SAN1    := $(firstword $(subst $(comma), ,$(SAN)))
BUILD   ?= build$(if $(SAN),-$(SAN1))
Q       := $(if $(V),,@)
SAY      = @$(if $(V),:,printf '  %-7s %s\n')
# A make below this one uses all cores, unless this one was told how many.
J        = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
MAKEFLAGS += --no-print-directory
export PATH := $(CURDIR)/build/bin:$(PATH)
VERSION := 0.2.0
CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Werror
SANFLAG := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
ALLCF   := -I. -std=c11 -D_GNU_SOURCE -DKVTIER_VERSION='"$(VERSION)"' $(WARN) -fPIC \
	   -ffp-contract=off -fvisibility=hidden -MMD -MP $(CPPFLAGS) $(CFLAGS) $(SANFLAG)
ALLLD   := $(LDFLAGS) $(SANFLAG) -Wl,--as-needed
LIBS    := $(if $(STATIC),-Wl$(comma)-Bstatic) -lssl -lcrypto -lxxhash -llz4 -lnuma -ljson-c \
	   -luring -lhiredis $(if $(STATIC),-Wl$(comma)-Bdynamic) -lpthread -lcmocka -lm
CF_avx2 := -mavx2 -mfma -mf16c -mbmi2
CF_vbmi2 := $(CF_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi2
CF_sha256_ni := -msha -mssse3 -msse4.1
NVCC    := $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
NVRTC   := $(wildcard build/nvrtc/libnvrtc.so.12)
CF_binaries := $(if $(NVCC)$(NVRTC),-DCUDA_BINARIES='"$(BUILD)/cuda/binaries.h"')

# A file in a room is built, a test in the folder of its kind run. FACTS: what tests say of them.
SOURCES := $(foreach t,base client/lib daemon kernels tiers tests,$t/*.c $t/*/*.c $t/*/*/*.c)
OBJS    := $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard $(SOURCES))))
in       = $(filter $(1:%=$(BUILD)/%),$(OBJS))
FACTS   := $(shell tests/facts.sh)$(if $(filter-out 0,$(.SHELLSTATUS)),$(error of tests/facts.sh))
facts    = $(patsubst $(@F):$(1)=%,%,$(filter $(@F):$(1)=%,$(FACTS)))
ALL     := $(basename $(notdir $(filter-out tests/lib/% tests/bench/% tests/scenario/%,\
	   $(wildcard tests/*/*.c))))
NOT_RUN := soak_% $(patsubst %:no=$(SAN1),%,$(filter %:no=$(SAN1),$(FACTS)))
WANTED  := $(if $(TEST),$(basename $(notdir $(wildcard $(TEST:%=tests/*/%.c)))),%)
TEXTS   := $(wildcard $(patsubst %,tests/*/%.kvt,$(or $(TEST),*)))
in_tests = $(addprefix $(BUILD)/tests/,$(1))
PROGRAMS := $(addprefix $(BUILD)/,kvtierd kvtierctl kvtier-bench libkvtier.so.0 libkvtier.a)
PAGES   := $(addprefix $(BUILD)/,kvtierctl.1 kvtierd.conf.5)

all: $(PROGRAMS) $(PAGES)
	@echo "built in $(BUILD)/: $(notdir $(PROGRAMS))"
	@echo "left out: $(if $(NVRTC),nothing,$(if $(NVCC),CUDA kernels for drivers older than \
		$(NVCC),the CUDA kernels): make deps brings a compiler)"
help:
	@sed -n 's/^#? //p' Makefile

# A file of flags changes when the flags in it do: what was made with other flags is made again.
FLAGS_cc = $(CC) $(ALLCF) $(CF_vbmi2) $(CF_sha256_ni) $(CF_binaries)
FLAGS_cuda = $(NVCC) $(NVRTC)
FLAGS_ld = $(CC) $(ALLLD) $(LIBS) $(filter-out $(ALL:=.o),$(notdir $(OBJS)))
$(BUILD)/flags.%: FORCE
	@mkdir -p $(sort $(dir $@ $(OBJS) $(EMU)))
	@echo "$(FLAGS_$*)" | cmp -s - $@ || echo "$(FLAGS_$*)" >$@

# Nearly all that a test does is elsewhere: with -O1 it is compiled in two thirds of the time.
$(foreach t,fault gpu regr sys unit,$(BUILD)/tests/$t/$t_%.o): private ALLCF := $(ALLCF:-O2=-O1)
# Kernels on the host run on stacks that no sanitizer knows.
$(BUILD)/tests/gpu/host/%.o: private ALLCF += -fno-sanitize=all -Wno-unknown-pragmas
$(BUILD)/%.o: %.c $(BUILD)/flags.cc
	$(SAY) CC $<
	$(Q)$(CC) $(ALLCF) $(CF_$(notdir $*)) -c -o $@ $<
$(BUILD)/kernels/cuda/binaries.o: $(if $(NVCC)$(NVRTC),$(BUILD)/cuda/binaries.h)
$(BUILD)/cuda/binaries.h: $(wildcard kernels/*.h kernels/cuda/*) $(NVRTC) $(BUILD)/flags.cuda
	$(SAY) CUDA $@
	$(Q)kernels/cuda/binaries.sh $(@D) "$(NVCC)" "$(NVRTC)"
$(BUILD)/daemon.a: $(filter-out %/main.o $(BUILD)/daemon/ctl/%,\
		$(call in,base/% daemon/% kernels/% tiers/%))
LIBKVTIER := $(call in,client/lib/%)
$(BUILD)/client.a: $(LIBKVTIER)
# DAEMONS: kvtierd with calls wrapped, each a program. No archive has them: no test links the wraps.
DAEMONS := $(basename $(notdir $(wildcard tests/lib/kvtierd_*.c)))
$(BUILD)/libtest.a: $(filter-out $(DAEMONS:%=$(BUILD)/tests/lib/%.o),\
		$(call in,tests/lib/% tests/gpu/host/%))
$(BUILD)/%.a: $(BUILD)/flags.ld
	$(Q)rm -f $@ && ar rcs $@ $(filter %.o,$^)
# One object with only kvtier_* visible, so that a static engine meets none of our inner names.
$(BUILD)/kvtier.o: $(LIBKVTIER) $(BUILD)/flags.ld
	$(Q)ld -r -o $@ $(filter %.o,$^) && objcopy --localize-hidden $@
$(BUILD)/libkvtier.a: $(BUILD)/kvtier.o

# One recipe links all these. EMU: an emulated CUDA driver.
OF_TEST := $(call in_tests,$(ALL) $(DAEMONS) kvt) $(BUILD)/kvtier-bench
EMU     := $(BUILD)/tests/emu/libcuda.so.1
SHARED  := $(BUILD)/libkvtier.so.0 $(EMU)
$(BUILD)/kvtierd: $(BUILD)/daemon/main.o $(BUILD)/daemon.a
$(BUILD)/kvtierctl: $(call in,daemon/ctl/%) $(BUILD)/daemon.a
$(BUILD)/kvtier-bench: $(call in,tests/bench/%) | $(BUILD)/tests/kvtierd_tuned
# Runs the tests that are texts, tests/*/*.kvt.
$(BUILD)/tests/kvt: $(call in,tests/scenario/%)
$(BUILD)/libkvtier.so.0: $(LIBKVTIER) client/lib/kvtier.map
$(EMU): $(call in,tests/gpu/emu/% tests/gpu/host/%)
$(SHARED): private override LIBS = -shared -Wl,-soname,$(@F) $(LD_$(@F)) -lpthread
LD_libkvtier.so.0 := $(if $(SAN),,-Wl,-z,defs) -Wl,--version-script=client/lib/kvtier.map
LD_libcuda.so.1 := -Wl,-z,nodelete
$(call in_tests,$(DAEMONS)): $(BUILD)/tests/%: $(BUILD)/daemon/main.o $(BUILD)/tests/lib/%.o
.SECONDEXPANSION:
$(call in_tests,$(ALL)): $(BUILD)/tests/%: $(BUILD)/tests/$$(firstword $$(subst _, ,$$*))/%.o
$(OF_TEST): $(addprefix $(BUILD)/,libtest.a daemon.a client.a) $$(if $$(call facts,link),,\
		$(BUILD)/libkvtier.a) | $$(call in_tests,$$(call facts,needs))
$(BUILD)/kvtierd $(BUILD)/kvtierctl $(OF_TEST) $(SHARED): $(BUILD)/flags.ld
	$(SAY) LD $@
	$(Q)$(CC) $(ALLLD) $(addprefix -Wl$(comma)--wrap=,$(call facts,wrap)) -o $@ \
		$(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS)

# A program knows its tables: what it prints of them comes where its page says @TABLES@.
$(BUILD)/kvtierctl.1: client/man/kvtierctl.1.in client/man/wrap.awk $(BUILD)/kvtierctl
$(BUILD)/kvtierd.conf.5: daemon/kvtierd.conf.5.in client/man/wrap.awk $(BUILD)/kvtierd
$(PAGES):
	$(Q)$(lastword $^) --man >$@.tables
	$(Q)sed -e '/^@TABLES@$$/{r $@.tables' -e 'd}' $< | LC_ALL=C awk -f client/man/wrap.awk >$@

tests: $(PROGRAMS) $(PAGES) $(EMU) $(call in_tests,\
	$(filter $(WANTED),$(filter-out $(NOT_RUN),$(ALL))) $(if $(TEXTS),kvt))
test: deps
test check:
	$(Q)$(MAKE) $(J) tests && tests/run.sh $(BUILD)
bench bench-gpu: all
	$(BUILD)/kvtier-bench $(if $(filter %-gpu,$@),cuda)
demo: deps
	$(Q)$(MAKE) $(J) all && bash client/examples/demo.sh
wheel: deps
test-wheel: wheel
test-service: all deb
	@tests/test-service.sh $(BUILD) && tests/test-debs.sh $(BUILD)
test-all test-dashboard test-engines test-upgrade test-containers test-kubernetes test-wheel \
soak check-gpu gpu-bundle fuzz lint deps wheel deb:
	@tests/$@.sh $(BUILD)
install uninstall: all
	@BUILD=$(BUILD) VERSION=$(VERSION) systemd/install.sh $(filter-out install,$@)
clean:
	rm -rf build build-address build-thread build-clang build-fuzz
.SECONDARY:
.PHONY: all help tests check test soak bench bench-gpu demo test-all test-dashboard test-engines \
	test-service test-wheel test-upgrade test-containers test-kubernetes check-gpu \
	gpu-bundle fuzz lint deps wheel deb install uninstall clean FORCE
-include $(wildcard $(OBJS:.o=.d))
