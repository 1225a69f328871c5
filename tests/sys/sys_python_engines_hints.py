# SPDX-License-Identifier: Apache-2.0
# make: lane=wait seconds=10
# make: no=address,thread (it loads libkvtier into programs without a sanitizer)
"""
Goal: the kv_hints of a vLLM request do to blocks what daemon/HINTS.md says, and a wrong one does nothing else.
Method: the scheduler and worker of sys_python_engines.py, against a kvtierd of its own.
"""
import signal
import unittest
from types import SimpleNamespace

from kvtier import Action
from kvtier.adapters.vllm_hints import MAX_ACTIONS, MAX_UNDER_WAY, Hint, hints_of
from sys_python_engines import PagedEngine
from world import World


def envelope(*actions) -> SimpleNamespace:
    """As vLLM's: (type, payload), or with a version between."""
    return SimpleNamespace(protocol_version="1", message_id="m", actions=[
        SimpleNamespace(action_id=f"a{i}", action_type=a[0], action_version=a[1] if len(a) == 3 else "1", payload=a[-1])
        for i, a in enumerate(actions)])


class Read(unittest.TestCase):
    def read(self, *actions):
        said = []
        return hints_of(envelope(*actions), said.append), said

    def test_each_field_comes_through(self):
        hints, said = self.read(("retain", {"tokens": 64, "session": 7, "turn_number": 2, "ttl_s": 60, "priority": -5}),
                                ("PIN", {}), ("ended", {"scope": "session", "session": "chat"}),
                                ("superseded", "1.2", {"scope": "revision"}))
        self.assertEqual(said, [])
        self.assertEqual(hints[0], Hint(Action.RETAIN, "prompt", 64,
                                        {"turn_number": 2, "ttl_s": 60, "priority": -5, "session": 7}))
        self.assertEqual(hints[1], Hint(Action.PIN, "prompt", None, {}))
        self.assertEqual(hints[3], Hint(Action.SUPERSEDED, "revision", None, {"revision": True}))
        self.assertGreater(hints[2].options["session"], 2 ** 32)

    def test_a_session_has_one_number_everywhere(self):
        numbers = [self.read(("pin", {"session": name}))[0][0].options["session"] for name in ("a", "b", "a")]
        self.assertEqual(numbers[0], numbers[2])
        self.assertNotEqual(numbers[0], numbers[1])
        self.assertEqual(numbers[0], 0xcabd1bca128197ca, "of SHA-256: another start of Python has no other one")

    def test_what_is_wrong_is_named_and_left_out(self):
        for action, word in ((("pin", {"ttl_s": -1}), "ttl_s"), (("pin", {"ttl_s": "60"}), "ttl_s"),
                             (("pin", {"turn_number": True}), "turn_number"),
                             (("retain", {"priority": 101}), "priority"), (("pin", {"scope": "world"}), "scope"),
                             (("pin", {"scope": "session"}), "no session"),
                             (("ended", {"scope": "revision", "session": 1}), "session"), (("pin", "2", {}), "version"),
                             (("pin", {"session": ""}), "session"), (("pin", {"session": 2 ** 64}), "session"),
                             (("pin", {"tokens": 0}), "tokens"), (("pin", {"colour": 1}), "colour"),
                             (("pin", 5), "a0"), (("pin", {"scope": ["prompt"]}), "scope")):
            hints, said = self.read(action, ("pin", {}))
            self.assertEqual(hints, [Hint(Action.PIN, "prompt", None, {})], action)
            self.assertEqual(len(said), 1)
            self.assertIn(word, said[0])

    def test_actions_of_others_are_left_alone(self):
        self.assertEqual(self.read(("kvcr.move", {"to": "x"})), ([], []))
        self.assertEqual(hints_of(None, self.fail), [])

    def test_there_is_a_most_of_actions(self):
        hints, said = self.read(*[("pin", {})] * (MAX_ACTIONS + 3))
        self.assertEqual((len(hints), len(said)), (MAX_ACTIONS, 3))


class Said(World):
    TOKENS = list(range(83))        # ten full blocks

    def engine(self, **how) -> PagedEngine:
        engine = PagedEngine(self.daemon, **how)
        self.addCleanup(engine.close)
        return engine

    def answers(self, engine: PagedEngine, n: int):
        """When so many blocks, sessions or revisions at least have been answered for, and nothing is under way."""
        hints = engine.scheduler.hints
        self.until(lambda: engine.scheduler.take_loads() or sum(hints.answers) >= n and not hints._under_way)
        return hints.answers

    def hints(self, *actions):
        return hints_of(envelope(*actions), self.fail)

    def until_kept(self, some: bool) -> None:
        """Gauges are written now and then."""
        self.until(lambda: (self.daemon.stats()["hints"]["kept_bytes"] > 0) == some)

    def test_a_new_prompt_is_kept_once_it_is_saved(self):
        engine = self.engine()
        engine.answer(self.TOKENS, hints=self.hints(("retain", {"priority": 50, "ttl_s": 600})))
        got = self.answers(engine, 20)
        self.assertEqual((got.missing, got.accepted), (10, 10), "before it was saved, and after")
        self.until_kept(True)

    def test_a_part_of_a_prompt_is_a_part(self):
        engine = self.engine()
        engine.answer(self.TOKENS)
        engine.answer(self.TOKENS, hints=self.hints(("pin", {"tokens": 47})))      # five full blocks
        self.assertEqual(self.answers(engine, 10).accepted, 10, "five, said twice")

    def test_every_rank_and_group_hears_of_its_prompt(self):
        engine = self.engine(ranks=2)
        engine.answer(self.TOKENS)
        engine.answer(self.TOKENS, hints=self.hints(("release", {})))
        self.assertEqual(self.answers(engine, 40).accepted, 40)

    def test_a_session_is_ended_by_another_request(self):
        engine = self.engine(ranks=2)
        engine.answer(self.TOKENS, hints=self.hints(("pin", {"session": "chat"})))
        self.answers(engine, 40)
        self.until_kept(True)
        before = self.answers(engine, 40).accepted
        engine.answer([5] * 9, hints=self.hints(("ended", {"scope": "session", "session": "chat"})))
        self.assertEqual(self.answers(engine, 60).accepted - before, 20, "said once: it is the tenant's")
        self.until_kept(False)

    def test_a_revision_is_retired_once(self):
        engine = self.engine(ranks=2)
        engine.answer(self.TOKENS)
        engine.answer([5] * 9, hints=self.hints(("superseded", {"scope": "revision"})))
        self.assertEqual(sum(self.answers(engine, 1)), 1, "one hint retires every space of the model")
        self.assertEqual(engine.scheduler.hints.answers.accepted, 1)

    def test_a_daemon_that_is_away_costs_hints_alone(self):
        engine = self.engine()
        engine.answer(self.TOKENS)
        self.daemon.kill()
        for _ in range(3):
            engine.answer(self.TOKENS, hints=self.hints(("pin", {}), ("ended", {"scope": "session", "session": 1})))
        self.until(lambda: engine.scheduler.take_loads() or engine.scheduler.hints.unsaid >= 3)

    def test_a_daemon_that_stands_still_has_a_most_of_hints(self):
        engine = self.engine()
        engine.answer(self.TOKENS)
        self.daemon.process.send_signal(signal.SIGSTOP)
        for i in range(MAX_UNDER_WAY + 20):
            engine.scheduler.add(f"s{i}", lambda: self.TOKENS, None, self.hints(("pin", {})))
        self.assertGreaterEqual(engine.scheduler.hints.unsaid, 20)
        self.daemon.process.send_signal(signal.SIGCONT)
