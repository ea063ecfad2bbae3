"""Captions photos with the ONNX graphs of `BLIP.export`, without torch or transformers.

    python BLIP/onnx_runner.py output/onnx photo.jpg other.jpg --num_beams 3

Prints one line per photo: its name, a tab and its caption. This file needs numpy, Pillow and
onnxruntime, but nothing from this project, so that you can copy this file and the folder to another
machine. It captions one photo at a time, by the same beam search as `decoding/beam.py`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional, Union

import numpy as np
import onnxruntime
from PIL import Image

# All beams start from the same prompt, so that they would all find the same words. This initial
# score excludes all beams except the first.
NOT_STARTED = -1e9
# The image formats that are read. EPS is left out, because Pillow would run Ghostscript to read it.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]")
# BERT's tokenizer removes the outer spaces of each of these texts when it decodes.
NO_SPACE_BEFORE = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class Caption(NamedTuple):
    """A generated caption and its score.

    tokens: the ids, which begin with the prompt. The last id is the end token, unless the caption
    reached max_length. score: the sum of log-probabilities divided by length ** length_penalty. The
    length includes the prompt but not the end token.
    """

    tokens: list[int]
    score: float


class OnnxCaptioner:
    """A captioner that runs on onnxruntime.

    folder: a folder that `BLIP.export` has written. threads: the number of CPU threads; 0 lets
    onnxruntime choose. Raises OSError or ValueError if a file is missing or damaged.
    """

    def __init__(self, folder: Union[str, Path], threads: int = 0):
        folder = Path(folder)
        self.settings = json.loads((folder / "captioner.json").read_text(encoding="utf-8"))
        vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n")
        self.words = [*vocabulary.split("\n"), "[DEC]", "[ENC]"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.encoder = _session(folder / "encoder.onnx", options)
        self.step = _session(folder / "decoder_step.onnx", options)

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Preprocess an image to float32 (1, 3, S, S)."""
        # Pillow would clip the values of a 16-bit image to 255, so they are scaled to 8 bits here.
        if image.mode == "I" or image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
        side = self.settings["image_size"]
        resized = image.convert("RGB").resize((side, side), Image.BICUBIC)
        square = np.asarray(resized, dtype=np.float32)
        mean = np.float32(self.settings["image_mean"])
        std = np.float32(self.settings["image_std"])
        return ((square / 255 - mean) / std).transpose(2, 0, 1)[None]

    def generate(
        self,
        pixels: np.ndarray,
        num_beams: int = 3,
        max_length: int = 20,
        min_length: int = 5,
        length_penalty: float = 1.0,
    ) -> Caption:
        """Return the best caption of one image. pixels: the result of `pixels`, (1, 3, S, S).

        The other arguments are those of `decoding.DecodingSettings`. Raises ValueError for a
        max_length that the prompt or the model does not allow.
        """
        end, prompt = self.settings["end"], self.settings["prompt_ids"]
        if not len(prompt) < max_length <= self.settings["max_length"]:
            limits = f"{len(prompt) + 1} to {self.settings['max_length']}"
            raise ValueError(f"max_length is {max_length}; it must be {limits}")
        image_past = self.encoder.run(None, {"image": pixels})[0]
        past = np.zeros(self.settings["empty_past"], dtype=np.float32)
        logits, past = self._step([prompt], past, image_past)
        logits = np.repeat(logits, num_beams, axis=0)
        past, image_past = np.repeat(past, num_beams, 2), np.repeat(image_past, num_beams, 2)
        scores = np.full(num_beams, NOT_STARTED, dtype=np.float32)
        scores[0] = 0
        sequences, finished = [list(prompt)] * num_beams, []
        for length in range(len(prompt), max_length):
            logprobs = _log_softmax(logits)  # (beams, V)
            if length < min_length:
                logprobs[:, end] = -np.inf
            top_scores, beam, word = _best_candidates(logprobs + scores[:, None], 2 * num_beams)
            normalised = top_scores.astype(np.float64) / length**length_penalty
            for rank in range(num_beams):
                if word[rank] == end and np.isfinite(normalised[rank]):
                    finished.append(Caption([*sequences[beam[rank]], end], normalised[rank]))
            finished = sorted(finished, key=lambda caption: -caption.score)[:num_beams]
            if len(finished) == num_beams and finished[-1].score >= normalised[0]:
                break
            kept = np.argsort(word == end, kind="stable")[:num_beams]
            beam, word, scores = beam[kept], word[kept], top_scores[kept]
            sequences = [[*sequences[b], int(w)] for b, w in zip(beam, word)]
            if length + 1 < max_length:
                logits, past = self._step(word[:, None], past[:, :, beam], image_past)
        else:
            last = scores.astype(np.float64) / max_length**length_penalty
            finished += [Caption(row, score) for row, score in zip(sequences, last)]
        return max(finished, key=lambda caption: caption.score)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of the tokens, without the prompt."""
        prompt = self._decode(self.settings["prompt_ids"])
        start = len(prompt) + 1 if prompt else 0  # a space follows the prompt
        return self._decode(tokens)[start:]

    def _decode(self, tokens: Sequence[int]) -> str:
        words = [self.words[token] for token in tokens]
        text = " ".join(word for word in words if word not in SPECIAL_TOKENS).replace(" ##", "")
        for spaced in NO_SPACE_BEFORE:
            text = text.replace(spaced, spaced.strip())
        return text

    def _step(self, tokens, past: np.ndarray, image_past: np.ndarray) -> list[np.ndarray]:
        tokens = np.asarray(tokens, dtype=np.int64)
        return self.step.run(None, {"tokens": tokens, "past": past, "image_past": image_past})


def _best_candidates(scores: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    """Return scores, beams and words of the `count` best candidates, the best first.

    scores: (beams, V). Equal scores are in the order of beam and word.
    """
    flat = scores.ravel()
    top = np.argpartition(-flat, count - 1)[:count]
    top = top[np.lexsort((top, -flat[top]))]
    return (flat[top], *np.divmod(top, scores.shape[1]))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _session(path: Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the only common base class of onnxruntime's errors
        raise ValueError(f"{path} cannot be run: {error}".splitlines()[0]) from error


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program. Return 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a folder that BLIP.export has written")
    parser.add_argument("photos", nargs="+")
    parser.add_argument("--num_beams", type=int, default=3)
    parser.add_argument("--max_length", type=int, default=20)
    parser.add_argument("--min_length", type=int, default=5)
    arguments = parser.parse_args(argv)
    if arguments.num_beams < 1:
        parser.error(f"--num_beams is {arguments.num_beams}; it has to be 1 or more")
    try:
        captioner = OnnxCaptioner(arguments.folder)
        for name in arguments.photos:
            with Image.open(name, formats=FORMATS) as photo:
                pixels = captioner.pixels(photo)
            caption = captioner.generate(
                pixels, arguments.num_beams, arguments.max_length, arguments.min_length
            )
            print(f"{name}\t{captioner.text(caption.tokens)}", flush=True)
    except (OSError, ValueError, KeyError, Image.DecompressionBombError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
