# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.vllm_adapters - finds which weights an adapter (LoRA) has, without vLLM and huggingface_hub.
kvtier.sglang uses commit_of(), too.

An adapter in a local directory is named as weights.py says, by its files as they are when it is first seen: vLLM keeps
the weights that it has loaded, whatever becomes of the files. Any other path is a repository of a hub. vLLM loads the
commit that the branch `main` has at that time, through the cache of huggingface_hub:

    CACHE/models--ORG--NAME/refs/main           the commit; written where a download finds another one
    CACHE/models--ORG--NAME/snapshots/COMMIT/   its files

vLLM does not say which commit it has loaded. The cache shows it in two cases: `main` has been the same since before
this process began, or no other commit was ever downloaded. In other cases the commit is not known.
"""
from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .weights import Weights

__all__ = ["Adapters", "commit_of", "is_local"]

BEGAN = time.time()     # no adapter was loaded before this time


def is_local(path: str) -> bool:
    """Whether vLLM takes this for a local directory."""
    return os.path.isabs(path) or path.startswith("~") or os.path.exists(path)


def _cache() -> str:
    """The cache directory of huggingface_hub, by the variables that it reads."""
    said = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if not said:
        home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
        said = os.path.join(home, "hub")
    return os.path.expandvars(os.path.expanduser(said))


def commit_of(path: str, began: float) -> str:
    """The commit that a process has loaded until now, if it began at `began`. "": it is not known."""
    for name in ("VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE"):
        if os.environ.get(name, "").lower() not in ("", "0", "false"):
            return ""       # this is another hub, with another cache
    folder = os.path.join(_cache(), "models--" + path.replace("/", "--"))
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="ascii") as ref:
            commit, changed = ref.read().strip(), os.fstat(ref.fileno()).st_ctime
        snapshots = os.listdir(os.path.join(folder, "snapshots"))
    except (OSError, ValueError):
        return ""
    return commit if commit in snapshots and (changed < began or len(snapshots) == 1) else ""


class Adapters:
    """The adapters of one engine. say: told once about each adapter whose weights are not known."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._began = say, BEGAN
        self._local: Dict[Tuple[int, str], Weights] = {}
        self._first: Dict[Tuple[int, str], str] = {}
        self._said: Set[str] = set()

    def weights(self, number: int, path: str) -> Optional[str]:
        """A text that is equal for equal weights. "": only the path of a local directory is known. None: its blocks
        must not be kept. number: the lora_int_id, by which vLLM knows what it has loaded. Only what was found first
        counts: if there is another commit, or other files, later, vLLM may have loaded either."""
        if is_local(path):
            first = self._local.get((number, path)) or self._local.setdefault((number, path), Weights(path))
            if first.same():
                return first.first
        else:
            found = commit_of(path, self._began)
            if found and self._first.setdefault((number, path), found) == found:
                return found
        if path not in self._said:
            self._said.add(path)
            why = ("its files are others than at first, and vLLM may have loaded either" if is_local(path) else
                   "the commit that vLLM has loaded is not known")
            self._say(f"adapter {path}: its requests are not cached, as {why}")
        return None

    def names(self, number: int, name: str, path: str, weights: str) -> List[Any]:
        """What can stand for an adapter in a key, the best one first. weights: what weights() gave."""
        local = self._local.get((number, path)) if weights else None
        return list(local.names()) if local else [(name, path, weights)]
