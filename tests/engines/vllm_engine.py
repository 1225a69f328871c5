# SPDX-License-Identifier: Apache-2.0
"""vllm_engine.py FD FD MODEL SOCKET [OPTIONS] - a process that answers prompts by vLLM on the CPU.

engine_process.py says how it is asked. If SOCKET is "", it runs without kvtier. OPTIONS is a JSON object, see OPTIONS
below. The engine's own prefix cache is off, unless `llm` says otherwise, so that a prefix comes from kvtier alone.
"""
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import random
import sys
import time

# scheduler and worker in this process, and a fixed number of threads: rounding depends on it
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0-1")
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1")

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.inputs import TokensPrompt  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402

from engine_process import serve, stops_around  # noqa: E402

VOCABULARY = 1000
# codec: of kvtier, "" for its default. extra: more of kv_connector_extra_config. connector: another one than kvtier's.
# events: an endpoint of ZeroMQ. llm: what LLM() is told beside the rest. timed: kvtier's calls are measured
OPTIONS = {"codec": "raw", "connector": None, "dtype": "float32", "events": "", "extra": {}, "llm": {}, "timed": False}


def connector(socket: str, options: dict) -> dict:
    return {"kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.vllm", "kv_role": "kv_both",
            "kv_connector_extra_config": {"socket": socket, "timeout_ms": 2000, "codec": options["codec"],
                                          **options["extra"]}}


def prompt(seed: int, n: int) -> list:
    numbers = random.Random(seed)
    return [numbers.randrange(3, VOCABULARY) for _ in range(n)]


def image(seed: int):
    from PIL import Image
    return Image.frombytes("RGB", (56, 56), random.Random(seed).randbytes(56 * 56 * 3))


def counters(llm: LLM) -> dict:
    return {m.name: m.value for m in llm.get_metrics()
            if ("kvtier" in m.name or "preemptions" in m.name) and hasattr(m, "value")}


def subscribe(endpoint: str):
    """Returns a function that gives the KV events since its last call."""
    import msgspec
    import zmq
    from vllm.distributed.kv_events import KVEventBatch
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.connect(endpoint)
    socket.setsockopt_string(zmq.SUBSCRIBE, "")
    decoder = msgspec.msgpack.Decoder(KVEventBatch)

    def events() -> list:
        ret = []
        while socket.poll(500):
            for event in decoder.decode(socket.recv_multipart()[-1]).events:
                ret.append([type(event).__name__, len(getattr(event, "block_hashes", ())),
                            getattr(event, "medium", None), len(getattr(event, "token_ids", ())),
                            getattr(event, "kv_cache_spec_kind", None)])
        return ret

    return events


def waited_s() -> float:
    """How long this thread was ready, and others had the processors."""
    with open("/proc/thread-self/schedstat") as said:
        return int(said.read().split()[1]) / 1e9


def measure() -> dict:
    """Of each call that vLLM makes to kvtier's connector, in milliseconds: the first one; the longest one, without the
    time in which others had the processors; most processor time of one. And of the first load, until its result was
    taken."""
    from kvtier import vllm
    from kvtier.adapters import vllm_core
    ret = {}

    def wrap(name: str, inner) -> None:
        @functools.wraps(inner)
        def timed(*arguments, **named):
            before = waited_s(), time.monotonic(), time.thread_time()
            try:
                return inner(*arguments, **named)
            finally:
                used, took = time.thread_time() - before[2], time.monotonic() - before[1]
                own = took - (waited_s() - before[0])
                of = ret.setdefault(name, {"calls": 0, "first": 1000 * took, "longest": 0, "processor": 0})
                of["calls"] += 1
                of["longest"] = max(of["longest"], 1000 * own)
                of["processor"] = max(of["processor"], 1000 * used)

        setattr(vllm.KvtierConnector, name, timed)

    def ended(worker, result) -> None:
        running = worker._running.get(result.user)
        if running and running.load:
            ret.setdefault("load", {"first": 1000 * (time.monotonic() - running.begun)})
        inner_ended(worker, result)

    inner_ended, vllm_core.Worker._take = vllm_core.Worker._take, ended
    for name, inner in list(vars(vllm.KvtierConnector).items()):
        if callable(inner) and not name.startswith("_"):
            wrap(name, inner)
    return ret


def known() -> dict:
    """Says what not every release has: whether a connector may serve several KV cache groups, events the kind of a
    group, and requests hints."""
    from vllm.distributed import kv_events
    from vllm.distributed.kv_transfer.kv_connector.v1 import base
    return {"groups": hasattr(base, "KVConnectorTransferResults"),
            "kinds": hasattr(kv_events.BlockStored, "kv_cache_spec_kind"),
            "hints": importlib.util.find_spec("vllm.v1.kv_hints") is not None}


def look_at_modules_with_care() -> None:
    """vLLM 0.32.0 takes vars() of everything that any module has, and ends when LMCache has brought llvmlite along:
    an object there answers to every name, __dict__ too, and not with a dictionary."""
    from vllm.triton_utils import dispatcher
    dispatcher.vars = lambda of: found if isinstance(found := vars(of), (dict, type(vars(type)))) else {}


@contextlib.contextmanager
def hinted(llm: LLM, hints: list):
    """Gives requests these kv_hints, (type, payload), as generate() does not take them."""
    if hints:
        from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope
        actions = [KvHintAction(f"a{i}", kind, "1", payload) for i, (kind, payload) in enumerate(hints)]
        engine = llm.llm_engine
        engine.add_request = functools.partial(engine.add_request, kv_hints=KvHintsEnvelope("1", "m", actions))
    yield
    if hints:
        del engine.add_request


def main() -> None:
    model, socket = sys.argv[3:5]
    options = {**OPTIONS, **json.loads(sys.argv[5] if len(sys.argv) > 5 else "{}")}
    how = {"block_size": 32, "max_model_len": 2048, "enable_prefix_caching": False, "enforce_eager": True,
           "skip_tokenizer_init": True, **options["llm"]}
    timed = measure() if options["timed"] else {}
    if options["events"]:
        how["kv_events_config"] = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": options["events"]}
    if options["connector"]:
        look_at_modules_with_care()
    llm = LLM(model, dtype=options["dtype"], disable_log_stats=False, max_logprobs=VOCABULARY,
              kv_transfer_config=connector(socket, options) if socket else options["connector"], **how)
    events = subscribe(options["events"].replace("*", "127.0.0.1")) if options["events"] else lambda: []

    def answer(question: dict) -> dict:
        if question.get("reset"):
            return {"reset": llm.reset_prefix_cache(reset_connector=True)}
        if question.get("prefixes"):
            return {"reset": llm.reset_prefix_cache()}
        if question.get("sleeps"):
            llm.sleep(1)
            return {"awake": llm.wake_up()}
        if question.get("weights"):
            llm.collective_rpc("reload_weights", kwargs={"weights_path": question["weights"]})
            return {}
        if question.get("knows"):
            return known()
        if question.get("timed"):       # since it was asked last
            said = dict(timed)
            timed.clear()
            return {"timed": said}
        if question.get("counters"):
            return {"counters": counters(llm), "events": events()}
        beside = {"cache_salt": question["salt"]} if question.get("salt") else {}
        more = question.get("more", [[]] * len(question["seeds"]))      # tokens after these
        numbers = [prompt(seed, question["tokens"]) + then for seed, then in zip(question["seeds"], more)]
        if question.get("image"):       # its number, and the token that it is in front of
            number, at = question["image"]
            beside["multi_modal_data"] = {"image": image(number)}
            numbers = [own[:at] + [VOCABULARY] + own[at:] for own in numbers]
        prompts = [TokensPrompt(prompt_token_ids=own, **beside) for own in numbers]
        how = SamplingParams(temperature=0, max_tokens=question.get("answer", 16), ignore_eos=True, detokenize=False,
                             logprobs=VOCABULARY if question.get("logprobs") else None,
                             extra_args={"kv_transfer_params": question.get("parameters", {})})
        if question.get("stop"):
            stops_around(question["stop"])
        lora = LoRARequest("adapter", 1, question["lora"]) if question.get("lora") else None
        begun = time.monotonic()
        with hinted(llm, question.get("hints")):
            outputs = llm.generate(prompts, how, use_tqdm=False, lora_request=lora)
        seconds = time.monotonic() - begun
        ret = {"seconds": seconds, "tokens": [list(o.outputs[0].token_ids) for o in outputs],
               "cached": [o.num_cached_tokens for o in outputs]}
        if question.get("busy"):        # as an engine of this process knows
            ret["busy"] = llm.llm_engine.engine_core.engine_core.scheduler.connector._scheduler.busy
        if question.get("logprobs"):
            rows = [[[row[i].logprob for i in range(VOCABULARY)] for row in o.outputs[0].logprobs] for o in outputs]
            ret["logprobs"] = [of[0] for of in rows]        # of the first token of each answer
            ret["digests"] = [hashlib.sha256(repr(of).encode()).hexdigest() for of in rows]     # of all of them
        return ret

    serve(answer)


if __name__ == "__main__":
    main()
