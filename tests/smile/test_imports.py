"""What plain SMILE imports, in a process of its own, in which nothing else has imported more."""

import subprocess
import sys

CODE = """
import sys

def imported():
    return {name.partition("smile.")[2] for name in sys.modules if name.startswith("smile.")}

from smile import Objective
Objective({"mle": 0.01, "smile": 0.99})
plain = imported()
print(*sorted(plain))
import smile.hf
Objective("smile")
models = imported()
print(*sorted(models - plain))
Objective("focal")
from smile.hf import SmileLossMixin
print(*sorted(imported() - models))
print(*sys.modules.keys() & {"captioning", "transformers", "trl"})
"""


def test_what_is_not_named_is_not_imported():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert [line.split() for line in done.stdout.splitlines()] == [
        [
            *("alternatives", "captions", "from_hidden", "head", "labels", "loading", "mixture"),
            *("mle", "objective", "operator", "smile", "subsetting"),
        ],
        [
            *("hf", "hf.auxiliary", "hf.families", "hf.forward", "hf.head", "hf.head_table"),
            *("hf.misuse_checks", "hf.packed", "hf.refusal"),
        ],
        [
            *("alternatives.focal", "alternatives.interface", "hf.conflicts", "hf.running_means"),
            "hf.trainer",
        ],
        [],
    ]
