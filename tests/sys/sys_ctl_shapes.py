# SPDX-License-Identifier: Apache-2.0
# make: lane=wait no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: programs and people can rely on what each command of kvtierctl prints: the names and types of its JSON, and the
words of its text. A command that nobody has written down here fails.
Method: a kvtierd with NVMe that an engine has used; each command once as text and once with --json, beside a table.
"""
import json
import re
import subprocess
import unittest

from sys_export import Engine
from world import BUILD, World

# Members: # a number, ! true or false, else a text; ? at the end: it may be absent.
CLIENTS = """id# pid# uid# tenant name state wire path spaces# regions# region_bytes# ops# pages#
    stored_blocks# loaded_blocks# missed_blocks# sparse_blocks# age_s# refused# reason gpu_staged why"""
DEVICES = """device# kind name uuid state mps! max_ctas# regions# jobs# jobs_total# failed_jobs_total# own_bytes#
    image_bytes# context_bytes# copied_out_bytes_total# copied_in_bytes_total# pinned_bytes#
    direct_out_bytes_total# direct_in_bytes_total# bounced_out_bytes_total# bounced_in_bytes_total# busy_out_us_total#
    busy_in_us_total# batches_total# lost_total# text"""
STEP = "block# us# step source wait status"
SLOW = "op# client# pid# space# kind blocks# ago_s# took_us# " + STEP
SHAPES = {
    "clients": {"clients": [CLIENTS]},
    "tenants": {"tenants": ["tenant priority# share_percent# looked_up_blocks# hit_blocks# what used# guaranteed# "
                            "limit# refused#"]},
    "spaces": {"spaces": ["number# known! id tenant model convention extras dtype codec layers# kv_heads# head_dim_k# "
                          "head_dim_v# block_tokens# rank# world# typed_segments# typed_values# opaque_bytes# "
                          "logical_bytes# image_bytes# state hinted tenant_kept_bytes# opened# idle_s#? blocks# bytes# "
                          "looked_up_blocks# hit_blocks# stored_blocks# loaded_blocks# raw_blocks# relative_error#? "
                          "int8_gain#?"]},
    "disks": {"disks": ["disk# path state for_good! capacity_bytes# live_bytes# segment_bytes# written_bytes# "
                        "read_bytes# segments_refilled# segments_reclaimed# segments_lost# read_errors# write_errors# "
                        "reads# writes# oldest_ms# text"]},
    "devices": {"devices": [DEVICES]},
    "endpoints": {"endpoints": [""]},
    "trace": {"trace": ["op# client# kind state " + STEP]},
    "slowlog": {"slowlog": [SLOW]},
    "events --from 0": {"events": ["space# key tiers"], "instance": "", "lost": True, "next": 0},
    "top": {"stats": None, "devices": [DEVICES], "clients": [CLIENTS], "slowlog": [SLOW]},
    "status": {"status": "", "reasons": [""], "pid": 0, "uptime_s": 0, "heartbeat_age_ms": 0,
               "lookup": {part: "hit_blocks# requested_blocks#" for part in ("minute", "hour", "start")}, "version": "",
               "device": "", "kernels": "", "files": "text", "clients": "text refused", "nvme": "engine text",
               "gpu": "text", "redis": "text state endpoints# usable_endpoints#"},
    "status --ready": "ready!",
    "status --live": "live!",
    "hint demote --model m": "accepted# clipped# deferred# rejected# missing#",
    "evict --all": "evicted_blocks# demoted_blocks# freed_bytes# complete!",
    "flush": "flushed! ms#",
    "drain": "drained! ms#",
    "undrain": "drained!",
    "verify": {"bad": [""], "checked_blocks": 0, "checked_bytes": 0, "skipped_blocks": 0, "bad_blocks": 0,
               "dropped_blocks": 0, "dropped": True, "ms": 0},
    "dump 0 FILE": "bytes#",
    "probe 0": {"codecs": ["codec page_bytes# image_bytes# packed_bytes# raw_blocks# encode_s# decode_s# k_error#? "
                           "v_error#? k_worst#? v_worst#?"],
                "blocks": 0, "cached_codec": "", "dtype": "", "block_tokens": 0, "recommendation": ""},
    "replay TRACE": {"requests": 0, "blocks": 0, "different_blocks": 0, "block_tokens": 0, "bound": 0,
                     "rows": ["blocks# bytes# hit_rate# lru_hit_rate#"]},
    "doctor": {"checks": ["name ok! text mend"], "mend": 0},
    "config show": {"config": ["section key value from reload!"]},
    "config reload": {"refused": True, "mistakes": [""], "applied": [""], "restart": [""]},
    "config check CONFIG": {"ok": True, "mistakes": [""]},
    "loglevel": "log_level",
    "format FILE --bytes 16777216 --yes": None,
    "version": None,
    "purge --tenant default": "tenant purged_blocks# ms#",
}
NUMBER = r"(?<![\w/.-])\d[\d.]*( ?(%|[KMGT]iB|B|[num\u00b5]?s|[dhm] \d+[hms]|[dhm]))?(?![\w.-])"
# Text: a pattern that the whole of it matches; N is a number with its unit.
TEXTS = {
    "status": r"OK: kvtierd \S+, pid N, up N, device cpu, kernels \w+\n  hits of lookups: [N-] in the last minute, "
              r"[N-] in the last hour, [N-] since the start\n  nvme: \w+\n",
    "status --ready": "ready: engines can connect\n",
    "status --live": "live: the daemon moves\n",
    "hint demote --model m": "N accepted: the hint was done\n",
    "evict --all": r"evicted N blocks \(N stay on NVMe\), N\n",
    "flush": "all that was in memory is on NVMe\n",
    "drain": "drained: no block is stored, and what was in memory is written; kvtierctl undrain, or a restart, ends "
             "it\n",
    "undrain": "blocks are stored again\n",
    "verify": "N copies, N, in N: all are good\n",
    "dump 0 FILE": "N; it is private data\n",
    "loglevel": "info\n",
    "config reload": "the file says what is in effect\n",
    "config check CONFIG": "/.*/config: ok\n",
    "purge --tenant default": "purged N blocks\n",
    "endpoints": "no endpoints\n",
    "slowlog": r"(N: (store|load) of N blocks of space N, N ago, by client N \(process N\)\n( +N +block N .*\n)+)+",
    "probe 0": r"N blocks of N tokens, fp16, cached as raw\nCODEC +OF RAW +TOKENS/GiB +K +WORST K +V +WORST V +ENCODE +"
               r"DECODE +KEPT RAW\n(.*\n)+",
    "replay TRACE": r"N requests of N blocks, N of these different; a block is N tokens\n\n +TOKENS +KVTIERD +EXACT "
                    r"LRU\n( +N +N +N\n)+\nThe last line is the bound: all blocks of the file fit\.\n",
    "doctor": r"((ok   |MEND ) +\w+ +.*\n( +.*\n)*)+N of N need something\n",
}
for name, titles in {
        "clients": "ID PID UID TENANT NAME STATE WIRE PATH SPACES REGIONS MEMORY OPS PAGES STORED LOADED MISSED "
                   "AGE GPU_STAGED REFUSED_FOR",
        "tenants": "TENANT PRIORITY SHARE CLIENTS BLOCKS MEMORY LOOKED_UP HITS HIT_RATE REFUSED",
        "spaces": "NUMBER TENANT MODEL CONVENTION DTYPE CODEC LAYERS HEADS DIM-K DIM-V TOKENS RANK WORLD LOGICAL IMAGE "
                  "STATE HINTED OPEN IDLE BLOCKS BYTES STORED LOADED RAW ERROR EXTRAS",
        "disks": "PATH STATE CAPACITY LIVE SEGMENT WRITTEN READ ERRORS-R ERRORS-W WHY",
        "devices": "KIND NAME UUID STATE MPS CTAS REGIONS JOBS OWN IMAGES CONTEXT OUT IN PINNED LOST WHY",
        "trace": "OP CLIENT KIND STATE BLOCK US STEP FROM WAITS_FOR STATUS",
        "events --from 0": "SPACE KEY TIERS",
        "config show": "SECTION KEY VALUE FROM RELOAD"}.items():
    TEXTS[name] = " *" + " +".join(word.replace("_", " ") for word in titles.split()) + r" *\n(.*\n)+"
# Written down elsewhere: unit_kvtierctl and unit_kvtierctl_page (stats), sys_top, sys_export.
ELSEWHERE = {"stats", "export"}


def shape(value, wanted, where: str) -> None:
    """Fails, with the member, where value is not as it is written down."""
    if wanted is None:
        return
    if isinstance(wanted, list):
        assert isinstance(value, list), where
        for row in value:
            shape(row, wanted[0], where + "[]")
    elif isinstance(wanted, dict):
        assert isinstance(value, dict) and set(value) == set(wanted), (where, sorted(value))
        for name in wanted:
            shape(value[name], wanted[name], f"{where}.{name}")
    elif isinstance(value, dict):
        members = {member.rstrip("#!?"): member for member in wanted.split()}
        missing = {name for name, member in members.items() if member[-1] != "?"} - set(value)
        assert not missing and set(value) <= set(members), (where, missing, set(value) - set(members))
        for name, there in value.items():
            kind = members[name].rstrip("?")[-1]
            shape(there, {"#": 0, "!": True}.get(kind, ""), f"{where}.{name}")
    else:
        number = (int, float)
        is_bool = isinstance(value, bool)
        assert is_bool == isinstance(wanted, bool), where
        assert is_bool or isinstance(value, number if isinstance(wanted, number) else str), where


class Shapes(World):
    settings = "[host]\nbytes = 4M\nslab_bytes = 1M\nhuge_pages = no\n[nvme]\nbytes = 16M\nsegment_bytes = 256K\n"

    def setUp(self) -> None:
        super().setUp()
        self.until(lambda: self.daemon.stats()["tiers"]["nvme"]["state"] == "up")
        self.engine = Engine(self, self.daemon.socket)
        (self.work / "trace").write_text('{"timestamp":0,"input_length":1024,"output_length":1,"hash_ids":[1,2]}\n' * 3)
        (self.work / "config").write_text("[host]\nbytes = 1G\n")

    def prints(self, command: str, *more: str) -> str:
        if command.startswith(("evict", "verify", "dump", "purge", "flush")):
            self.engine.stores("m", 4)
        (self.work / "file").unlink(missing_ok=True)
        words = [str(self.work / word.lower()) if word.isupper() else word for word in command.split()]
        done = subprocess.run([str(BUILD / "kvtierctl"), "--socket", self.daemon.socket, *words, *more],
                              capture_output=True, text=True)
        self.assertIn(done.returncode, (0, 1) if command == "doctor" else (0,), done)
        return done.stdout

    def test_json_has_these_names_and_types(self):
        self.engine.stores("m", 4)
        for command, wanted in SHAPES.items():
            with self.subTest(command=command):
                shape(json.loads(self.prints(command, "--json")), wanted, "")

    def test_text_has_these_words(self):
        self.engine.stores("m", 4)
        for command in SHAPES:
            if command not in TEXTS:
                continue
            with self.subTest(command=command):
                text = re.sub(NUMBER, "N", self.prints(command))
                self.assertRegex(text, re.compile(rf"\A{TEXTS[command]}\Z"))

    def test_no_command_is_forgotten(self):
        usage = subprocess.run([str(BUILD / "kvtierctl")], capture_output=True, text=True).stderr
        groups = re.findall(r"^  (?:health|lists|blocks|codecs|set up) +(.*(?:\n   .*)*)", usage, flags=re.M)
        commands = {word for group in groups for word in group.split()}
        self.assertGreater(len(commands), 20)
        self.assertEqual(commands - {command.split()[0] for command in SHAPES}, ELSEWHERE)


if __name__ == "__main__":
    unittest.main()
