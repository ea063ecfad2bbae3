"""The configuration of a run: flat YAML with BLIP's key names, checked once, typed from then on."""

import difflib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Union

from pydantic import (
    BaseModel,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from ruamel.yaml import YAML

from captioning.captioners.registry import CAPTIONERS
from captioning.config.keys import Keys
from captioning.config.roles import roles_of
from captioning.data.division import checked_division
from captioning.files.local_copies import located
from captioning.files.reading import parse_yaml
from captioning.files.stores import check_address, check_can_hold, has_folders, without_secrets
from captioning.files.tars import is_tars
from captioning.files.writing import write_text
from captioning.metrics.metric_sum import MetricSum
from captioning.rewards.registry import check_rewards
from captioning.runtime.errors import UserError
from decoding import DecodingSettings
from smile import Objective, parse_objective
from smile.mixture import FIRST_TOKEN_MLE

LAST = "last"  # the epoch that `select` may name instead of metrics


def keys_of_captioners() -> list[type[BaseModel]]:
    """Those of each package. Raises TypeError for a key that is declared twice."""
    every = list(dict.fromkeys(package.Keys for package in CAPTIONERS.values()))
    owners: dict[str, str] = dict.fromkeys(Keys.model_fields, Keys.__module__)
    for keys in every:
        for name in keys.model_fields:
            if owners.setdefault(name, keys.__module__) != keys.__module__:
                raise TypeError(f"key {name!r} is of {owners[name]} and of {keys.__module__}")
    return every


class Config(*keys_of_captioners(), Keys):
    """Every key of a run's YAML: those that all captioners share, and each captioner's own."""

    @field_validator(
        *("pretrained", "coco_gt_root", "train_file", "val_file", "test_file", "val_gt_file"),
        *("test_gt_file", "train_captions", "facts_file", "objects_file", "synonyms", "pool"),
        *("judge_url", "judge_model", "select"),
    )
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return value or None

    @field_serializer("pretrained")
    def _as_it_may_be_shown(self, value: Any) -> Any:
        return without_secrets(value) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _no_likelihood_beside_a_reward(cls, values: Any) -> Any:
        """Unless an objective is named: that of a run without a reward is MLE."""
        if isinstance(values, dict) and values.get("reward") and "objective" not in values:
            return {**values, "objective": None}
        return values

    @field_validator("reward")
    @classmethod
    def _known_rewards(cls, value: Optional[dict[str, float]]) -> Optional[dict[str, float]]:
        if value is not None:
            check_rewards(value)
        return value

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value, info: ValidationInfo):
        if value is None and not info.data.get("reward", True):  # True: it has an error of its own
            raise ValueError("input should be a valid string or a mapping")
        if value is not None:
            parse_objective(value)
        return value

    @field_validator("first_token_mle")
    @classmethod
    def _as_in_the_original(cls, value: Optional[bool], info: ValidationInfo) -> Optional[bool]:
        """Without a value that of the run's objectives; None where they differ in it."""
        if value is not None or "objective" not in info.data:
            return value
        weights = parse_objective(info.data["objective"] or "mle")
        found = {FIRST_TOKEN_MLE[name] for name in weights if name in FIRST_TOKEN_MLE} or {True}
        return found.pop() if len(found) == 1 else None

    @field_validator("select", "monitor")
    @classmethod
    def _known_metrics(cls, value: Optional[str], info: ValidationInfo) -> Optional[str]:
        if value is not None and not (info.field_name == "select" and value == LAST):
            MetricSum.parse(value)
        return value

    @field_validator("split")
    @classmethod
    def _divides(cls, value: Optional[dict], info: ValidationInfo) -> Optional[dict]:
        return checked_division(value, info.data.get("seed", 0)) if value else None

    @field_validator("prompt")
    @classmethod
    def _whole_words(cls, value: str, others: ValidationInfo) -> str:
        package = CAPTIONERS.get(others.data.get("model"))
        if value and not value.endswith(" ") and not (package and package.ASKS):
            raise ValueError("end it with a space, or a caption's first word runs into it")
        return value

    @model_validator(mode="after")
    def _possible_together(self):
        self.decoding_settings()
        if self.reward:
            self._check_reward()
        try:
            self._check_addresses()
        except UserError as error:
            raise ValueError(str(error)) from error
        if self.reads_tars:
            self._check_tars()
        if self.split:
            self._check_division()
        if self.min_lr > self.init_lr:
            raise ValueError(f"min_lr is {self.min_lr}, above init_lr, {self.init_lr}")
        return self

    def _check_addresses(self) -> None:
        """Raise UserError for an address that no run can be written to, or that tells a secret."""
        if self.pretrained and has_folders(self.pretrained):
            check_address(self.pretrained)
        check_can_hold("output_dir", self.output_dir)

    @property
    def reads_tars(self) -> bool:
        """Whether train_file names tars."""
        names = self.train_file or []
        return any(map(is_tars, names if isinstance(names, list) else [names]))

    def _check_division(self) -> None:
        for key in ("val_file", "test_file"):
            if getattr(self, key):
                raise ValueError(f"split divides train_file, and {key} is set: unset one of them")
        if self.train_captions and self.train_captions == self.train_file:
            raise ValueError(
                "train_captions is train_file, of which split takes parts: name a file that has "
                "the captions of train alone"
            )

    def _check_tars(self) -> None:
        for key in ("reward", "bucket_batches", "split"):
            if getattr(self, key):
                raise ValueError(f"{key} needs annotations, and train_file names tars: unset it")

    def _check_reward(self) -> None:
        if "facts" in self.reward and not self.facts_file:
            raise ValueError(
                "reward: facts needs facts_file, the file that says what is in each image"
            )
        if self.reward_samples == 1 and self.reward_baseline == "others":
            raise ValueError(
                "reward_samples is 1, but reward_baseline is others, the mean of an image's other "
                "samples; raise it, or set reward_baseline=greedy"
            )
        if self.sharding != "none":
            raise ValueError(f"sharding is {self.sharding}, which reward has not; set it to none")

    @property
    def monitors(self) -> Optional[str]:
        """The key that makes a run go by `monitor` on the validation split, if one does."""
        if self.early_stopping:
            return "early_stopping"
        return "lr_schedule" if self.lr_schedule == "plateau" else None

    @property
    def facts_path(self) -> Optional[Path]:
        """Where facts_file is, or None without one."""
        return located(self.ann_root, self.facts_file) if self.facts_file else None

    @property
    def objects_paths(self) -> tuple[Path, ...]:
        """Where objects_file is, or the several that it names; none without one."""
        named = self.objects_file or ()
        names = [named] if isinstance(named, str) else named
        return tuple(located(self.ann_root, name) for name in names)

    @property
    def train_captions_path(self) -> Optional[Path]:
        """Where train_captions is, or None without one."""
        return located(self.ann_root, self.train_captions) if self.train_captions else None

    def decoding_settings(self) -> DecodingSettings:
        """How this run draws captions."""
        names = set(DecodingSettings.__dataclass_fields__) & set(type(self).model_fields)
        return DecodingSettings(**{name: getattr(self, name) for name in names})

    def build_objective(self) -> Objective:
        """What this run minimises; with a reward alone the captioner has an MLE that none asks."""
        return Objective(
            self.objective or "mle",
            self.label_smoothing,
            self.first_token_mle,
            self.random_subset_size,
        )


def keys_of(role: str) -> list[str]:
    """The keys of that role."""
    return [key for key, declared in roles_of(Config).items() if declared == role]


def load_config(
    path: Union[str, Path], overrides: Sequence[str] = (), flags: Optional[dict[str, Any]] = None
) -> Config:
    """The configuration in a YAML file, with `key=value` overrides, values written as in YAML.

    `vit.depth=2` reaches into a mapping; `pretrained=` empties a key. `flags`: values by key, as
    they are. Without an output_dir it is output/ and the file's name. Raises UserError: one line
    that names the key, what was found and what is allowed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"cannot read the configuration {path}: not UTF-8 text at byte {error.start}"
        ) from error
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected lines of 'key: value', found {_short(values)}")
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise UserError(f"override {override!r} is not of the form key=value")
        _set(values, key, parse_yaml(value, f"override {override!r}"))
    values.update(flags or {})
    values.setdefault("output_dir", f"output/{Path(path).stem}")
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{path}: {_explained(error, values)}") from error


def write_config(config: Config, path: Path) -> None:
    """The resolved configuration as YAML that `load_config` reads back."""
    buffer = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.dump(config.model_dump(), buffer)
    write_text(buffer.getvalue(), path)


def _set(values: dict, key: str, value: Any) -> None:
    *outer, last = key.split(".")
    for name in outer:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise UserError(f"override {key}: {name} is {_short(values)}, which holds no keys")
    values[last] = value


_DICTIONARY = re.compile("a valid dictionary( or instance of \\w+)?")


def _explained(error: ValidationError, values: dict) -> str:
    """All that is wrong; what a key that takes this or that should be is said at once."""
    found: dict[str, list[str]] = {}
    details = [d for d in error.errors() if not _of_other_alternative(d)] or error.errors()
    for detail in details:
        start, should, kind = _explain(detail, values).partition("; input should be ")
        found.setdefault(start + should, []).append(kind)
    return "; ".join(start + " or ".join(dict.fromkeys(kinds)) for start, kinds in found.items())


def _explain(detail: dict, values: dict) -> str:
    """One pydantic error in the words of the file."""
    if not detail["loc"]:  # several keys together: the message names them
        return detail["msg"].removeprefix("Value error, ")
    key = str(detail["loc"][0])
    inner = [str(part) for part in detail["loc"][1:] if str(part) in _names(values.get(key))]
    where = ".".join([key, *inner])
    if detail["type"] == "extra_forbidden":
        near = [] if inner else difflib.get_close_matches(key, Config.model_fields, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown key {where!r}{hint}"
    if detail["type"] == "missing":
        return f"{'.'.join(dict.fromkeys([key, str(detail['loc'][-1])]))} is missing"
    message = detail["msg"].removeprefix("Value error, ")
    message = _DICTIONARY.sub("a mapping", message[0].lower() + message[1:])
    return f"{where}: found {_short(detail['input'])}; {message}"


def _of_other_alternative(detail: dict) -> bool:
    """A key that takes a name or a mapping fails as both; only the kind that was given matters."""
    if isinstance(detail["input"], dict):
        return detail["type"] in ("literal_error", "string_type")
    return isinstance(detail["input"], str) and detail["type"] in ("dict_type", "model_type")


def _names(value: Any) -> set[str]:
    return {str(name) for name in value} if isinstance(value, dict) else set()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
