"""Run by test_distributed.py under torchrun: save a run's first gradient, and its first epoch.

python -m captioning.launch ... first_gradient.py CONFIG OUTPUT_DIR [key=value ...]
"""

import sys
from pathlib import Path

import torch

from captioning.config import load_config
from captioning.runtime import distributed
from captioning.training.fine_tuning import FineTuning


def main(path, folder, *overrides):
    config = load_config(path, overrides, {"output_dir": folder})
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


if __name__ == "__main__":
    main(*sys.argv[1:])
