"""The parts of a run, each a process of its own, the one that is worth most first."""

from typing import NamedTuple

CAPTIONER = ("torchvision", "timm", "transformers", "huggingface_hub", "filelock", "safetensors")
IMAGES = ("numpy", "PIL", "tqdm", "torchvision")
CAPTIONED = (*CAPTIONER, *IMAGES)
TRAINING = (*CAPTIONED, "pydantic", "ruamel.yaml", "tensorboard")

NO_GPU = "there is no CUDA GPU that torch can use; --rehearse does the same on the CPU"


class Part(NamedTuple):
    """Checks, the modules of tests/gpu, and then what benchmarks/gpu/NAME.py measures, if anything.

    needs: what it imports besides torch. share: of the time, relative to the others'.
    """

    name: str
    about: str
    share: float
    needs: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    measures: bool = False


PARTS = (
    Part("ceilings", "what the card can do", 4, measures=True),
    Part("objective", "losses, gradients, their time", 12, (), ("test_objective",), True),
    Part("captioning", "tokens, captions a second", 40, CAPTIONED, ("test_captioning",), True),
    Part("training", "steps, images a second", 22, CAPTIONER, ("test_training",), True),
    Part("runs", "resume, evidence, memory", 10, TRAINING, ("test_runs",)),
    Part("processes", "NCCL, FSDP2", 6, CAPTIONER, ("test_processes",)),
    Part("input", "prefetching, loaders", 6, IMAGES, ("test_prefetching",), True),
)
