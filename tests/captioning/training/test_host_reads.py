"""How often a training step makes the host wait for the device."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class HostReads(TorchDispatchMode):
    """Counts the scalars read by `item`, `if` or `float`, for each of which a host waits."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(keywords or {}))


def test_a_step_reads_no_scalars_one_by_one(run, monkeypatch):
    """All that is read of a step is one list, so that a GPU is waited for once."""
    tuning = run("accumulation_steps=3", "clip_grad_norm=1.0", "max_epoch=1")
    step, reads = tuning._optimiser_step, []
    forward = tuning.captioner.forward

    def counted(batches, number):
        batches = iter(list(batches))
        with HostReads() as mode:
            result = step(batches, number)
        reads.append(mode.count)
        return result

    def uncounted(*arguments):
        with torch.utils._python_dispatch._disable_current_modes():
            return forward(*arguments)

    monkeypatch.setattr(tuning, "_optimiser_step", counted)
    monkeypatch.setattr(tuning.captioner, "forward", uncounted)
    tuning._train_epoch(0)
    assert reads == [0]
