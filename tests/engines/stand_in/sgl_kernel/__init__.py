# SPDX-License-Identifier: Apache-2.0
"""sgl_kernel, as far as SGLang 0.5.23 imports it for a model on a CPU. PyPI has it for GPUs alone, and SGLang imports
some of its functions whatever the device is. On a processor without AMX it then calls none of them, but computes by
torch: each function of this module ends the engine, so that a call would be seen."""
import importlib.abc
import importlib.machinery
import sys
import types


class _Nothing:
    """Any name of it is nothing, too."""

    def __getattr__(self, name: str) -> "_Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_, **__):
        raise NotImplementedError("this is a stand-in for sgl_kernel")


class _Module(types.ModuleType):
    __version__ = "0.4.10"

    def __getattr__(self, name: str) -> _Nothing:
        return getattr(_Nothing(), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        mine = name.startswith("sgl_kernel.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if mine else None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())
sys.modules[__name__].__class__ = _Module
