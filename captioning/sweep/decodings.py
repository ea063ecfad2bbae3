"""Defines the decodings that a sweep compares; captions and scores a run with each of them.

The cost of each decoding is measured, too: decoder tokens per image, and time.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from torch import nn

from captioning.config import Config, parse_config
from captioning.data.randomness import derived_seed
from captioning.files.writing import write_json
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.models.generation import caption_images
from captioning.models.reranking import load_judge
from captioning.runtime import distributed
from captioning.runtime.progress import log_line
from captioning.sweep.variants import Variant, read_names
from captioning.training.run_log import record_run
from captioning.training.split_evaluation import SplitEvaluation
from captioning.training.validation_history import is_scored

# Guidance and mutual information also need predictions for the null image. For them, captioners are
# also trained with the key `drop_image`: this share of images is replaced by the null image.
DROP_SHARE = 0.2
TIME_REFERENCE = "beam3"  # times are given relative to the time of this decoding
COST_FILE = "cost.json"  # ends the names of files: test_cost.json, val_cost.json
DROPPED_SUFFIX = ", images dropped"  # ends the labels of variants trained with DROP_SHARE
JUDGE = "judge"  # a name in DECODINGS, and the value of the key `rerank` for this decoding
# Keys of all decodings, unless `Decoding.keys` sets them. top_p and top_k let rerankers sample
# candidates from the full distribution. Decodings without sampling use 3 beams.
DEFAULT_KEYS = {"top_p": 1.0, "top_k": 0, "num_beams": 3, "sample": False}
TUNED_KEYS = ("rerank_weight", "guidance_scale")  # keys that are chosen on the validation split


class Decoding(NamedTuple):
    """A decoding method.

    keys: values that replace those of the run's configuration. for_dropped: whether the decoding is
    also used with captioners that were trained with dropped images, see DROP_SHARE.
    """

    label: str
    keys: dict
    for_dropped: bool = False

    @property
    def is_tuned(self) -> bool:
        """Whether the decoding sets a key of TUNED_KEYS."""
        return any(key in self.keys for key in TUNED_KEYS)


_GUIDANCE = {
    f"guidance{scale:g}": Decoding(
        f"guidance {scale:g}", {"guidance_scale": scale}, for_dropped=True
    )
    for scale in (1.25, 1.5, 2.0, 3.0)
}
_MMI = {
    f"mmi{weight:g}": Decoding(
        f"20 samples, mutual information {weight:g}",
        {"rerank": "mmi", "rerank_weight": weight},
        for_dropped=True,
    )
    for weight in (0.25, 0.5, 1.0)
}
DECODINGS = {
    "greedy": Decoding("greedy", {"num_beams": 1}),
    TIME_REFERENCE: Decoding("beam 3", {"num_beams": 3}, for_dropped=True),
    "nucleus": Decoding("nucleus 0.9", {"sample": True, "top_p": 0.9}),
    **_GUIDANCE,
    "contrastive": Decoding("contrastive", {"contrastive_alpha": 1.0}),
    **_MMI,
    "mbr": Decoding("20 samples, minimum Bayes risk", {"rerank": "mbr"}),
    JUDGE: Decoding("20 samples, judge of another seed", {"rerank": "judge"}),
}


def read_decodings(text: Optional[str]) -> list[str]:
    """Return the names in a text such as "greedy,mmi0.5" or "all", with TIME_REFERENCE first.

    Returns [] for None. Raises UserError for an unknown name.
    """
    names = read_names(text, list(DECODINGS), "a decoding")
    return list(dict.fromkeys([TIME_REFERENCE, *names])) if names else []


def drop_shares(decodings: Sequence[str]) -> list[float]:
    """Return the values of `drop_image` with which captioners are trained for these decodings."""
    return [0.0, DROP_SHARE] if any(DECODINGS[name].for_dropped for name in decodings) else [0.0]


def with_drop_shares(variants: Sequence[Variant], shares: Sequence[float]) -> list[Variant]:
    """Return each variant once per value of `drop_image`, with the mean image as the null image.

    A variant with dropped images has the weight None, so that it counts neither as a mixture nor as
    a possible judge.
    """
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
    """Return the decodings among `names` that suit a captioner trained with this configuration.

    A captioner trained with dropped images gets only decodings with `for_dropped`.
    """
    return [name for name in names if not config.drop_image or DECODINGS[name].for_dropped]


def decoding_folder(run: Path, name: str) -> Path:
    """Return the folder of the captions by the decoding `name`. run: the run's folder."""
    return run / "decodings" / name


def decode_run(config: Config, names: Sequence[str], judge: Optional[str]) -> None:
    """Caption and score the test split of a finished run with each decoding.

    With tuned decodings, the validation split is also captioned and scored. Splits that are done
    already are skipped. judge: the checkpoint of the captioner that reranks for the decoding JUDGE.
    Raises UserError, or Stopped if a stop is requested.
    """
    run = Path(config.output_dir)
    pending = []
    for name in applicable_decodings(config, names):
        for split in ["val", "test"] if DECODINGS[name].is_tuned else ["test"]:
            decoding_config = _config_with(config, name, judge)
            if not _is_done(decoding_config, split, decoding_folder(run, name)):
                pending.append((name, split))
    if not pending:
        return
    checkpoint = str(checkpoints.best(run))
    captioner, _ = captioner_from(config, checkpoint)
    device = distributed.start(config.device)
    captioner = captioner.to(device).eval()

    def evaluation_of(name, split):
        decoding_config = _config_with(config, name, judge)
        return SplitEvaluation(decoding_config, split, decoding_folder(run, name), device)

    # Times are comparable only within one process, so each process also times the reference.
    reference = _caption_and_measure(captioner, evaluation_of(TIME_REFERENCE, "test"))
    for name, split in pending:
        folder = decoding_folder(run, name)
        evaluation = evaluation_of(name, split)
        log_line(f"{DECODINGS[name].label}:")
        found = _caption_and_measure(captioner, evaluation)
        record_run(evaluation.config, folder / "result" / split, checkpoint=checkpoint)
        evaluation.score(found.results, split)
        time_ratio = found.seconds / reference.seconds
        # Written last, because this file marks the decoding as done.
        write_json({"tokens": found.tokens, "time": time_ratio}, folder / f"{split}_{COST_FILE}")
        log_line(f"{found.tokens:.0f} decoder tokens per image, {time_ratio:.1f} times beam 3")


def _config_with(config: Config, name: str, judge: Optional[str]) -> Config:
    """Return the run's configuration with the keys of the decoding `name`."""
    keys = {**DEFAULT_KEYS, **DECODINGS[name].keys, "pretrained": None}
    if keys.get("rerank") == JUDGE:
        keys["rerank_judge"] = judge
    return parse_config({**config.model_dump(), **keys})


def _is_done(config: Config, split: str, folder: Path) -> bool:
    """Return whether a split is scored with this configuration, and the current weights and judge.

    folder: the decoding's folder.
    """
    cost = folder / f"{split}_{COST_FILE}"
    if not cost.exists() or not is_scored(config, split, folder):
        return False
    judge = config.rerank_judge
    return judge is None or Path(judge).stat().st_mtime <= cost.stat().st_mtime


class MeasuredCaptions(NamedTuple):
    """The captions of a split as COCO results, and what they cost per image."""

    results: list[dict[str, Any]]
    tokens: float
    seconds: float


def _caption_and_measure(captioner: nn.Module, evaluation: SplitEvaluation) -> MeasuredCaptions:
    """Caption one batch as a warm-up, then the whole split, of which the cost is measured."""
    config, device = evaluation.config, evaluation.device
    captioners = [captioner]
    if config.rerank == JUDGE:
        captioners.append(load_judge(config.rerank_judge, device)[1])
    warm_up = evaluation.samples[: config.eval_batch_size or config.batch_size]
    caption_images(captioner, warm_up, config, device, "warm-up")
    torch.manual_seed(derived_seed("decoding", config.seed))
    with count_tokens(*captioners) as counts:
        start = time.perf_counter()
        results = evaluation.caption(captioner)
        seconds = time.perf_counter() - start
    return MeasuredCaptions(results, sum(counts) / len(results), seconds / len(results))


@contextmanager
def count_tokens(*captioners: nn.Module) -> Iterator[list[int]]:
    """Count the tokens that the captioners' decoders read within the `with` block.

    Yields a list. Each call of the word embeddings appends the number of its tokens. Deep copies of
    the captioners, which inference uses, keep the hooks, so their tokens are counted, too.
    """
    counts = []
    handles = [
        module.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].numel()))
        for captioner in captioners
        for module in captioner.modules()
        if isinstance(module, nn.Embedding) and module.num_embeddings == len(captioner.tokenizer)
    ]
    yield counts
    for handle in handles:
        handle.remove()
