# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.weights - names weights that lie in local files by what is in them. It needs the standard library
alone, as it is a program, too: the reader.

Two names of the same weights, the better one first:

    content     SHA-256 of the names and the whole content of the files. It is the same in each place and on each node.
    files       SHA-256 of their names, inodes, sizes and times. It is known at once, and is of these files alone.

    Weights() --names(): all digests are remembered--> both names
        \\--a thread has the reader make the others--> both names
                       \\--a file has changed, or cannot be read--> the name by files, for good

The reader is a process of its own, at the lowest priority, as a thread would hold the interpreter's lock while it waits
for a processor. It ends with its engine. It writes each digest that it made into a file of the user's:

    $XDG_CACHE_HOME/kvtier/weights.json     {"digests": {identity of a file: SHA-256 of its content}, "sum": of these}

That file is replaced as a whole under a lock, and read only if nobody else can write it and its sum is right. A digest
counts for the same device, inode, size, time of content and time of change, which no program can set back. It is
remembered only of a file that was left alone for SETTLED_S, since a file system's clock is coarse, and a mapped file
may change a while after its time did.
"""
from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

__all__ = ["Weights", "began", "files", "label", "said", "space_of"]

SETTLED_S = 60.0
_REMEMBERED_MAX = 4096          # files; the oldest are forgotten
_CACHE_BYTES_MAX = 4 << 20
_READ_BYTES = 4 << 20
_SMALL = 64 << 10               # bytes: a file so small is read at once
_FOR_PEOPLE = re.compile(r"(?i)\.|(readme|licen[cs]e|notice|use_policy)(\.txt)?$|.*\.(md|png|jpe?g|gif|svg|webp|pdf)$")
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")

_CONTENT: Dict[str, str] = {}       # this process's: the name by content, by the one by files

Files = List[Tuple[str, str]]       # (name, path)


def files(path: Any) -> Files:
    """The files of a model: those of a directory, apart from texts and pictures for people; or a file, which has no
    name, with all its parts if it is a split GGUF. []: there are none."""
    try:
        path = os.path.expanduser(os.fspath(path))
        if not os.path.isdir(path):
            split = _SPLIT.search(path)
            parts = [path] if split is None else glob.glob(f"{glob.escape(path[:split.start()])}-*-of-{split[2]}.gguf")
            return sorted((found[1] if (found := _SPLIT.search(part)) else "", part)
                          for part in parts if os.path.isfile(part))
        return sorted((e.name, e.path) for e in os.scandir(path) if e.is_file() and not _FOR_PEOPLE.match(e.name))
    except (OSError, TypeError, ValueError):
        return []


def _identity(stat: os.stat_result) -> List[int]:
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def said(*paths: Any) -> List[Any]:
    """What the system says of all these files, without reading them: [name, identity] of each. []: there are none, or
    one is gone."""
    try:
        return [[f"{i}/{name}", _identity(os.stat(at))] for i, path in enumerate(paths) for name, at in files(path)]
    except OSError:
        return []


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def label(path: Any) -> str:
    """A few letters that are equal for equal weights, and known at once: of the files' names and sizes, and of what is
    in the small ones. Other weights may have them, too, so they name no weights. "": there are no files."""
    parts = []
    try:
        for name, at in files(path):
            size = os.stat(at).st_size
            with open(at, "rb") as file:
                parts.append([name, size, hashlib.sha256(file.read()).hexdigest() if size <= _SMALL else ""])
    except OSError:
        return ""
    return _digest(parts)[:16] if parts else ""


def space_of(path: Any, kind: Any) -> str:
    """What spaces of local weights are named by: the kind of the model and its label, which is equal for equal weights
    and known at once. Keys have the weights' own name. "": there are no files. kind: None: it is not known."""
    found = label(path)
    return f"{kind or 'local'}@files-{found}" if found else ""


def began() -> float:
    """When this process began, as the clock of file systems says it."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


class Weights:
    """The names of the weights in directories or files, as they are now, in this order. say: told in a line when their
    content is known, or why it is not. since: no weights were loaded before. A file that has changed after it may have
    been loaded before the change or after it, so its weights have a name that nobody else has."""

    def __init__(self, *paths: Any, say: Callable[[str], None] = lambda text: None,
                 since: Optional[float] = None) -> None:
        self._paths, self._said = paths, said(*paths)
        self._say = lambda text: say(f"weights in {', '.join(str(path) for path in paths if path)}: {text}")
        self.first = f"files:{_digest(self._said)}" if self._said else ""
        self._asked = not self._said        # whether the content is, or need not be, looked for
        if self._said and since is not None and max(identity[4] for _, identity in self._said) > since * 1e9:
            self.first, self._asked = f"once:{os.urandom(16).hex()}", True
            self._say("a file has changed since this process began, so its blocks are this process's alone")
        self._names = [self.first]

    def names(self) -> List[str]:
        """The names that are known now, the best one first. The last one was known `first`: "" if there are no files.
        It does not wait for the reader."""
        if not self._asked:
            self._asked = True
            if not self._takes(_remembered()):
                threading.Thread(target=self._learn, name="kvtier weights", daemon=True).start()
        return self._names

    def same(self) -> bool:
        """Whether the files are those of the beginning."""
        return said(*self._paths) == self._said

    def _learn(self) -> None:
        try:
            if not self._takes(self._read()):
                raise OSError("a file has changed")
        except (OSError, ValueError) as error:
            self._say(f"they keep the name of these files, as their content was not read: {error}")

    def _takes(self, digests: Dict[str, str]) -> bool:
        """Takes the name by content, if it is known or follows from these digests."""
        found = [[name, digests.get(_key(identity))] for name, identity in self._said]
        known = all(digest for _, digest in found)
        if self.first not in _CONTENT and known and self.same():
            _CONTENT[self.first] = f"content:{_digest(found)}"
        if self.first not in _CONTENT:
            return False
        self._names = [_CONTENT[self.first], self.first]
        self._say(f"they are named by their content, {self._names[0][8:24]}")
        return True

    def _read(self) -> Dict[str, str]:
        """Has the reader read the files. ValueError, OSError: it could not."""
        command = [sys.executable or "python3", "-I", "-S", os.path.abspath(__file__), str(os.getpid())]
        every = [at for path in self._paths for _, at in files(path)]
        reader = subprocess.run([*command, *every], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, check=False)
        if reader.returncode:
            raise OSError(reader.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "its reader has ended")
        return json.loads(reader.stdout)


# --- the digests that are remembered ---

def _key(identity: List[int]) -> str:
    return "-".join(str(number) for number in identity)


def _folder() -> str:
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvtier")


def _remembered() -> Dict[str, str]:
    """The digests in the user's file. {}: there is no such file, or it is not as this module has written it."""
    try:
        with open(os.path.join(_folder(), "weights.json"), encoding="ascii") as file:
            stat = os.fstat(file.fileno())
            if stat.st_uid != os.geteuid() or stat.st_mode & 0o022 or stat.st_size > _CACHE_BYTES_MAX:
                return {}
            found = json.load(file)
        digests = found["digests"]
        return dict(digests) if found["sum"] == _digest(digests) else {}
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError):
        return {}


def _remember(more: Dict[str, str]) -> None:
    """Adds digests to the user's file, as well as that is possible. The caller has the lock."""
    digests = {**_remembered(), **more}
    digests = dict(list(digests.items())[-_REMEMBERED_MAX:])
    at = os.path.join(_folder(), "weights.new")
    with contextlib.suppress(OSError):
        how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(at, how, 0o600), "w", encoding="ascii") as file:
            json.dump({"digests": digests, "sum": _digest(digests)}, file)
        os.replace(at, os.path.join(_folder(), "weights.json"))


# --- the reader ---

def _content(path: str, alive: Callable[[], None]) -> Tuple[str, str, bool]:
    """(key of a file, digest of its content, whether it may be remembered). OSError: it has changed meanwhile."""
    with open(path, "rb", buffering=0) as file:
        identity, begun = _identity(os.fstat(file.fileno())), time.time()
        content, buffer = hashlib.sha256(), memoryview(bytearray(_READ_BYTES))
        while n := file.readinto(buffer):
            content.update(buffer[:n])
            alive()
        if _identity(os.fstat(file.fileno())) != identity:
            raise OSError(f"{path} has changed")
    return _key(identity), content.hexdigest(), max(identity[3:]) < (begun - SETTLED_S) * 1e9


def _locked(alive: Callable[[], None]) -> Any:
    """The lock, so that engines which begin together read once. None: there is no place for it."""
    try:
        os.makedirs(_folder(), mode=0o700, exist_ok=True)
        lock = open(os.path.join(_folder(), "weights.lock"), "ab")
    except OSError:
        return None
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            alive()
            time.sleep(0.2)
        except OSError:         # a file system without locks
            return None


def read(paths: List[str], alive: Callable[[], None]) -> Dict[str, str]:
    """The digests of these files, those that are remembered and those that are read. alive: called again and again."""
    lock = _locked(alive)
    known, ret = _remembered(), {}
    for path in paths:
        key = _key(_identity(os.stat(path)))
        if key in known:
            ret[key] = known[key]
            continue
        key, content, settled = _content(path, alive)
        ret[key] = content
        if settled:
            _remember({key: content})
    if lock:
        lock.close()
    return ret


def _main() -> None:
    os.nice(19)
    engine = int(sys.argv[1])

    def alive() -> None:
        if os.getppid() != engine:
            sys.exit("its engine has ended")

    json.dump(read(sys.argv[2:], alive), sys.stdout)


if __name__ == "__main__":
    _main()
