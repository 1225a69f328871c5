#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install.sh - puts the programs and files built in BUILD below DESTDIR and PREFIX (`make install`);
# the library into LIBDIR there, units into UNITDIR below DESTDIR.
# `install.sh uninstall` removes each of them, and the directories that are empty then.
set -eu
cd "$(dirname "$0")/.."
: "${BUILD:=build}" "${PREFIX:=/usr/local}" "${DESTDIR:=}" "${VERSION:?run make install}"
: "${LIBDIR:=lib}" "${UNITDIR:=$PREFIX/lib/systemd/system}"
# For DESTDIR a package's own scripts tell systemd.
of_this_machine() { [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; }
if [ "${1:-}" = uninstall ]; then
	if of_this_machine; then
		# It fails for units that are not there: those of an uninstall before.
		systemctl stop kvtierd.socket 'kvtierd@*.socket' kvtierd 'kvtier-*.service' || true
		systemctl disable kvtierd.socket kvtierd@.socket kvtierd kvtier-exporter \
			kvtier-events || true
	fi
	# A second installation, into an empty directory, is the list of what there is.
	list=$(mktemp -d)
	trap 'rm -rf "$list"' EXIT
	DESTDIR=$list systemd/install.sh
	(cd "$list" && find . ! -type d) | while read -r file; do
		rm -f "$DESTDIR/$file"
	done
	(cd "$list" && find .$PREFIX -mindepth 2 -depth -type d) | while read -r dir; do
		rm -rf "$DESTDIR/$dir/__pycache__"
		rmdir "$DESTDIR/$dir" 2>/dev/null || :
	done
	! of_this_machine || systemctl daemon-reload
	exit
fi
dest=$DESTDIR$PREFIX
# Where the Python that runs this looks: below /usr python3, below /usr/local python3.N.
python=python3
[ "$PREFIX" = /usr ] ||
	python=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
python=$dest/lib/$python/dist-packages

# Where the zsh that is used looks: Debian's own packages have a folder of their own.
zsh=site-functions
[ "$PREFIX" != /usr ] || zsh=vendor-completions

install -d "$dest/bin" "$dest/include" "$dest/$LIBDIR/pkgconfig" "$DESTDIR$UNITDIR" \
	"$dest/lib/sysusers.d" "$dest/lib/tmpfiles.d" "$dest/share/doc/kvtier" \
	"$dest/share/man/man1" "$dest/share/man/man3" "$dest/share/man/man5" \
	"$dest/share/man/man8" \
	"$dest/share/bash-completion/completions" "$dest/share/zsh/$zsh"
install "$BUILD/kvtierd" "$BUILD/kvtierctl" "$BUILD/kvtier-bench" "$dest/bin"
install -m 644 "$BUILD/libkvtier.so.0" "$BUILD/libkvtier.a" "$dest/$LIBDIR"
ln -sf libkvtier.so.0 "$dest/$LIBDIR/libkvtier.so"
install -m 644 client/kvtier.h "$dest/include"
sed "s|@PREFIX@|$PREFIX|; s|@LIBDIR@|$LIBDIR|; s|@VERSION@|$VERSION|" client/lib/kvtier.pc.in \
	>"$dest/$LIBDIR/pkgconfig/kvtier.pc"
for page in client/man/kvtier.3 daemon/kvtierd.8 "$BUILD/kvtierctl.1" "$BUILD/kvtierd.conf.5"; do
	install -m 644 "$page" "$dest/share/man/man${page##*.}"
done
"$BUILD/kvtierd" --example-config >"$dest/share/doc/kvtier/kvtierd.conf"
"$BUILD/kvtierctl" --completion bash >"$dest/share/bash-completion/completions/kvtierctl"
"$BUILD/kvtierctl" --completion zsh >"$dest/share/zsh/$zsh/_kvtierctl"
(cd client/python && find kvtier -name '*.py' -o -name py.typed) | while read -r file; do
	install -Dm 644 "client/python/$file" "$python/$file"
done
for unit in kvtierd kvtier-exporter kvtier-events; do
	sed "s|^ExecStart=/usr/local/bin/|ExecStart=$PREFIX/bin/|
		s|^\(Environment=PYTHONPATH=\).*|\1${python#"$DESTDIR"}|" \
		systemd/$unit.service >"$DESTDIR$UNITDIR/$unit.service"
done
install -m 644 systemd/kvtierd.socket systemd/kvtierd@.socket "$DESTDIR$UNITDIR"
install -m 644 systemd/no-network.conf systemd/grafana.json systemd/alerts.yml \
	"$dest/share/doc/kvtier"
for kind in sysusers tmpfiles; do
	install -m 644 systemd/kvtier.$kind "$dest/lib/$kind.d/kvtier.conf"
done
of_this_machine || exit 0
ldconfig
systemd-sysusers "$dest/lib/sysusers.d/kvtier.conf"
systemd-tmpfiles --create "$dest/lib/tmpfiles.d/kvtier.conf"
systemctl daemon-reload
