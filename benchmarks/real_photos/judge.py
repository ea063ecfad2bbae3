"""Whether captions tell their photos from others, by how likely another captioner finds them.

python -m benchmarks.real_photos.judge JUDGE RUN

JUDGE and RUN are folders of runs. The test captions of RUN are read under their own photos and
under others, and RUN/result/judged.json says where the own one stands. RUN may be "humans", which
asks of one human caption a photo; the answer is JUDGE/result/humans.json.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data import Prefetcher, Sample, preprocess_caption, read_split
from captioning.data.caption_files import read_predictions
from captioning.data.randomness import derived_seed, permutation
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.models.build import load_trained
from captioning.models.checkpoints import BEST
from captioning.models.generation import images_of
from captioning.report.comparison import held_out
from captioning.runtime.program import exit_code

CROWD = 100  # photos that a caption is tried on, its own among them
HUMANS = "humans"
_IMAGES_AT_ONCE = 10


def main(argv: Optional[Sequence[str]] = None) -> int:
    judge, run = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: _judge(Path(judge), Path(run)), "stopped")


def answer_path(judge: Path, run: Path) -> Path:
    """Where the answer is: the captions, and {image id: place} of them."""
    return (
        judge / "result" / "humans.json" if run.name == HUMANS else run / "result" / "judged.json"
    )


def is_answered(judge: Path, run: Path) -> bool:
    """Whether this judge has read the captions that the run has now."""
    answer = answer_path(judge, run)
    if not answer.exists() or answer.stat().st_mtime < (judge / BEST).stat().st_mtime:
        return False
    return run.name == HUMANS or read_json(answer)["captions"] == _captions(run)


def _captions(run: Path) -> dict[str, str]:
    found = read_predictions(run / "result" / "test.json")
    return {str(image_id): caption for image_id, caption in found.items()}


def _judge(judge: Path, run: Path) -> None:
    torch.set_grad_enabled(False)
    config, captioner = load_trained(str(judge / BEST), None, torch.device("cpu"))
    samples = read_split(config, "test")
    if run.name == HUMANS:
        held = held_out({sample.image_id: sample.captions for sample in samples})[0]
        captions = {str(image_id): caption for image_id, caption in held.items()}
    else:
        captions = _captions(run)
    found = {"captions": captions, "places": places(captioner, config, samples, captions)}
    write_json(found, answer_path(judge, run))


def places(
    captioner: nn.Module, config: Config, samples: Sequence[Sample], captions: Mapping[str, str]
) -> dict[str, float]:
    """The place of each caption's own photo, 1 for the best, by image id.

    The photos are put into crowds at random, always the same; a caption is tried on those of its
    own photo's. Photos that make it as likely share a place in the middle.
    """
    samples = [sample for sample in samples if str(sample.image_id) in captions]
    order = permutation(len(samples), derived_seed("crowds"))
    found = {}
    for start in range(0, max(1, len(order) - CROWD + 1), CROWD):
        crowd = [samples[n] for n in order[start : start + CROWD]]
        texts = [preprocess_caption(captions[str(s.image_id)], config.max_words) for s in crowd]
        loglikelihoods = _loglikelihoods(captioner, config, crowd, texts)  # (photos, captions)
        own = loglikelihoods.diagonal()
        before = (loglikelihoods > own).sum(0) + ((loglikelihoods == own).sum(0) - 1) / 2
        found.update(zip((str(s.image_id) for s in crowd), (1 + before).tolist()))
    return found


def _loglikelihoods(
    captioner: nn.Module, config: Config, photos: Sequence[Sample], texts: Sequence[str]
) -> Tensor:
    """Of every caption under every photo: float64 (photos, captions), sums over tokens."""
    at_once = config.model_copy(update={"eval_batch_size": _IMAGES_AT_ONCE})
    rows = []
    for batch in Prefetcher(images_of(photos, at_once)[0], torch.device("cpu")):
        image = batch["image"]
        logits, labels = captioner.predictions(image, [list(texts)] * len(image))  # (R, N, V)
        logprobs = logits.log_softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        sums = logprobs.masked_fill(labels < 0, 0).double().sum(1)  # (R,)
        rows.append(sums.unflatten(0, (len(image), len(texts))))
    return torch.cat(rows)


if __name__ == "__main__":
    sys.exit(main())
