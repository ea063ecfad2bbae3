"""What a trainer is, or is told, that cannot be together with an objective: a line each."""

from collections.abc import Iterator
from typing import Any


def of_trl(trainer: type) -> bool:
    return trainer.__module__.partition(".")[0] == "trl"


def other_losses(trainer: type) -> Iterator[str]:
    for base in trainer.__mro__:
        if of_trl(base) and base.__name__ not in ("SFTTrainer", "_BaseTrainer"):
            yield f"{base.__name__} of TRL has a loss of its own; SmileLossMixin is for SFTTrainer"


def conflicts(trainer: Any) -> Iterator[str]:
    """trainer: one that has been made, before it trains."""
    args = trainer.args
    if args.label_smoothing_factor:
        factor = args.label_smoothing_factor
        yield (
            f"label_smoothing_factor is {factor}; leave it out, and give "
            f"objective=Objective(..., label_smoothing={factor})"
        )
    if getattr(trainer, "compute_loss_func", None) is not None:
        yield "compute_loss_func is another loss than the objective; leave it out"
    if getattr(args, "loss_type", "nll") != "nll":
        yield f"loss_type {args.loss_type!r} is another loss than the objective; leave it out"
    liger = getattr(args, "liger_kernel_config", None) or {}
    if getattr(args, "use_liger_kernel", False) and liger.get("fused_linear_cross_entropy", True):
        yield (
            "use_liger_kernel puts Liger's loss into the model; give "
            'liger_kernel_config={"fused_linear_cross_entropy": False}'
        )
    if args.n_gpu > 1:
        yield f"nn.DataParallel would divide a batch over {args.n_gpu} GPUs; start with torchrun"
    packed = getattr(args, "packing", False) or getattr(args, "eval_packing", False)
    peft = getattr(trainer.model, "active_peft_config", None)
    if (packed or getattr(args, "padding_free", False)) and getattr(peft, "is_prompt_learning", 0):
        yield (
            f"{type(peft).__name__} takes no position_ids, so packed captions would see each "
            "other; leave packing and padding_free out"
        )
    if set(trainer.smile_objective.weights) == {"mle"}:
        return  # its captions may be cut
    if packed and args.packing_strategy != "bfd":
        yield f'packing_strategy "{args.packing_strategy}" cuts captions in pieces; give "bfd"'
    parallel = getattr(getattr(trainer, "accelerator", None), "parallelism_config", None)
    for kind in ("cp", "sp"):
        if getattr(parallel, f"{kind}_enabled", False):
            yield f"{kind}_size divides captions between processes; MLE alone can be trained so"
