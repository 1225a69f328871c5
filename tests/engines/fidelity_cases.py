# SPDX-License-Identifier: Apache-2.0
"""fidelity_cases.py - the rules of tests/bench/fidelity_rules.py, each against values of its publication or against the
rule said value by value. transformers_test.py runs them, as they need torch."""
import bisect
import math
import sys
import unittest
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import fidelity_rules as rules  # noqa: E402

E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)         # by code
MAX_1960 = (0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733)


def vectors(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


class FidelityRules(unittest.TestCase):
    def test_nvfp4_takes_the_nearest_of_its_values_and_the_even_code_of_two(self):
        at, nearest = torch.arange(0, 6.01, 1 / 16), []
        for value in at.tolist():
            code = bisect.bisect_left(E2M1, value)
            under, over = max(0, code - 1), code
            down, up = value - E2M1[under], E2M1[over] - value
            nearest.append(E2M1[over if up < down or (up == down and over % 2 == 0) else under])
        for sign in (1, -1):
            for value, want in zip(at.tolist(), nearest):
                group = torch.full((16,), 6.0)      # its scale is 1
                group[0] = sign * value
                self.assertEqual(rules.nvfp4(group)[0].item(), sign * want, value)

    def test_nvfp4_has_a_scale_for_16_values(self):
        values = vectors(1, 3, 64)
        together = rules.nvfp4(values)
        for i in range(0, 64, 16):
            self.assertTrue(torch.equal(rules.nvfp4(values[:, i:i + 16]), together[:, i:i + 16]))
        self.assertTrue(torch.equal(rules.nvfp4(values * 16), together * 16))
        self.assertFalse(torch.equal(rules.nvfp4(values * 1.25), together * 1.25))      # a scale has 3 bits of mantissa
        self.assertEqual(rules.nvfp4(torch.zeros(16)).tolist(), [0] * 16)

    def test_lloyd_max_levels_are_the_published_ones(self):
        levels = rules.lloyd_max(16).tolist()
        for got, want in zip(levels, [-level for level in reversed(MAX_1960)] + list(MAX_1960)):
            self.assertAlmostEqual(got, want, delta=0.0005)

    def test_the_rotation_is_orthonormal_and_its_own_inverse(self):
        for dim in (2, 64, 128):
            turn = rules.hadamard(dim)
            self.assertTrue(torch.allclose(turn @ turn, torch.eye(dim), atol=1e-5))
            self.assertEqual(set((turn.abs() * math.sqrt(dim)).round(decimals=4).flatten().tolist()), {1.0})

    def test_keys_keep_their_norm_and_most_of_their_direction(self):
        keys = vectors(2, 512, 64).float()
        back = rules.turboquant_keys(keys)
        self.assertTrue(torch.allclose(back.norm(dim=-1), keys.norm(dim=-1), rtol=1e-3))
        error = ((back - keys).square().sum() / keys.square().sum()).item()
        self.assertAlmostEqual(error, 0.0095, delta=0.0008)     # Max's distortion of 16 levels: 0.009497
        self.assertEqual(rules.turboquant_keys(torch.zeros(64)).abs().max().item(), 0)

    def test_values_have_even_steps_from_the_least_to_the_greatest(self):
        values = vectors(3, 64, 64).float()
        back = rules.turboquant_values(values)
        least, greatest = values.amin(dim=-1), values.amax(dim=-1)
        step = (greatest - least) / 15
        self.assertTrue(torch.allclose(back.amin(dim=-1), least, atol=2e-3))
        self.assertTrue(torch.allclose(back.amax(dim=-1), greatest, atol=2e-2))
        self.assertLess(((back - values).abs().amax(dim=-1) / step).max().item(), 0.53)
        self.assertTrue(all(len(row.unique()) <= 16 for row in back))
