"""The decodings that a sweep compares, and the captions, scores and cost of each."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import torch
from torch import nn

from captioning.config import Config, parse_config
from captioning.data.randomness import derived_seed
from captioning.files.cache import cache_key
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.models.generation import caption_images
from captioning.models.reranking import load_judge
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, part_of
from captioning.sweep.variants import Variant
from captioning.training.run_log import record_run
from captioning.training.split_evaluation import SplitEvaluation

DROPPED = 0.2  # share of images that are dropped in training for guidance
REFERENCE = "beam3"  # the decoding whose time is 1
COST = "cost.json"
OF_DROPPED = ", images dropped"  # ends the labels of captioners that are trained for guidance
JUDGE = "judge"
# The candidates are samples of the whole distribution; all else is searched with three beams.
SAMPLES = {"top_p": 1.0, "top_k": 0, "num_beams": 3, "sample": False}
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


def shares_of(decodings: Sequence[str]) -> list[float]:
    """The shares of dropped images that captioners for these decodings are trained with."""
    return sorted({share for name in decodings for share in DECODINGS[name].dropped})


def with_dropped(variants: Sequence[Variant], shares: Sequence[float]) -> list[Variant]:
    """Each variant once per share of dropped images, with the mean image as the null."""
    return [
        variant._replace(
            name=f"{variant.name}_dropped" if share else variant.name,
            label=f"{variant.label}{OF_DROPPED}" if share else variant.label,
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
    best = checkpoints.best(run)

    def work_of(name: str, split: str) -> _Work:
        keys = DECODINGS[name].keys
        values = {**config.model_dump(), **SAMPLES, **keys, "pretrained": None}
        if keys.get("rerank") == JUDGE:
            values["rerank_judge"] = judge
        return _Work(parse_config(values), split, folder_of(run, name), best)

    left = []
    for name in decodings_of(config, names):
        chosen = any(key in DECODINGS[name].keys for key in CHOICES)
        works = [work_of(name, split) for split in (["val", "test"] if chosen else ["test"])]
        left += [(DECODINGS[name].label, work) for work in works if not work.is_done()]
    if not left:
        return
    captioner, _ = captioner_from(config, str(best))
    captioner = captioner.to(distributed.start(config.device)).eval()
    # The reference is timed by the process that its time is compared in.
    seconds = work_of(REFERENCE, "test").caption(captioner).seconds
    for label, work in left:
        with part_of(f"{label}:"):
            work.do(captioner, seconds)


class _Captioned(NamedTuple):
    """Captions of a split, their cost per image, and what scores them."""

    results: list[dict]
    tokens: float
    seconds: float
    evaluation: SplitEvaluation


class _Work(NamedTuple):
    """A decoding of a split of a run. best: the checkpoint."""

    config: Config
    split: str
    folder: Path
    best: Path

    def is_done(self) -> bool:
        """Whether the captions are of these weights, this judge and this configuration."""
        path = self.folder / f"{self.split}_{COST}"
        return path.exists() and read_json(path).get("of") == self._of()

    def do(self, captioner: nn.Module, reference: float) -> None:
        """Caption and score. reference: seconds per image of REFERENCE."""
        found = self.caption(captioner)
        result = self.folder / "result" / self.split
        record_run(self.config, result, checkpoint=str(self.best))
        found.evaluation.score(found.results, self.split)
        cost = {"tokens": found.tokens, "time": found.seconds / reference, "of": self._of()}
        write_json(cost, self.folder / f"{self.split}_{COST}")  # the last file: the work is done
        log_line(f"{found.tokens:.0f} decoder tokens per image, {cost['time']:.1f} times beam 3")

    def caption(self, captioner: nn.Module) -> _Captioned:
        """The captions and their cost, after a first batch that is not counted."""
        device = distributed.start(self.config.device)
        evaluation = SplitEvaluation(self.config, self.split, self.folder, device)
        decoders = [captioner]
        if self.config.rerank == JUDGE:
            decoders.append(load_judge(self.config.rerank_judge, device)[1])
        first = evaluation.samples[: self.config.eval_batch_size or self.config.batch_size]
        caption_images(captioner, first, self.config, device, "warm-up")
        torch.manual_seed(derived_seed("decoding", self.config.seed))
        counted = DecoderTokens(*decoders)
        started = time.perf_counter()
        results = evaluation.caption(captioner)
        seconds = time.perf_counter() - started
        counted.close()
        images = len(results)
        return _Captioned(results, counted.tokens / images, seconds / images, evaluation)

    def _of(self) -> str:
        files = [str(self.best), *filter(None, [self.config.rerank_judge])]
        made_with = self.config.model_dump_json(exclude={"output_dir", "device"})
        return cache_key(made_with + str([Path(file).stat().st_mtime_ns for file in files]))


def cost_of(run: Path, name: str, split: str = "test") -> dict[str, float]:
    """Decoder tokens per image, and the time relative to REFERENCE."""
    return read_json(folder_of(run, name) / f"{split}_{COST}")


class DecoderTokens:
    """Counts the tokens that captioners' decoders read, also in copies of the captioners."""

    def __init__(self, *captioners: nn.Module):
        self.tokens = 0
        embeddings = [
            module
            for captioner in captioners
            for module in captioner.modules()
            if isinstance(module, nn.Embedding)
            and module.num_embeddings == len(captioner.tokenizer)
        ]

        def count(module, arguments) -> None:
            self.tokens += arguments[0].numel()

        self.hooks = [module.register_forward_pre_hook(count) for module in embeddings]

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
