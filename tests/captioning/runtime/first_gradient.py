"""Trains one epoch in one or more processes, and keeps the first gradient."""

from pathlib import Path

import torch

from captioning.config import load_config
from captioning.runtime import distributed
from captioning.training.fine_tuning import FineTuning
from tests.soak.processes import Processes


def first_gradient(path, folder, processes, *overrides):
    """Return each process's gradients by name. Saves its weights as weights_RANK.pth.

    path: of a configuration; folder: the run's.
    """
    arguments = [path, folder, "max_epoch=1", *overrides]
    run = Processes(_save, arguments, folder.with_name(f"{folder.name}.output"), processes)
    assert run.wait() == [0] * processes, run.said()
    return [torch.load(folder / f"gradient_{rank}.pth") for rank in range(processes)]


def _save(arguments):
    path, folder, *overrides = arguments
    config = load_config(path, overrides, {"output_dir": str(folder)})
    tuning = FineTuning(config, distributed.start("cpu"))
    names = {parameter: name for name, parameter in tuning.captioner.named_parameters()}
    tuning.captioner.eval()  # no dropout, which differs by process
    tuning.step.model.train = lambda: None

    def save(*_, **__):
        gradients = {name: parameter.grad for parameter, name in names.items()}
        torch.save(gradients, Path(folder) / f"gradient_{distributed.rank()}.pth")
        hook.remove()

    hook = tuning.optimizer.register_step_pre_hook(save)
    tuning._train_epoch(0)
    torch.save(tuning.captioner.state_dict(), Path(folder) / f"weights_{distributed.rank()}.pth")
    tuning.close()
    distributed.stop()
    return 0
