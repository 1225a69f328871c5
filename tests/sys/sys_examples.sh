#!/bin/bash -eu
# SPDX-License-Identifier: Apache-2.0
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
#
# Goal: what an engine's author does first works: the examples of the library, built from an
# installation alone, store blocks, whole and layer by layer, and another process of each gets them
# back; so does the example in Python, which finds the blocks of the one in C.
# Method: `make install` into a directory of its own; the compiler sees that one's header, library
# and kvtier.pc and nothing of this tree; C, C++ and the static library; a kvtierd from there on
# embedded defaults.

. "$(dirname "$0")/../lib/library.sh"
for tool in pkg-config gcc; do
	command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
done

work=$(mktemp -d /tmp/kvtier-test-XXXXXX)
daemon=
end() {
	[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
	wait
	rm -rf "$work"
}
trap end EXIT

fail() {
	echo "sys_examples.sh: $1" >&2
	exit 1
}

make --no-print-directory -s -o all -C "$tree" BUILD="$build" \
	install DESTDIR="$work" PREFIX=/opt/kvtier >"$work/install.log" 2>&1 || {
	cat "$work/install.log"
	fail "make install"
}
root=$work/opt/kvtier
export PKG_CONFIG_PATH=$root/lib/pkgconfig
cp "$tree"/client/examples/{store_load.c,store_load.py,layers.c,llama_kvtier.c} "$work"
cd "$work"

# What kvtier.pc says is right where it was installed for; DESTDIR is put before it, as packagers
# do.
[ "$(pkg-config --variable=prefix kvtier)" = /opt/kvtier ] ||
	fail "kvtier.pc does not follow PREFIX"
flags=$(pkg-config --define-variable=prefix="$root" --cflags --libs kvtier)
gcc -std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE store_load.c $flags -o store_load
gcc -std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE layers.c $flags -o layers
if pkg-config --exists llama; then	# that it answers: make test-engines
	gcc -std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE llama_kvtier.c $flags \
		$(pkg-config --cflags --libs llama) -o llama_kvtier
fi
static=$(pkg-config --define-variable=prefix="$root" --cflags --libs --static kvtier)
gcc -std=c11 -D_GNU_SOURCE store_load.c ${static/-lkvtier/-l:libkvtier.a} -o store_load_static
for standard in "gcc -x c -std=c11 -Wpedantic" "gcc -x c -std=gnu99" \
	"g++ -x c++ -std=c++11 -Wpedantic"; do
	command -v "${standard%% *}" >/dev/null || continue
	echo '#include <kvtier.h>' | $standard -Wall -Wextra -Werror -fsyntax-only $flags - ||
		fail "kvtier.h: $standard"
done
cat >init.c <<'END'
#include <kvtier.h>
int main(void)
{
	struct kvtier_hit hit = KVTIER_INIT(kvtier_hit), hits[2] = { KVTIER_INIT(kvtier_hit) };
	const struct kvtier_op op = KVTIER_INIT(kvtier_op, .kind = KVTIER_LOAD, .priority = -7);
	hits[1] = hit;
	return hit.size + hits[0].size != 2 * sizeof(hit) || hits[1].blocks != 0 ||
	       op.size != sizeof(op) || op.kind != KVTIER_LOAD || op.priority != -7 || op.n != 0;
}
END
for standard in "gcc -x c -std=c11" "g++ -x c++ -std=c++20" "g++ -x c++ -std=gnu++17"; do
	command -v "${standard%% *}" >/dev/null || continue
	$standard -Wall -Wextra -Wno-missing-field-initializers -Werror init.c $flags -o init &&
		LD_LIBRARY_PATH=$root/lib ./init || fail "KVTIER_INIT: $standard"
done

export XDG_RUNTIME_DIR=$work/run XDG_STATE_HOME=$work/state
mkdir -m 700 run state
printf '[daemon]\nruntime_dir = %s\nstate_dir = %s\n[host]\nbytes = 64M\n[nvme]\nbytes = 0\n' \
	"$work/run" "$work/state" >kvtierd.conf
"$root/bin/kvtierd" --config kvtierd.conf 2>kvtierd.log &
daemon=$!
export KVTIER_SOCKET=$work/run/kvtier.sock
for ((i = 0; ; i++)); do
	"$root/bin/kvtierctl" --socket "$KVTIER_SOCKET" status >/dev/null 2>&1 && break
	kill -0 $daemon 2>/dev/null && [ $i -lt 300 ] ||
		{ cat kvtierd.log; fail "kvtierd does not serve"; }
	sleep 0.1
done

says() {	# says "EXPECTED" PROGRAM ARGUMENT
	local got code=0
	got=$(LD_LIBRARY_PATH=$root/lib "$2" "$3" 2>&1) || code=$?
	[ $code = 0 ] && [[ $got == *"$1"* ]] ||
		{ echo "$got"; fail "$2 $3: exit $code, expected: $1"; }
}
says "0 of 8 blocks are present" ./store_load store
says "8 of 8 blocks are present" ./store_load load
says "loaded 8 of 8 blocks, 0 values wrong" ./store_load_static load
says "8 of 8 blocks are present" ./store_load.py load
says "loaded 8 of 8 blocks, no values wrong" ./store_load.py load
says "stored 8 of 8 blocks" ./store_load.py store
says "stored 8 of 8 blocks" ./layers store
says "layers 0 to 1 are there" ./layers load
says "loaded 8 of 8 blocks, 0 values wrong" ./layers load

kill $daemon
wait $daemon || fail "kvtierd ended with $?"
daemon=
LD_LIBRARY_PATH=$root/lib ./store_load load >nobody 2>&1 &&
	fail "the example succeeds without a daemon"
grep -q "connect: cannot connect to $KVTIER_SOCKET" nobody ||
	{ cat nobody; fail "no sentence that says why"; }
