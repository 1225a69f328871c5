# SPDX-License-Identifier: Apache-2.0
"""
Goal: systemd/grafana.json shows what there is: each query has an answer, each metric that it names is exported, and
each metric that is exported is on the board or in a list of exceptions.
Method: a Prometheus of the test's own scrapes an exporter each second while engines of two tenants store and load,
through host memory, NVMe and Redis. Then it is asked every query of every panel. A picture is drawn of the answers
where there is matplotlib. vLLM's series come from a page that stands in for an engine's.
"""
import fnmatch
import http.server
import json
import os
import random
import re
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

import exposition
import kvtier
from kvtier import Codec, Dtype, Geometry, Kind, Segment, SharedMemory
from llama_demo import Redis
from world import BUILD, PATIENT_S, TREE, Waits, started

BOARD = json.loads((TREE / "systemd" / "grafana.json").read_text())
# Where a panel shows the same in another form, and numbers for the time after an incident. A pattern each.
EXCEPTIONS = """
kvtier_exporter_build_info      of the exporter
kvtier_health                   its reasons are shown
kvtier_lists_up                 an alert
kvtier_clients_refused_total    kvtier_client_refusals_total is shown
kvtier_uptime_seconds           kvtier_start_time_seconds is shown
kvtier_process_virtual_memory_bytes  says little
kvtier_lookup_minute_*          rates of counters say it
kvtier_lookup_hour_*
kvtier_*_logical_bytes_total    tokens are shown
kvtier_reuse_*keys*             of the sample itself
kvtier_tier_evicted_*_seconds   `kvtierctl stats`
kvtier_tier_evicted_blocks_total    by reason
kvtier_tier_request_seconds     `kvtierctl stats`
kvtier_load_blocks_total        by tier
kvtier_store_ops_total          blocks are shown; *_duration_seconds counts ops, too
kvtier_store_tokens_total       of models
kvtier_store_dropped_blocks_total    by reason
kvtier_load_failed_blocks_total      by reason
kvtier_*_sparse_blocks_total         most of the reason no_page
kvtier_lookup_calls_total       blocks are shown
kvtier_gpu_*                    devices are shown
kvtier_tier_pinned_bytes        `kvtierctl devices`
kvtier_tier_near_slots_total    tuning of NUMA
kvtier_tier_far_slots_total
kvtier_tier_moved_blocks_total
kvtier_tier_disks               disks are shown
kvtier_tier_usable_disks
kvtier_tier_disk_written_bytes_total
kvtier_tier_read_errors_total
kvtier_tier_write_errors_total
kvtier_tier_recover*            once, at the start
kvtier_tier_residency_seconds
kvtier_tier_cod*_total          tuning of codecs
kvtier_tier_requantised_blocks_total
kvtier_tier_saved_bytes_total
kvtier_tier_read_ratio          of [redis] write = auto
kvtier_tier_endpoints           endpoints are shown
kvtier_tier_usable_endpoints
kvtier_tier_miss_blocks_total   gets less hits
kvtier_tier_other_form_blocks_total  upgrades
kvtier_tier_unasked_blocks_total
kvtier_tier_timeouts_total      endpoints are shown
kvtier_tier_errors_total
kvtier_tier_redirects_total
kvtier_tier_refused_hosts_total
kvtier_tier_topology_changes_total
kvtier_tier_protocol_errors_total
kvtier_tier_breaker_opens_total
kvtier_tier_reconnects_total
kvtier_hints_*                  `kvtierctl stats`
kvtier_clients_total            connections are shown
kvtier_clients_refused_total    the sum of refusals
kvtier_spaces_recycled_total    a reason of status
kvtier_index_crowded_blocks_total
kvtier_model_*blocks*           tokens are shown
kvtier_model_tokens
kvtier_model_spaces
kvtier_tenant_guaranteed        `kvtierctl tenants`
kvtier_device_jobs              its rate is shown
kvtier_device_own_bytes         `kvtierctl devices`
"""
TOKENS, HEADS, DIM, LAYERS = 16, 8, 64, 4
ROW = HEADS * DIM * 2
PLANE = TOKENS * ROW
PAGE = 2 * LAYERS * PLANE       # 128 KiB
PAGES, CHAIN = 64, 16           # of a client; blocks of a prompt
SECONDS = float(os.environ.get("DASHBOARD_SECONDS", "40"))


def queries():
    """Of each panel: its name, and a query of it without variables."""
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
            yield panel, target, expr


def names_in(expr: str) -> set:
    """The metrics that a query names."""
    return set(re.findall(r"\b(?:kvtier_|vllm:)\w+", re.sub(r'"[^"]*"', "", expr)))


class Vllm(http.server.BaseHTTPRequestHandler):
    """The page of an engine that is busy with 30 requests a second, in the names of vLLM."""
    began = time.monotonic()

    def do_GET(self):
        n = int((time.monotonic() - self.began) * 30)
        label = '{model_name="llama-3.1-8b"}'
        rows = [f"vllm:kv_cache_usage_perc{label} {0.6 + 0.3 * (n % 400) / 400:.3f}",
                f"vllm:num_requests_running{label} {8 + n % 5}", f"vllm:num_requests_waiting{label} {n % 7}",
                f"vllm:num_preemptions_total{label} {n // 90}",
                f"vllm:prefix_cache_queries_total{label} {900 * n}", f"vllm:prefix_cache_hits_total{label} {300 * n}",
                f"vllm:external_prefix_cache_queries_total{label} {600 * n}",
                f"vllm:external_prefix_cache_hits_total{label} {420 * n}"]
        for le, part in ((0.05, 0.4), (0.1, 0.7), (0.5, 0.95), (2, 1), ("+Inf", 1)):
            bucket = label.replace("}", f',le="{le}"}}')
            rows.append(f"vllm:time_to_first_token_seconds_bucket{bucket} {int(n * part)}")
        body = ("\n".join(rows) + "\n").encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Engine(threading.Thread):
    """Prompts of a model, some of them again and again: looks up, loads what is there, stores the rest."""

    def __init__(self, path: str, model: str, seed: int) -> None:
        super().__init__()
        self.path, self.model, self.random, self.stop = path, model, random.Random(seed), threading.Event()
        self.failed = None

    def run(self) -> None:
        try:
            client, memory = kvtier.Client(self.path, name=self.model), SharedMemory(PAGES * PAGE)
            memory.view[:] = b"\x3c\x00\xb8\x35" * (PAGES * PAGE // 4)
            segments = [Segment(kind, (2 * layer + i) * PLANE, PAGE, layer=layer, head_stride=2 * DIM, token_stride=ROW)
                        for layer in range(LAYERS) for i, kind in enumerate((Kind.K, Kind.V))]
            geometry = Geometry(self.model, "test", Dtype.BF16, LAYERS, HEADS, DIM, DIM, TOKENS)
            space = client.open_space(geometry._replace(codec=Codec.FP8), [memory.region()], segments)
            while not self.stop.wait(0.02):
                self.prompt(client, space)
            client.close()
            memory.close()
        except BaseException as error:      # the test says it
            self.failed = error

    def prompt(self, client, space) -> None:
        chain = min(int(self.random.paretovariate(0.6)), 400)
        keys = space.keys([chain * 4096 + i for i in range(self.random.randint(4, CHAIN) * TOKENS)])
        if self.random.random() < 0.1:
            client.wait(space.prefetch(keys))
        n = space.lookup(keys).blocks
        if n > 0:
            client.wait(space.load(keys[:n], range(n)))
        if n < len(keys):
            client.wait(space.store(keys[n:], range(n, len(keys))))


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Board(Waits):
    @classmethod
    def setUpClass(cls) -> None:
        clean = cls.addClassCleanup
        cls.work = Path(tempfile.mkdtemp(prefix="kvtier-board-"))
        clean(subprocess.run, ["rm", "-rf", str(cls.work)])
        redis = Redis(Redis.find(), cls.work)
        clean(redis.close)
        _, cls.daemon = started(clean, "[host]\nbytes = 24M\nslab_bytes = 4M\nhuge_pages = no\n[nvme]\nbytes = 256M\n"
                                f"[redis]\nendpoints = unix:{redis.socket}\nsecret_file = {redis.secret}\n"
                                "[socket acme]\npriority = 40\n")
        cls.exporter, cls.prometheus, cls.vllm = port(), port(), port()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", cls.vllm), Vllm)
        clean(server.server_close)
        clean(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cls.runs([str(BUILD / "kvtierctl"), "--socket", cls.daemon.socket, "export", "--listen",
                  f"127.0.0.1:{cls.exporter}"])
        (cls.work / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "5s"},
            "rule_files": [str(TREE / "systemd" / "alerts.yml")],
            "scrape_configs": [{"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]}
                               for name, at in (("kvtier", cls.exporter), ("vllm", cls.vllm))]}))
        cls.runs(["prometheus", f"--config.file={cls.work}/prometheus.yml", f"--storage.tsdb.path={cls.work}/data",
                  f"--web.listen-address=127.0.0.1:{cls.prometheus}", "--log.level=warn"])
        cls.until_ready()
        cls.load()

    @classmethod
    def runs(cls, words) -> None:
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.terminate)

    @classmethod
    def until_ready(cls) -> None:
        end = time.monotonic() + PATIENT_S
        while time.monotonic() < end:
            try:
                if cls.api("query", query='up{job="kvtier"}'):
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError("Prometheus does not scrape")

    @classmethod
    def load(cls) -> None:
        directory = cls.daemon.socket[:-len("kvtier.sock")]
        engines = [Engine(directory + name, model, seed) for seed, (name, model) in enumerate(
            (("kvtier.sock", "llama-3.1-8b"), ("kvtier.sock", "qwen2.5-7b"), ("kvtier-acme.sock", "llama-3.1-8b")))]
        cls.began = time.time()
        for engine in engines:
            engine.start()
        time.sleep(SECONDS)
        cls.ended = time.time()
        cls.answers = [(panel, target, expr, cls.api("query", query=expr)) for panel, target, expr in queries()]
        cls.scraped = urllib.request.urlopen(f"http://127.0.0.1:{cls.exporter}/metrics").read().decode()
        for engine in engines:
            engine.stop.set()
            engine.join()
            if engine.failed:
                raise engine.failed

    @classmethod
    def api(cls, call: str, **parameters) -> list:
        with urllib.request.urlopen(f"http://127.0.0.1:{cls.prometheus}/api/v1/{call}?" +
                                    urllib.parse.urlencode(parameters), timeout=PATIENT_S) as reply:
            return json.loads(reply.read())["data"]["result"]

    def test_each_query_has_an_answer(self):
        self.assertGreater(len(self.answers), 50)
        for panel, target, expr, answer in self.answers:
            with self.subTest(panel=panel["title"], query=expr):
                self.assertTrue(answer, "no series")
                self.assertTrue(any(row["value"][1] != "NaN" for row in answer), "no number")
                for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                    self.assertIn(label, answer[0]["metric"], "the legend's label is not in the answer")

    def test_each_metric_is_on_the_board(self):
        exported = set(exposition.parse(self.scraped).types)
        shown = {re.sub(r"_(bucket|sum|count)$", "", name) for _, _, expr in queries() for name in names_in(expr)}
        patterns = [line.split()[0] for line in EXCEPTIONS.split("\n") if line]
        self.assertEqual({name for name in shown if name.startswith("kvtier_")} - exported, set(), "not exported")
        unseen = {name for name in exported - shown if not any(fnmatch.fnmatch(name, p) for p in patterns)}
        self.assertEqual(unseen, set(), "neither on the board nor an exception")
        idle = {pattern for pattern in patterns if not fnmatch.filter(exported - shown, pattern)}
        self.assertEqual(idle, set(), "exceptions that are none any more")

    def test_promtool_takes_the_page(self):
        found = subprocess.run(["promtool", "check", "metrics"], input=self.scraped, capture_output=True, text=True)
        self.assertEqual((found.returncode, found.stdout + found.stderr), (0, ""))

    def test_no_alert_fires_on_a_node_that_is_well(self):
        firing = {row["metric"]["alertname"] for row in self.api("query", query='ALERTS{alertstate="firing"}')}
        self.assertEqual(firing, set())

    def test_each_alert_has_a_test_and_names_metrics_that_are_exported(self):
        rules = (TREE / "systemd" / "alerts.yml").read_text()
        tests = (TREE / "tests" / "dashboard" / "alerts_test.yml").read_text()
        for alert in re.findall(r"- alert: (\w+)", rules):
            self.assertIn(f'"{alert}"', tests)
        exprs = re.findall(r"^        expr: (.*(?:\n          .*)*)", rules, flags=re.M)
        named = {re.sub(r"_bucket$", "", name) for expr in exprs for name in names_in(expr)}
        self.assertGreater(len(named), 15)
        self.assertEqual(named - set(exposition.parse(self.scraped).types), set())

    def test_a_picture_is_drawn(self):
        try:
            import picture
        except ImportError as error:
            self.skipTest(f"no matplotlib here: {error}")
        series = {(panel["id"], target["refId"]): self.api("query_range", query=expr, start=self.began + 5,
                                                           end=self.ended, step=1) for panel, target, expr in queries()}
        file = Path(os.environ.get("PICTURE", BUILD / "dashboard.png"))
        picture.draw(BOARD, series, file)
        self.assertLess(file.stat().st_size, 150 << 10)


if __name__ == "__main__":
    unittest.main()
