"""What SMILE imports, in a process of its own, in which nothing else has imported more."""

import subprocess
import sys

CODE = """
import sys
import torch
import smile
print(sys.modules.keys() & {"smile.hf", "transformers", "torch._dynamo", "torch._inductor"})
objective = smile.Objective({"mle": 0.1, "smile": 0.4, "random": 0.5, "focal": 1, "gem": 1})
hidden, labels = torch.randn(1, 2, 3, requires_grad=True), torch.tensor([[1, 2]])
objective.from_hidden(hidden, torch.randn(4, 3), None, labels).loss.backward()
import smile.hf
print(sys.modules.keys() & {"transformers"})
"""


def test_neither_transformers_nor_torchs_compiler_is_imported():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["set()"] * 2
