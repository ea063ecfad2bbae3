"""Finds settings of a trainer that conflict with an objective, and describes each in one line."""

from collections.abc import Iterator
from typing import Any

LIBRARIES = ("transformers", "trl")
# Trainers of these libraries that minimise the model's loss.
MODEL_LOSS_TRAINERS = ("Trainer", "Seq2SeqTrainer", "BaseTrainer", "_BaseTrainer")


def reads_logits(base: type) -> bool:
    """Return whether compute_loss of a class may read logits: True unless LIBRARIES define it."""
    return base.__module__.split(".")[0] not in LIBRARIES


def find_conflicts(trainer: Any) -> Iterator[str]:
    """Yield an error line for each setting of a trainer that conflicts with the objective."""
    args = trainer.args
    if args.label_smoothing_factor:
        yield (
            f"label_smoothing_factor is {args.label_smoothing_factor}; leave it out, and give "
            f"objective=Objective(..., label_smoothing={args.label_smoothing_factor})"
        )
    if getattr(trainer, "compute_loss_func", None) is not None:
        yield "compute_loss_func is another loss than the objective; leave it out"
    if getattr(args, "loss_type", "nll") not in ("nll", "chunked_nll"):
        yield f"loss_type {args.loss_type!r} is another loss than the objective; leave it out"
    liger = getattr(args, "liger_kernel_config", None) or {}
    if getattr(args, "use_liger_kernel", False) and liger.get("fused_linear_cross_entropy", True):
        yield (
            "use_liger_kernel puts Liger's loss into the model; give "
            'liger_kernel_config={"fused_linear_cross_entropy": False}'
        )
    if args.n_gpu > 1:
        yield f"nn.DataParallel would split a batch over {args.n_gpu} GPUs; start with torchrun"
    is_packed = getattr(args, "packing", False) or getattr(args, "eval_packing", False)
    peft = getattr(trainer.model, "active_peft_config", None)
    has_several_texts = is_packed or getattr(args, "padding_free", False)  # in a row
    if has_several_texts and getattr(peft, "is_prompt_learning", False):
        yield (
            f"{type(peft).__name__} does not accept position_ids, so packed captions would see "
            "each other; leave packing and padding_free out"
        )
    if set(trainer.smile_objective.weights) == {"mle"}:
        return  # MLE can be computed from parts of captions
    if is_packed and args.packing_strategy != "bfd":
        yield f'packing_strategy "{args.packing_strategy}" cuts captions into pieces; give "bfd"'
    parallel = getattr(getattr(trainer, "accelerator", None), "parallelism_config", None)
    for kind in ("cp", "sp"):
        if getattr(parallel, f"{kind}_enabled", False):
            yield (
                f'{kind}_size splits captions over processes; leave it out, or give objective="mle"'
            )
