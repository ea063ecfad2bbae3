"""One run of a sweep: trained, then captioned and scored on the test split."""

from collections.abc import Sequence

from captioning import train
from captioning.runtime import signals


def train_and_score(arguments: Sequence[str]) -> int:
    """0 when both are done or it was asked to stop, else captioning.train's exit code.

    arguments: those of captioning.train.
    """
    code = train.main(arguments)
    if code or signals.stop_requested():
        return code
    return train.main([*without_pretrained(arguments), "--evaluate", "--eval_split", "test"])


def without_pretrained(arguments: Sequence[str]) -> list[str]:
    """In evaluation `pretrained` would name the weights to use instead of the run's best."""
    return [argument for argument in arguments if not argument.startswith("pretrained=")]
