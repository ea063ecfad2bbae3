"""Validates the configuration of a run: impossible values and combinations raise an error."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Optional

from pydantic import (
    ValidationInfo,
    create_model,
    field_serializer,
    field_validator,
    model_validator,
)

from captioning.captioners.registry import CAPTIONERS, package_of
from captioning.config.keys import RERANKERS, Keys, roles_of
from captioning.data.division import checked_division
from captioning.files.stores import (
    check_address,
    check_can_hold,
    is_bucket_address,
    without_secrets,
)
from captioning.files.tars import is_tars
from captioning.metrics import EVALUATORS
from captioning.metrics.metric_sum import MetricSum
from captioning.metrics.options import options_of
from captioning.rewards.registry import REWARDS, check_options, check_rewards
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load
from decoding import DecodingSettings
from decoding.characters import is_character
from decoding.rerank import Reranking
from smile import Objective, parse_objective
from smile.objective import FIRST_TOKEN_MLE

# {the last commit that had the keys: {key: the value that is ignored}}. Checkpoints and files of
# earlier runs may have these values, which change nothing. Another value is an error.
GONE = {
    "f445f286": {
        **{"input": "fast", "resume": "auto", "reward_kl": 0, "checkpoint_format": "whole"},
        **{"min_p": 0, "typical_p": 1, "rerank_judge": None},
        **{"contrastive_alpha": 0, "contrastive_beta": 0.1, "contrastive_noise": 500},
    },
    "46748d31": {"null_image": "zeros", "tie_embeddings": False, "teacher_forcing_middle": None},
}
LAST = "last"  # the value of `select` that selects the last epoch instead of the best by metrics

_PACKAGES = [load(package).Keys for package in dict.fromkeys(CAPTIONERS.values())]
_OPTIONS = options_of(map(load, (*EVALUATORS.values(), *REWARDS.values())))


class Config(*_PACKAGES, create_model("Options", **_OPTIONS), Keys):
    """A run's configuration: the keys of all captioners, and the options of metrics and rewards."""

    @field_validator("*")
    @classmethod
    def _expand(cls, value, info: ValidationInfo):
        """Replace "~" by the home folder, and by None what is empty in keys with that default."""
        if value in ("", []) and cls.model_fields[info.field_name].default is None:
            return None
        if info.field_name == "prompt":  # the only text that is neither a name nor a path
            return value
        if isinstance(value, list):
            return [os.path.expanduser(each) if isinstance(each, str) else each for each in value]
        return os.path.expanduser(value) if isinstance(value, str) else value

    @field_serializer("pretrained", "itm_model")
    def _without_secrets(self, value):
        return without_secrets(value) if isinstance(value, str) else value

    @field_validator("reward", "objective", "monitor", "select")
    @classmethod
    def _known_names(cls, value, info: ValidationInfo):
        checks = {"reward": check_rewards, "objective": parse_objective}
        if value is not None and (info.field_name, value) != ("select", LAST):
            checks.get(info.field_name, MetricSum.parse)(value)
        return value

    @field_validator("first_token_mle")
    @classmethod
    def _default_first_token_mle(cls, value, info: ValidationInfo):
        """Replace None by the value that the original code uses for the run's objectives.

        The value stays None for a mixture of objectives with different values.
        """
        if value is not None or "objective" not in info.data:
            return value
        weights = parse_objective(info.data["objective"] or "mle")
        values = {FIRST_TOKEN_MLE.get(name) for name in weights} - {None} or {True}
        return values.pop() if len(values) == 1 else None

    @field_validator("exif")
    @classmethod
    def _default_exif(cls, value, info: ValidationInfo):
        """Replace None: the original code does not turn photos of the data sets that it knows."""
        return info.data.get("dataset") == "custom" if value is None else value

    @field_validator("split")
    @classmethod
    def _valid_split(cls, value, info: ValidationInfo):
        return checked_division(value, info.data.get("seed", 0)) if value else None

    @field_validator("prompt")
    @classmethod
    def _ends_with_a_space(cls, value, info: ValidationInfo):
        model = info.data.get("model")
        ends_well = not value or value[-1] == " " or is_character(value[-1])
        if not ends_well and not (model and package_of(model).PROMPT_IS_QUESTION):
            raise ValueError("end it with a space, or a caption's first word runs into it")
        return value

    @model_validator(mode="after")
    def _check_combinations(self):
        settings, reranking = self.decoding_settings(), self.reranking()
        if reranking:
            reranking.candidate_settings(settings)
        if self.reward:
            check_options(self.reward, self)
        try:
            if self.pretrained and is_bucket_address(self.pretrained):
                check_address(self.pretrained)
            check_can_hold("output_dir", self.output_dir)
        except UserError as error:
            raise ValueError(str(error)) from error
        for problem in self._impossible_combinations():
            raise ValueError(problem)
        return self

    def _impossible_combinations(self) -> Iterator[str]:
        if not (self.objective or self.reward):
            yield "objective is empty: name one, or a reward"
        if self.drop_image and self.reward:
            yield f"drop_image is {self.drop_image}, which reward does not support; set it to 0"
        if self.reward and self.reward_samples == 1 and self.reward_baseline == "others":
            yield (
                "reward_samples is 1, but reward_baseline is others, the mean of an image's other "
                "samples; raise it, or set reward_baseline=greedy"
            )
        if self.reward and self.sharding != "none":
            yield f"sharding is {self.sharding}, which reward does not support; set it to none"
        files = self.train_file or []
        if any(map(is_tars, files if isinstance(files, list) else [files])):
            for key in filter(vars(self).get, ("reward", "bucket_batches", "split")):
                yield f"{key} needs annotations, and train_file names tars: unset it"
        if self.split and (self.val_file or self.test_file):
            key = "val_file" if self.val_file else "test_file"
            yield f"split divides train_file, and {key} is set: unset one of them"
        if self.min_lr > self.init_lr:
            yield f"min_lr is {self.min_lr}, above init_lr, {self.init_lr}"

    def decoding_settings(self) -> DecodingSettings:
        """Return the run's settings of generation."""
        return DecodingSettings(**self._values_for(DecodingSettings))

    def reranking(self) -> Optional[Reranking]:
        """Return the run's reranking; None without `rerank`, or for mmi with weight 0.

        Raises ValueError if the reranker's model is not set.
        """
        is_mmi = self.rerank == "mmi"
        if self.rerank is None or (is_mmi and not self.rerank_weight):
            return None
        key = RERANKERS[self.rerank]
        model = key and getattr(self, key)
        if key and not model:
            raise ValueError(f"rerank is {self.rerank}, which needs {key}")
        weight = self.rerank_weight if is_mmi else None
        values = {**self._values_for(Reranking), "model": model, "rerank_weight": weight}
        return Reranking(**values)

    def _values_for(self, settings: type) -> dict[str, Any]:
        """Return {field: value} for the fields of a dataclass that are also keys."""
        return self.model_dump(include={field.name for field in fields(settings)})

    def build_objective(self) -> Objective:
        """Return the training objective. A run with only a reward gets MLE, which is not used."""
        return Objective(
            self.objective or "mle",
            self.label_smoothing,
            self.first_token_mle,
            self.random_subset_size,
        )


def keys_of(role: str) -> list[str]:
    """Return the names of the keys with this role (see `captioning.config.keys.ROLES`)."""
    return [key for key, declared in roles_of(Config).items() if declared == role]


def parse_config(values: Mapping[str, Any]) -> Config:
    """Build a configuration from a mapping of keys. Raises pydantic's ValidationError."""
    gone = [pair for keys in GONE.values() for pair in keys.items()]
    if values.get("drop_image"):  # the run was trained on that null image
        gone.remove(("null_image", "zeros"))
    gone.append(("encoder_features", values.get("encoder_features")))  # a cache
    values = {key: value for key, value in values.items() if (key, value) not in gone}
    if values.get("reward"):
        values = {"objective": None, **values}  # no default objective beside a reward
    return Config.model_validate(values)
