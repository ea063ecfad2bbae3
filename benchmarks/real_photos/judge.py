"""Measures whether captions identify their photos. A judge, another captioner, ranks the photos."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.real_photos.parts import JUDGE
from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.caption_files import Captions, read_predictions
from captioning.data.dataset import preprocess_caption
from captioning.data.loader import Prefetcher
from captioning.data.randomness import derived_seed, permutation
from captioning.data.sources import read_split
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.models.build import load_trained
from captioning.models.checkpoints import BEST
from captioning.models.generation import build_image_loader
from captioning.report.comparison import hold_out
from smile import Objective

GROUP_SIZE = 100  # photos that a caption is scored against, including its own photo
HUMANS = "humans"
_BATCH_SIZE = 10


def judge_runs(seed: Path, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return {run: {image id: 100 or 0}} for the captions of a seed's runs and of HUMANS.

    The value is 100 if the judge ranks the caption's own photo first, otherwise 0, so that a mean
    is a percentage. seed: the folder of a seed. names: the folders of runs, relative to `seed`.
    Results are cached in the judge's folder until the captions or the judge change.
    """
    config, captioner = load_trained(str(seed / JUDGE / BEST), None, torch.device("cpu"))
    samples = read_split(config, "test")
    held_out = hold_out({sample.image_id: sample.captions for sample in samples})[0]
    results = {}
    for name in (HUMANS, *names):
        path = seed / JUDGE / "result" / f"judged_{name.replace('/', '_')}.json"
        texts = held_out if name == HUMANS else read_captions(seed / name)
        captions = {str(image_id): text for image_id, text in texts.items()}
        is_current = path.exists() and path.stat().st_mtime >= (seed / JUDGE / BEST).stat().st_mtime
        cached = read_json(path) if is_current else {}
        if cached.get("captions") != captions:
            with torch.no_grad():
                cached = {
                    "captions": captions,
                    "places": photo_ranks(captioner, config, samples, captions),
                }
            write_json(cached, path)
        results[name] = {
            image_id: 100.0 * (rank == 1) for image_id, rank in cached["places"].items()
        }
    return results


def read_captions(run: Path) -> Captions:
    return read_predictions(run / "result" / "test.json")


def photo_ranks(
    captioner: nn.Module, config: Config, samples: Sequence[Sample], captions: Mapping[str, str]
) -> dict[str, float]:
    """Return {image id: rank of the caption's own photo in its group}. The best rank is 1.

    The photos are divided into groups of GROUP_SIZE, at random but always the same. The judge ranks
    the photos of a group by how likely they make the caption. Tied photos get their mean rank. The
    photos that remain after the last full group are left out; if there are fewer than GROUP_SIZE
    photos, all are one group. captions: {image id as a string: caption}.
    """
    samples = [sample for sample in samples if str(sample.image_id) in captions]
    order = permutation(len(samples), derived_seed("crowds"))
    ranks = {}
    for start in range(0, max(1, len(order) - GROUP_SIZE + 1), GROUP_SIZE):
        group = [samples[n] for n in order[start : start + GROUP_SIZE]]
        texts = [preprocess_caption(captions[str(s.image_id)], config.max_words) for s in group]
        scores = _loglikelihoods(captioner, config, group, texts)  # (photos, captions)
        own = scores.diagonal()
        num_better = (scores > own).sum(0) + ((scores == own).sum(0) - 1) / 2
        ranks.update(zip((str(s.image_id) for s in group), (1 + num_better).tolist()))
    return ranks


def _loglikelihoods(
    captioner: nn.Module, config: Config, photos: Sequence[Sample], texts: Sequence[str]
) -> Tensor:
    """Return the log-likelihoods of K captions given each of B photos: float64 (B, K)."""
    batch_config = config.model_copy(update={"eval_batch_size": _BATCH_SIZE})
    rows = []
    for batch in Prefetcher(build_image_loader(photos, batch_config)[0], torch.device("cpu")):
        image = batch["image"]
        predictions = captioner.predictions(image, [list(texts)] * len(image))  # (R, N, V), (R, N)
        sums = -Objective("mle")(*predictions, reduction="none").loss.double().sum(1)  # (R,)
        rows.append(sums.unflatten(0, (len(image), len(texts))))
    return torch.cat(rows)
