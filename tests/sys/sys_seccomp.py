# SPDX-License-Identifier: Apache-2.0
# make: lane=wait no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: kvtierd works in full under the seccomp profile of systemd/kubernetes: io_uring, userfaultfd, its probes.
Method: this file, as a program, loads the profile by libseccomp and becomes kvtierd or kvtierctl; an engine stores and
loads.
"""
import ctypes as C
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
PROFILE = TREE / "systemd/kubernetes/base/seccomp.json"
ACTIONS = {"SCMP_ACT_ALLOW": 0x7fff0000, "SCMP_ACT_ERRNO": 0x00050000}
COMPARISONS = {"SCMP_CMP_MASKED_EQ": 7}


class Argument(C.Structure):
    _fields_ = [("arg", C.c_uint), ("op", C.c_int), ("datum_a", C.c_uint64), ("datum_b", C.c_uint64)]


def library():
    lib = C.CDLL("libseccomp.so.2")
    lib.seccomp_init.restype = C.c_void_p
    lib.seccomp_rule_add_array.argtypes = [C.c_void_p, C.c_uint32, C.c_int, C.c_uint, C.POINTER(Argument)]
    lib.seccomp_load.argtypes = [C.c_void_p]
    return lib


def load(profile: dict) -> None:
    """As a container's runtime does."""
    lib = library()
    default = ACTIONS[profile["defaultAction"]] | profile["defaultErrnoRet"]
    context = lib.seccomp_init(default)
    for rule in profile["syscalls"]:
        action = ACTIONS[rule["action"]] | rule.get("errnoRet", 0)
        arguments = [Argument(a["index"], COMPARISONS[a["op"]], a["value"], a["valueTwo"])
                     for a in rule.get("args", ())]
        for name in rule["names"]:
            number = lib.seccomp_syscall_resolve_name(name.encode())
            if number < 0 or action == default:
                continue    # another machine's, or younger than this libseccomp
            if lib.seccomp_rule_add_array(context, action, number, len(arguments),
                                          (Argument * len(arguments))(*arguments)):
                raise OSError(f"{name} cannot be added")
    if lib.seccomp_load(context):
        raise OSError("the profile cannot be loaded")


if __name__ == "__main__":
    load(json.loads(PROFILE.read_text()))
    os.execv(sys.argv[1], sys.argv[1:])

import kvtier  # noqa: E402
from kvtier import Codec  # noqa: E402
from llama_demo import Daemon  # noqa: E402
from sys_python_binding import PAGE, content, geometry, segments  # noqa: E402
from world import World, host  # noqa: E402

CONFINED = [sys.executable, __file__]


class ConfinedDaemon(Daemon):
    def spawn(self, arguments, *rest, **how):
        super().spawn([*CONFINED, *arguments], *rest, **how)


class Seccomp(World):
    settings = host(16).replace("[nvme]\nbytes = 0", "[nvme]\nbytes = 256M")

    def setUp(self) -> None:
        try:
            library()
        except OSError:
            self.skipTest("there is no libseccomp")
        super().setUp()
        self.unconfined = self.of_this_machine()
        self.daemon.close()
        self.daemon = ConfinedDaemon(self.daemon.build, self.work / "confined", self.settings)
        self.addCleanup(self.daemon.close)

    def of_this_machine(self) -> tuple:
        """What does the I/O, and whether the kernel guards pages: it may refuse either without a profile."""
        return self.daemon.tier("nvme")["engine"], "no_userfaultfd" in self.daemon.ctl("status").decode()

    def confined(self, *words: str) -> str:
        """What kvtierctl says under the profile."""
        return subprocess.run([*CONFINED, str(self.daemon.build / "kvtierctl"), "--socket", self.daemon.socket, *words],
                              stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout

    def test_an_engine_hits_and_the_kernel_refuses_nothing_that_kvtierd_uses(self):
        status = Path(f"/proc/{self.daemon.process.pid}/status").read_text()
        self.assertIn("Seccomp:\t2", status)
        with kvtier.Client(self.daemon.socket) as client, kvtier.SharedMemory(2 * PAGE) as memory:
            space = client.open_space(geometry("seccomp", codec=Codec.RAW), [memory.region()], segments())
            keys = space.keys(range(16))
            memory.view[:len(content(1))] = content(1)
            self.assertEqual(client.wait(space.store(keys, [0])).ok, 1)
            memory.view[PAGE:2 * PAGE] = bytes(PAGE)
            self.assertEqual(client.wait(space.load(keys, [1])).ok, 1)
            self.assertEqual(memory.view[PAGE:PAGE + len(content(1))], content(1))
            space.close()
        self.assertEqual(self.of_this_machine(), self.unconfined)
        for probe in (["status"], ["status", "--ready"], ["status", "--live"], ["drain", "--timeout", "60"]):
            self.confined(*probe)
