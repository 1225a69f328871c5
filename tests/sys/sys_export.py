# SPDX-License-Identifier: Apache-2.0
# make: lane=wait no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: `kvtierctl export` says to Prometheus what the daemon says, whatever the daemon, its engines' names and the
clients of the exporter do.
Method: an exporter beside a kvtierd, asked over its socket; exposition.py reads each page.
"""
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import unittest

import exposition
import kvtier
from kvtier import Codec, Dtype, Geometry, Kind, Segment, SharedMemory
from world import BUILD, PATIENT_S, World, host

TOKENS, ROW = 16, 2 * 32 * 2
PLANE = TOKENS * ROW
CONNECTIONS, LABELS = 32, 50        # http.h, lists.h


def geometry(model: str) -> Geometry:
    return Geometry(model, "test", Dtype.FP16, 1, 2, 32, 32, TOKENS)._replace(codec=Codec.RAW)


class Engine:
    def __init__(self, case, path: str) -> None:
        self.client = kvtier.Client(path, name="export")
        self.memory = SharedMemory(64 << 10)
        case.addCleanup(self.memory.close)
        case.addCleanup(self.client.close)

    def stores(self, model: str, blocks: int = 1) -> None:
        """Opens a space, stores so many blocks, loads them, closes it."""
        segments = [Segment(kind, i * PLANE, 2 * PLANE, layer=0, head_stride=64, token_stride=ROW)
                    for i, kind in enumerate((Kind.K, Kind.V))]
        space = self.client.open_space(geometry(model), [self.memory.region()], segments)
        keys = space.keys(list(range(blocks * TOKENS)))
        pages = range(blocks)
        self.client.wait(space.store(keys, pages))
        space.lookup(keys)
        self.client.wait(space.load(keys, pages))
        space.close()


class Exported(World):
    settings = host(4)
    listen = "127.0.0.1:0"

    def setUp(self) -> None:
        super().setUp()
        self.exporter = subprocess.Popen(
            [str(BUILD / "kvtierctl"), "--socket", self.daemon.socket, "export", "--listen", self.listen],
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.exporter.stderr.close)
        self.addCleanup(self.exporter.wait)
        self.addCleanup(self.exporter.kill)
        at = self.exporter.stderr.readline().split(" at ")[1].strip()
        unix, tcp = at.startswith("unix:"), at.rpartition(":")
        self.family = socket.AF_UNIX if unix else socket.AF_INET
        self.address = at[5:] if unix else (tcp[0], int(tcp[2]))

    def connect(self) -> socket.socket:
        made = socket.socket(self.family, socket.SOCK_STREAM)
        self.addCleanup(made.close)
        made.settimeout(PATIENT_S)
        made.connect(self.address)
        return made

    def says(self, request: bytes) -> bytes:
        """Everything that comes back until the exporter closes."""
        made, got = self.connect(), b""
        try:
            made.sendall(request)
            while piece := made.recv(1 << 16):
                got += piece
        except ConnectionError:
            pass
        made.close()
        return got

    def get(self, path: str = "/metrics") -> str:
        head, _, body = self.says(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()).partition(b"\r\n\r\n")
        self.assertIn(b"200 OK", head)
        self.assertIn(f"Content-Length: {len(body)}".encode(), head)
        return body.decode()

    def page(self) -> exposition.Page:
        return exposition.parse(self.get())


class Numbers(Exported):
    def test_the_page_is_what_stats_says(self):
        engine = Engine(self, self.daemon.socket)
        engine.stores("m", 4)
        self.until(lambda: self.daemon.stats()["load"]["ops_total"] == 1)    # a gauge: with the heartbeat, as lookups
        page = self.page()
        for name, labels, value in (
                ("kvtier_up", {}, 1), ("kvtier_lists_up", {}, 1), ("kvtier_store_blocks_total", {}, 4),
                ("kvtier_lookup_blocks_total", {"result": "host"}, 4), ("kvtier_load_ops_total", {}, 1),
                ("kvtier_lookup_calls_total", {}, 1), ("kvtier_dropped_blocks_total", {"reason": "late"}, 0),
                ("kvtier_missed_after_lookup_blocks_total", {"reason": "missed"}, 0),
                ("kvtier_evicted_blocks_total", {"tier": "host", "reason": "asked"}, 0),
                ("kvtier_tier_load_duration_seconds_count", {"tier": "host"}, 1),
                ("kvtier_tier_store_duration_seconds_count", {"tier": "redis"}, 0),
                ("kvtier_model_lookup_hit_tokens_total", {"model_name": "m", "tenant": "default"}, 4 * TOKENS),
                ("kvtier_tier_blocks", {"tier": "host"}, 4), ("kvtier_tier_state", {"tier": "host", "state": "up"}, 1),
                ("kvtier_tier_state", {"tier": "host", "state": "off"}, 0),
                ("kvtier_tier_state", {"tier": "nvme", "state": "off"}, 1),
                ("kvtier_tier_recovery_seconds", {"tier": "nvme"}, 0),
                ("kvtier_hint_blocks_total", {"answer": "clipped"}, 0), ("kvtier_health", {"state": "err"}, 0),
                ("kvtier_load_duration_seconds_count", {}, 1), ("kvtier_connections", {"tenant": "default",
                                                                                       "state": "open"}, 1),
                ("kvtier_model_stored_tokens_total", {"model_name": "m", "tenant": "default"}, 4 * TOKENS),
                ("kvtier_tenant_used", {"tenant": "default", "what": "blocks"}, 4),
                ("kvtier_tenant_lookup_hit_blocks_total", {"tenant": "default"}, 4)):
            self.assertEqual(page.value(name, **labels), value, (name, labels))
        # from 8 us to 137 s, a bucket each doubling; the op took some time
        self.assertEqual(len(page.series("kvtier_load_duration_seconds_bucket")), 26)
        self.assertGreater(page.value("kvtier_load_duration_seconds_sum"), 0)
        self.assertEqual(page.types["kvtier_reuse_gap_seconds"], "histogram")
        self.assertEqual(page.value("kvtier_tier_evicted_age_seconds_count", tier="host"), 0)
        self.assertEqual(len(page.series("kvtier_miss_ratio")), 4)
        self.assertEqual(len(page.series("kvtier_working_set_bytes")), 3)

    def test_each_number_of_the_table_is_there(self):
        types = self.page().types
        rows = [line.split()[:2] for line in self.daemon.ctl("stats", "--list").decode().splitlines()]
        self.assertGreater(len(rows), 100)
        for path, kind in rows:
            if re.search(r"\.p\d+_us$", path) or kind == "text":     # percentiles are in the histograms
                continue
            name = re.sub(r"^hints\.\w+_blocks_total$", "hint_blocks_total", re.sub(r"^tiers\.\w+\.", "tier_", path))
            name = re.sub(r"^refused\.\w+$", "client_refusals_total", name)
            name = re.sub(r"^lookup\.(gpu|host|nvme|redis|miss)_", "lookup_", name)
            name = re.sub(r"^evicted\.\w+\.\w+$", "evicted_blocks_total", name)
            name = re.sub(r"^store\.(no_\w+|late|canceled|drained|error)_blocks", "dropped_blocks", name)
            name = re.sub(r"^load\.(no_\w+|late|canceled|missed|error)_blocks", "missed_after_lookup_blocks", name)
            name = re.sub(r"^miss_ratio\.\w+_ppm$", "miss_ratio", name)
            name = re.sub(r"^working_set\.\w+_bytes$", "working_set_bytes", name)
            name = re.sub(r"_[num]?s$", "_seconds", name.replace(".", "_").replace("_percent", "_ratio"))
            self.assertEqual(types.get("kvtier_" + name), kind.replace("state", "gauge"), path)

    def test_promtool_takes_it(self):
        promtool = shutil.which("promtool")
        if not promtool:
            self.skipTest("no promtool here")
        Engine(self, self.daemon.socket).stores('a "quoted" \\ name')
        found = subprocess.run([promtool, "check", "metrics"], input=self.get(), capture_output=True, text=True)
        self.assertEqual((found.returncode, found.stdout + found.stderr), (0, ""))

    def test_names_are_escaped(self):
        model = 'a "quoted" \\ name, {le="1"} \u00e9'
        Engine(self, self.daemon.socket).stores(model)
        self.assertEqual(self.page().value("kvtier_model_blocks", model_name=model, tenant="default"), 1)

    def test_many_models_have_bounded_labels(self):
        engine = Engine(self, self.daemon.socket)
        for i in range(LABELS + 14):
            engine.stores(f"model {i}")
        page = self.page()
        blocks = page.series("kvtier_model_stored_blocks_total")
        self.assertEqual(len(blocks), LABELS + 1)
        self.assertEqual(page.value("kvtier_model_stored_blocks_total", model_name="other", tenant="other"), 14)
        self.assertEqual(sum(blocks.values()), LABELS + 14)


class Recycled(Exported):
    settings = host(4) + "[index]\nmax_spaces = 16\n"

    def test_a_counter_stays_when_its_space_is_removed(self):
        engine = Engine(self, self.daemon.socket)
        before = {}
        for group in range(4):
            for i in range(8):
                engine.stores(f"model {group} {i}")
            last = (("model_name", f"model {group} 7"), ("tenant", "default"))
            self.until(lambda: last in self.page().series("kvtier_model_stored_blocks_total"))
            now = self.page().series("kvtier_model_stored_blocks_total")
            self.assertTrue(all(now[labels] >= value for labels, value in before.items()), (before, now))
            before = now
        self.assertEqual(sum(before.values()), 32)
        self.assertGreater(self.daemon.stats()["spaces_recycled_total"], 0)


class Ends(Exported):
    def test_a_daemon_that_is_dead_or_stopped_is_down(self):
        self.assertEqual(self.page().value("kvtier_up"), 1)
        self.daemon.process.send_signal(signal.SIGSTOP)
        self.until(lambda: self.page().value("kvtier_up") == 0)
        stopped = self.page()
        self.assertEqual(stopped.value("kvtier_health_reason", reason="stopped", severity="err"), 1)
        self.assertFalse(stopped.series("kvtier_lists_up"))         # it was not asked
        self.daemon.process.send_signal(signal.SIGCONT)
        self.until(lambda: self.page().value("kvtier_up") == 1)
        self.daemon.kill()
        dead = self.page()
        self.assertEqual(dead.value("kvtier_up"), 0)
        self.assertFalse(dead.series("kvtier_uptime_seconds"))      # nothing that looks like an idle daemon
        os.unlink(self.daemon.socket[:-len("kvtier.sock")] + "stats")
        self.assertEqual(self.page().value("kvtier_up"), 0)
        self.daemon.start()
        self.until(lambda: self.page().value("kvtier_up") == 1)
        self.assertEqual(self.get("/healthz"), "ok\n")

    def test_a_page_that_cannot_be_read_does_not_mean_that_the_daemon_is_down(self):
        """It is of another version, say: systemd starts the program again, which has been upgraded, too."""
        page = self.daemon.socket[:-len("kvtier.sock")] + "stats"
        os.rename(page, page + ".kept")
        with open(page, "wb") as other:
            other.write(b"another version")
        self.assertEqual(self.says(b"GET /metrics HTTP/1.0\r\n\r\n"), b"")
        self.assertEqual(self.exporter.wait(PATIENT_S), 3)
        self.assertIn("not a stats page of this version", self.exporter.stderr.read())

    def test_a_textfile_is_there_or_is_not(self):
        def export(*words):
            return subprocess.Popen([str(BUILD / "kvtierctl"), "--socket", self.daemon.socket, "export", *words],
                                    stderr=subprocess.PIPE, text=True)
        file = self.work / "kvtier.prom"
        once = export("--textfile", str(file))
        self.assertEqual((once.communicate()[1], once.returncode), ("", 0))
        self.assertEqual(stat.S_IMODE(file.stat().st_mode) & 0o444, 0o444)
        exposition.parse(file.read_text())
        again = export("--textfile", str(file), "--every", "1")
        inodes = set()
        self.until(lambda: not inodes.add((exposition.parse(file.read_text()), file.stat().st_ino)[1]) and
                   len(inodes) > 2)
        again.terminate()
        again.communicate()
        self.assertEqual([path.name for path in self.work.iterdir() if path.name.startswith("kvtier.prom")],
                         ["kvtier.prom"])
        for words, code, said in ((("--textfile", str(self.work / "no" / "f")), 1, "No such file"),
                                  (("--listen", "nowhere"), 1, "127.0.0.1:9810"),
                                  (("--listen", "localhost:http"), 1, "in numbers"),
                                  (("--listen", f"127.0.0.1:{self.address[1]}"), 1, "in use"),
                                  (("--listen", "unix:" + self.daemon.socket), 1, "another process"),
                                  (("--textfile", str(file), "--every", "0"), 64, "1 to 86400"),
                                  ((), 64, "--listen or --textfile")):
            bad = export(*words)
            self.assertIn(said, bad.communicate()[1])
            self.assertEqual(bad.returncode, code, words)


class Hostile(Exported):
    def test_requests_that_are_none(self):
        long = b"GET /metrics HTTP/1.0\r\nX: " + b"x" * 8192
        for request, answer in ((b"POST /metrics HTTP/1.1\r\n\r\n", b"405 "), (b"GET /x HTTP/1.0\n\n", b"404 "),
                                (b"GET /metrics\r\n\r\n", b"400 "), (b"\r\n\r\n", b"400 "), (long, b"431 "),
                                (b"\0" * 64 + b"\r\n\r\n", b"400 "), (b"GET  HTTP/1.0\r\n\r\n", b"400 "),
                                (os.urandom(512) + b"\n\n", b"400 "), (b"GET /metrics?a=b HTTP/1.0\r\n\r\n", b"200 "),
                                (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200 ")):
            got = self.says(request)
            self.assertTrue(got.startswith(b"HTTP/1.0 " + answer), (request[:40], got[:80]))
        self.assertTrue(got.endswith(b"\r\n\r\n"), "HEAD has no body")

    def test_clients_that_hold_their_connections(self):
        """More than there may be: some say nothing, some half a request, some read no answer."""
        held = [self.connect() for _ in range(2 * CONNECTIONS)]
        for i, made in enumerate(held):
            made.sendall((b"", b"GET /met", b"GET /metrics HTTP/1.0\r\n\r\n")[i % 3])
        self.assertEqual(self.page().value("kvtier_up"), 1)     # when their time is over
        for made in held:
            made.close()

    def test_clients_that_go(self):
        for request in (b"", b"GET /metrics", b"GET /metrics HTTP/1.0\r\n\r\n"):
            for _ in range(CONNECTIONS):
                made = self.connect()
                made.sendall(request)
                made.close()
        self.assertEqual(self.page().value("kvtier_up"), 1)
        self.assertIsNone(self.exporter.poll())


class Unix(Exported):
    def setUp(self) -> None:
        self.listen = f"unix:/tmp/kvtier-export-{os.getpid()}.sock"
        self.addCleanup(lambda: os.path.exists(self.listen[5:]) and os.unlink(self.listen[5:]))
        super().setUp()

    def test_a_unix_socket_serves(self):
        self.assertEqual(self.page().value("kvtier_up"), 1)
        self.assertEqual(stat.S_IMODE(os.stat(self.address).st_mode) & 0o007, 0)


if __name__ == "__main__":
    unittest.main()
