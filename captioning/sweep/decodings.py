"""The decodings that a sweep compares, and the captions, scores and cost of each."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import torch
from torch import nn

from captioning.config import Config, parse_config
from captioning.data.randomness import derived_seed
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, part_of
from captioning.sweep.variants import Variant
from captioning.training.run_log import record_run
from captioning.training.split_evaluation import SplitEvaluation

DROPPED = 0.2  # share of images that are dropped in training for guidance
REFERENCE = "beam3"  # the decoding whose time is 1
COST = "cost.json"
JUDGE = "judge"
CHOICES = ("rerank_weight", "guidance_scale")  # keys that are chosen on the validation split


class Decoding(NamedTuple):
    """A decoding method.

    keys: the configuration keys that differ from the run's. dropped: it is used with captioners
    that were trained with these shares of images dropped.
    """

    label: str
    keys: dict
    dropped: tuple[float, ...] = (0.0,)


_BOTH = (0.0, DROPPED)
_GUIDANCE = {
    f"guidance{scale:g}": Decoding(f"guidance {scale:g}", {"guidance_scale": scale}, _BOTH)
    for scale in (1.25, 1.5, 2.0, 3.0)
}
_INFORMATION = {
    f"mmi{weight:g}": Decoding(
        f"20 samples, mutual information {weight:g}",
        {"rerank": "mmi", "rerank_weight": weight},
        _BOTH,
    )
    for weight in (0.25, 0.5, 1.0)
}
DECODINGS: dict[str, Decoding] = {
    "greedy": Decoding("greedy", {"num_beams": 1}),
    REFERENCE: Decoding("beam 3", {"num_beams": 3}, _BOTH),
    "nucleus": Decoding("nucleus 0.9", {"sample": True, "top_p": 0.9}),
    **_GUIDANCE,
    "contrastive": Decoding("contrastive", {"contrastive_alpha": 1.0}),
    **_INFORMATION,
    "mbr": Decoding("20 samples, minimum Bayes risk", {"rerank": "mbr"}),
    JUDGE: Decoding("20 samples, judge of another seed", {"rerank": "judge"}),
}


def read_decodings(text: str) -> list[str]:
    """Parse "greedy,mmi0.5" or "all" to names, and add the reference. Raises UserError."""
    names = list(DECODINGS) if text == "all" else text.split(",")
    for name in names:
        if name not in DECODINGS:
            raise UserError(f"{name!r} is no decoding; give some of {', '.join(DECODINGS)}, or all")
    return list(dict.fromkeys([REFERENCE, *names]))


def with_dropped(variants: Sequence[Variant], decodings: Sequence[str]) -> list[Variant]:
    """The variants with the mean image as the null; if needed, also variants for guidance."""
    shares = sorted({share for name in decodings for share in DECODINGS[name].dropped})
    return [
        variant._replace(
            name=f"{variant.name}_dropped" if share else variant.name,
            label=f"{variant.label}, images dropped" if share else variant.label,
            overrides=(*variant.overrides, "null_image=mean", f"drop_image={share:g}"),
            weight=None if share else variant.weight,
        )
        for share in shares
        for variant in variants
    ]


def decodings_of(config: Config, names: Sequence[str]) -> list[str]:
    """The decodings that are used with a captioner of this configuration."""
    return [name for name in names if config.drop_image in DECODINGS[name].dropped]


def folder_of(run: Path, name: str) -> Path:
    """The folder of a run's captions by the decoding `name`."""
    return run / "decodings" / name


def decode_run(config: Config, names: Sequence[str], judge: Optional[str]) -> None:
    """Caption and score the test split of a finished run with each remaining decoding.

    If a decoding's weight is chosen on the validation split, that split is scored, too. judge: the
    checkpoint of the judge. Raises UserError, Stopped.
    """
    run = Path(config.output_dir)
    device = distributed.start(config.device)
    best = str(checkpoints.best(run))
    captioner = None
    for name in decodings_of(config, names):
        keys = DECODINGS[name].keys
        splits = ["val", "test"] if any(key in keys for key in CHOICES) else ["test"]
        for split in splits:
            folder = folder_of(run, name)
            if (folder / f"{split}_{COST}").exists():
                continue
            if captioner is None:
                captioner = captioner_from(config, best)[0].to(device).eval()
            values = {**config.model_dump(), **samples_of(config), **keys, "pretrained": None}
            if keys.get("rerank") == JUDGE:
                values["rerank_judge"] = judge
            with part_of(f"{DECODINGS[name].label}:"):
                _decode(captioner, parse_config(values), split, folder, best)


def samples_of(config: Config) -> dict:
    """The keys for candidates that are samples of the whole distribution."""
    return {"top_p": 1.0, "top_k": 0, "num_beams": 3, "sample": False}


def _decode(captioner: nn.Module, config: Config, split: str, folder: Path, best: str) -> None:
    evaluation = SplitEvaluation(config, split, folder, distributed.start(config.device))
    torch.manual_seed(derived_seed("decoding", config.seed))
    counted = DecoderTokens(captioner)
    started = time.perf_counter()
    results = evaluation.caption(captioner)
    seconds = time.perf_counter() - started
    counted.close()
    record_run(config, folder / "result" / split, checkpoint=best)
    evaluation.score(results, split)
    cost = {"tokens": counted.tokens / len(results), "seconds": seconds / len(results)}
    write_json(cost, folder / f"{split}_{COST}")  # written last: it marks the decoding as done
    log_line(f"{cost['tokens']:.0f} decoder tokens, {1000 * cost['seconds']:.1f} ms per image")


def cost_of(run: Path, name: str, split: str = "test") -> dict[str, float]:
    """Decoder tokens and seconds per image."""
    return read_json(folder_of(run, name) / f"{split}_{COST}")


class DecoderTokens:
    """Counts the tokens that a captioner's decoder reads, also in copies of the captioner."""

    def __init__(self, captioner: nn.Module):
        self.tokens = 0
        size = len(captioner.tokenizer)
        embeddings = [
            module
            for module in captioner.modules()
            if isinstance(module, nn.Embedding) and module.num_embeddings == size
        ]

        def count(module, arguments) -> None:
            self.tokens += arguments[0].numel()

        self.hooks = [module.register_forward_pre_hook(count) for module in embeddings]

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
