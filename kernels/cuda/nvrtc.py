# SPDX-License-Identifier: Apache-2.0
"""nvrtc.py LIBRARY DIR - codec.cu, compiled by NVRTC (nvrtc.h), a compiler in a library: no nvcc and no GPU.

Writes a cubin for each family of GPUs to DIR, and PTX for GPUs to come. Prints a line of binaries.h for each
file. NVRTC has no C headers of its own: HEADERS has all that the kernels ask of them.
"""

import ctypes
import os
import sys

SOURCE = "kernels/cuda/codec.cu"
CUBINS = (80, 90, 100, 120)
PTX = 80
OPTIONS = ["-I.", "-std=c++17", "-default-device", "-D__asm__=asm", "-ftz=false", "-Xptxas=-warn-spills"]
HEADERS = {
    "stdint.h": b"typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;"
                b"typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned uint32_t;"
                b"typedef unsigned long long uint64_t;",
    "stddef.h": b"typedef unsigned long size_t;\n#define offsetof(type, field) ((size_t) & ((type *)0)->field)",
    "stdbool.h": b"",
    "string.h": b"",
    "assert.h": b"",
}


class Nvrtc:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *args):
        result = getattr(self.library, name)(*args)
        if result and name != "nvrtcCompileProgram":
            sys.exit(f"nvrtc.py: {name}: {self.library.nvrtcGetErrorString(result).decode()}")
        return result

    def version(self):
        """1000 * major + 10 * minor, as drivers count."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return 1000 * major.value + 10 * minor.value

    def output(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def compile(self, arch, what):
        program = ctypes.c_void_p()
        strings = ctypes.c_char_p * len(HEADERS)
        with open(SOURCE, "rb") as source:
            self.call("nvrtcCreateProgram", ctypes.byref(program), source.read(), SOURCE.encode(), len(HEADERS),
                      strings(*HEADERS.values()), strings(*(name.encode() for name in HEADERS)))
        options = [option.encode() for option in [*OPTIONS, f"-arch={arch}"]]
        failed = self.call("nvrtcCompileProgram", program, len(options),
                           (ctypes.c_char_p * len(options))(*options))
        log = self.output(program, "ProgramLog").rstrip(b"\0\n").decode()
        if failed or log:  # a warning is an error, too
            sys.exit(f"nvrtc.py: {arch}: {log or 'it cannot be compiled, and NVRTC does not say why'}")
        return self.output(program, what)


def main(library, folder):
    nvrtc = Nvrtc(library)
    release = nvrtc.version()
    for kind, capability in [*(("CUBIN", capability) for capability in CUBINS), ("PTX", PTX)]:
        arch = f"{'sm' if kind == 'CUBIN' else 'compute'}_{capability}"
        path = os.path.join(folder, f"nvrtc_{arch}")
        with open(path, "wb") as out:
            out.write(nvrtc.compile(arch, kind))
        print(f'BINARY(nvrtc_{arch}, {release}, CUDA_{kind}, {capability}, "{path}")')


main(*sys.argv[1:])
