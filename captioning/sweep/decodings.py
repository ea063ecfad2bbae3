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
from captioning.runtime.progress import bar_prefix, log_line
from captioning.sweep.variants import Variant
from captioning.training.run_log import record_run
from captioning.training.split_evaluation import SplitEvaluation

DROP_SHARE = 0.2  # `drop_image` of captioners trained for guidance: the share of dropped images
TIME_REFERENCE = "beam3"  # the decoding whose time is 1
COST_FILE = "cost.json"
DROPPED_SUFFIX = ", images dropped"  # ends the labels of captioners that are trained for guidance
JUDGE = "judge"
# Rerankers sample candidates from the full distribution. Other decodings use 3 beams by default.
DEFAULT_KEYS = {"top_p": 1.0, "top_k": 0, "num_beams": 3, "sample": False}
TUNED_KEYS = ("rerank_weight", "guidance_scale")  # keys that are chosen on the validation split


class Decoding(NamedTuple):
    """A decoding method.

    keys: configuration values that replace the run's. drop_shares: it is used with captioners that
    were trained with one of these values of `drop_image`.
    """

    label: str
    keys: dict
    drop_shares: tuple[float, ...] = (0.0,)


_BOTH_SHARES = (0.0, DROP_SHARE)
_GUIDANCE = {
    f"guidance{scale:g}": Decoding(f"guidance {scale:g}", {"guidance_scale": scale}, _BOTH_SHARES)
    for scale in (1.25, 1.5, 2.0, 3.0)
}
_MMI = {
    f"mmi{weight:g}": Decoding(
        f"20 samples, mutual information {weight:g}",
        {"rerank": "mmi", "rerank_weight": weight},
        _BOTH_SHARES,
    )
    for weight in (0.25, 0.5, 1.0)
}
DECODINGS: dict[str, Decoding] = {
    "greedy": Decoding("greedy", {"num_beams": 1}),
    TIME_REFERENCE: Decoding("beam 3", {"num_beams": 3}, _BOTH_SHARES),
    "nucleus": Decoding("nucleus 0.9", {"sample": True, "top_p": 0.9}),
    **_GUIDANCE,
    "contrastive": Decoding("contrastive", {"contrastive_alpha": 1.0}),
    **_MMI,
    "mbr": Decoding("20 samples, minimum Bayes risk", {"rerank": "mbr"}),
    JUDGE: Decoding("20 samples, judge of another seed", {"rerank": "judge"}),
}


def read_decodings(text: str) -> list[str]:
    """Return the names in a text such as "greedy,mmi0.5" or "all", with TIME_REFERENCE first.

    Raises UserError.
    """
    names = list(DECODINGS) if text == "all" else text.split(",")
    for name in names:
        if name not in DECODINGS:
            raise UserError(f"{name!r} is no decoding; give some of {', '.join(DECODINGS)}, or all")
    return list(dict.fromkeys([TIME_REFERENCE, *names]))


def drop_shares(decodings: Sequence[str]) -> list[float]:
    """Return the values of `drop_image` with which captioners for these decodings are trained."""
    return sorted({share for name in decodings for share in DECODINGS[name].drop_shares})


def with_drop_shares(variants: Sequence[Variant], shares: Sequence[float]) -> list[Variant]:
    """Return each variant once per value of `drop_image`, with the mean image as the null image."""
    return [
        variant._replace(
            name=f"{variant.name}_dropped" if share else variant.name,
            label=f"{variant.label}{DROPPED_SUFFIX}" if share else variant.label,
            overrides=(*variant.overrides, "null_image=mean", f"drop_image={share:g}"),
            weight=None if share else variant.weight,
        )
        for share in shares
        for variant in variants
    ]


def applicable_decodings(config: Config, names: Sequence[str]) -> list[str]:
    """Return the decodings for a captioner trained with this configuration's `drop_image`."""
    return [name for name in names if config.drop_image in DECODINGS[name].drop_shares]


def decoding_folder(run: Path, name: str) -> Path:
    """Return the folder of a run's captions by the decoding `name`."""
    return run / "decodings" / name


def decode_run(config: Config, names: Sequence[str], judge: Optional[str]) -> None:
    """Caption and score the test split of a finished run with each decoding that is not done.

    Decodings with a key of TUNED_KEYS also caption and score the validation split. judge: the
    checkpoint of the captioner that reranks for the decoding JUDGE. Raises UserError, Stopped.
    """
    run = Path(config.output_dir)
    checkpoint = checkpoints.best(run)

    def make_task(name: str, split: str) -> _Task:
        keys = DECODINGS[name].keys
        merged = {**config.model_dump(), **DEFAULT_KEYS, **keys, "pretrained": None}
        if keys.get("rerank") == JUDGE:
            merged["rerank_judge"] = judge
        return _Task(parse_config(merged), split, decoding_folder(run, name), checkpoint)

    pending = []
    for name in applicable_decodings(config, names):
        is_tuned = any(key in DECODINGS[name].keys for key in TUNED_KEYS)
        tasks = [make_task(name, split) for split in (["val", "test"] if is_tuned else ["test"])]
        pending += [(DECODINGS[name].label, task) for task in tasks if not task.is_done()]
    if not pending:
        return
    captioner, _ = captioner_from(config, str(checkpoint))
    captioner = captioner.to(distributed.start(config.device)).eval()
    # Times are comparable only within a process, so this process times the reference, too.
    reference_seconds = make_task(TIME_REFERENCE, "test").caption(captioner).seconds
    for label, task in pending:
        with bar_prefix(f"{label}:"):
            task.run(captioner, reference_seconds)


class _TimedCaptions(NamedTuple):
    """Captions of a split and their cost. results: in COCO's format.

    tokens: decoder tokens per image. seconds: per image. evaluation: the object that scores them.
    """

    results: list[dict]
    tokens: float
    seconds: float
    evaluation: SplitEvaluation


class _Task(NamedTuple):
    """Captions and scores one split of a run with one decoding, whose keys `config` has."""

    config: Config
    split: str
    folder: Path
    checkpoint: Path

    def is_done(self) -> bool:
        """Whether the results of this checkpoint, judge and configuration have been written."""
        path = self.folder / f"{self.split}_{COST_FILE}"
        return path.exists() and read_json(path).get("of") == self._input_key()

    def run(self, captioner: nn.Module, reference_seconds: float) -> None:
        """Caption and score. reference_seconds: seconds per image of TIME_REFERENCE."""
        timed = self.caption(captioner)
        result_folder = self.folder / "result" / self.split
        record_run(self.config, result_folder, checkpoint=str(self.checkpoint))
        timed.evaluation.score(timed.results, self.split)
        cost = {
            "tokens": timed.tokens,
            "time": timed.seconds / reference_seconds,
            "of": self._input_key(),
        }
        # Written last, because this file marks the task as done.
        write_json(cost, self.folder / f"{self.split}_{COST_FILE}")
        log_line(f"{timed.tokens:.0f} decoder tokens per image, {cost['time']:.1f} times beam 3")

    def caption(self, captioner: nn.Module) -> _TimedCaptions:
        """Caption the split and measure the cost, after one batch as a warm-up."""
        device = distributed.start(self.config.device)
        evaluation = SplitEvaluation(self.config, self.split, self.folder, device)
        models = [captioner]
        if self.config.rerank == JUDGE:
            models.append(load_judge(self.config.rerank_judge, device)[1])
        warm_up = evaluation.samples[: self.config.eval_batch_size or self.config.batch_size]
        caption_images(captioner, warm_up, self.config, device, "warm-up")
        torch.manual_seed(derived_seed("decoding", self.config.seed))
        counter = TokenCounter(*models)
        start = time.perf_counter()
        results = evaluation.caption(captioner)
        seconds = time.perf_counter() - start
        counter.close()
        images = len(results)
        return _TimedCaptions(results, counter.tokens / images, seconds / images, evaluation)

    def _input_key(self) -> str:
        """Return a hash of the configuration and of the modification times of the checkpoints."""
        paths = [str(self.checkpoint), *filter(None, [self.config.rerank_judge])]
        config_json = self.config.model_dump_json(exclude={"output_dir", "device"})
        return cache_key(config_json + str([Path(file).stat().st_mtime_ns for file in paths]))


def read_cost(run: Path, name: str, split: str = "test") -> dict[str, float]:
    """Return {"tokens": decoder tokens per image, "time": relative to TIME_REFERENCE}."""
    return read_json(decoding_folder(run, name) / f"{split}_{COST_FILE}")


class TokenCounter:
    """Counts the tokens that captioners' decoders read, also in copies of the captioners.

    The tokens are counted at the input of the word embeddings.
    """

    def __init__(self, *captioners: nn.Module):
        self.tokens = 0
        embeddings = [
            module
            for captioner in captioners
            for module in captioner.modules()
            if isinstance(module, nn.Embedding)
            and module.num_embeddings == len(captioner.tokenizer)
        ]

        def count(module, inputs) -> None:
            self.tokens += inputs[0].numel()

        self.handles = [module.register_forward_pre_hook(count) for module in embeddings]

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()
