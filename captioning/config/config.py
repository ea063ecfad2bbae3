"""Validates the configuration of a run: impossible values and combinations raise an error.

`Config` has the keys that all runs share. `config_class` returns a subclass that also has the keys
of a captioner's package and the options of metrics, rewards and rerankers. For this it imports the
modules that declare the keys.
"""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any, Optional

from pydantic import (
    ValidationInfo,
    create_model,
    field_serializer,
    field_validator,
    model_validator,
)

from captioning.captioners.registry import CAPTIONERS, package_of
from captioning.config.keys import Files, Keys, roles_of
from captioning.config.rerankers import RERANKERS, build_reranking, values_of
from captioning.data.division import checked_division
from captioning.files.stores import (
    check_address,
    check_can_hold,
    is_bucket_address,
    join,
    key_of,
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


class Config(Keys):
    """A run's configuration. The subclasses that `config_class` returns have more keys."""

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

    @field_serializer("pretrained", "itm_model", check_fields=False)
    def _without_secrets(self, value):
        return without_secrets(value) if isinstance(value, str) else value

    @field_validator("reward")
    @classmethod
    def _known_rewards(cls, value):
        if value is not None:
            check_rewards(value)
        return value

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value, info: ValidationInfo):
        # Keys that failed validation are missing from `data`. If reward is missing, it has an error
        # already, so that no second error is raised.
        if value is None and not info.data.get("reward", True):
            raise ValueError("input should be a valid string or a mapping")
        if value is not None:
            parse_objective(value)
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
        values = {FIRST_TOKEN_MLE[name] for name in weights if name in FIRST_TOKEN_MLE} or {True}
        return values.pop() if len(values) == 1 else None

    @field_validator("exif")
    @classmethod
    def _default_exif(cls, value, info: ValidationInfo):
        """Replace None: the original code does not turn photos of the data sets that it knows."""
        return info.data.get("dataset") == "custom" if value is None else value

    @field_validator("select", "monitor")
    @classmethod
    def _known_metrics(cls, value, info: ValidationInfo):
        if value is not None and not (info.field_name == "select" and value == LAST):
            MetricSum.parse(value)
        return value

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
        captions = getattr(self, "train_captions", None)
        if self.split and self._keys_of(files) & self._keys_of(captions):
            yield (
                "train_captions is train_file, of which split takes parts: name a file that has "
                "the captions of train alone"
            )
        if self.min_lr > self.init_lr:
            yield f"min_lr is {self.min_lr}, above init_lr, {self.init_lr}"

    def _keys_of(self, names: Files) -> set[str]:
        names = [names] if isinstance(names, str) else names or ()
        return {key_of(join(self.ann_root, name)) for name in names}

    def decoding_settings(self) -> DecodingSettings:
        """Return the run's settings of generation."""
        return DecodingSettings(**values_of(DecodingSettings, self))

    def reranking(self) -> Optional[Reranking]:
        """Return the run's reranking; None without `rerank`, or for mmi with weight 0."""
        return build_reranking(self)

    def build_objective(self) -> Objective:
        """Return the training objective. A run with only a reward gets MLE, which is not used."""
        return Objective(
            self.objective or "mle",
            self.label_smoothing,
            self.first_token_mle,
            self.random_subset_size,
        )


# {key: {entry that it can name: "module:class" with the options of the entry}}
_ENTRIES = {
    "metrics": EVALUATORS,
    "reward": REWARDS,
    "rerank": {name: entry.options for name, entry in RERANKERS.items() if entry.options},
}
_ALL = frozenset(option for options in _ENTRIES.values() for option in options.values())


@cache
def config_class(model: Optional[str] = None, entries: frozenset[str] = _ALL) -> type[Config]:
    """Return a subclass of `Config` that also has the keys of a captioner and of other entries.

    model: a name in CAPTIONERS; None for the keys of all captioners. entries: "module:class" of the
    metrics, rewards and rerankers whose options are keys. Imports all these modules.
    """
    packages = CAPTIONERS.values() if model is None else [CAPTIONERS[model]]
    bases = (*(load(package).Keys for package in dict.fromkeys(packages)), Config)
    return create_model("Config", __base__=bases, **options_of(map(load, sorted(entries))))


def keys_of(role: str, keys: type[Keys] = Config) -> list[str]:
    """Return the names of the keys with this role (see `captioning.config.keys.ROLES`).

    keys: the class whose keys are searched; by default `Config`, the keys that all runs share.
    """
    return [key for key, declared in roles_of(keys).items() if declared == role]


def parse_config(values: Any) -> Config:
    """Build a configuration from a mapping of keys. Raises pydantic's ValidationError.

    Keys that only other captioners have are validated and then left out. Options of metrics,
    rewards and rerankers that the configuration does not use are kept if they are set.
    """
    if not isinstance(values, dict) or str(values.get("model", "blip")) not in CAPTIONERS:
        return config_class().model_validate(values)  # raises ValidationError
    gone = [pair for keys in GONE.values() for pair in keys.items()]
    if values.get("drop_image"):  # the run was trained on that null image
        gone.remove(("null_image", "zeros"))
    gone.append(("encoder_features", values.get("encoder_features")))  # a cache
    values = {key: value for key, value in values.items() if (key, value) not in gone}
    if values.get("reward"):
        values = {"objective": None, **values}  # no default objective beside a reward
    model, entries = str(values.get("model", "blip")), set()
    for key, options in _ENTRIES.items():
        named = values.get(key, Config.model_fields[key].default)
        if isinstance(named, (str, list, dict)):  # not validated yet
            entries.update(option for name, option in options.items() if name in named)
    config_type = config_class(model, frozenset(entries))
    if not values.keys() <= config_type.model_fields.keys():
        config_type = config_class(model)  # also imports metrics and rewards that are not used
    if not values.keys() <= config_type.model_fields.keys():
        config_class().model_validate(values)
        values = {key: value for key, value in values.items() if key in config_type.model_fields}
    return config_type.model_validate(values)


def every_key(config: Config) -> dict[str, Any]:
    """Return {key: value} with the keys of all captioners, metrics, rewards and rerankers.

    Missing keys have their defaults, so that the configurations of two runs can be compared.
    Imports all modules that declare keys.
    """
    return config_class()(**config.model_dump()).model_dump()
