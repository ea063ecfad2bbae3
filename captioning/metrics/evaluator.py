"""Adapts evaluators of the former interface, with a class of options, to `base`."""

from typing import Annotated, Any, Optional

from captioning.metrics import base
from captioning.metrics.base import (
    CaptionSet,
    Scores,
    Settings,
    build_evaluators,
    entries_of,
)
from captioning.metrics.options import Options
from captioning.metrics.registry import METRICS_OF
from captioning.runtime.errors import UserError

__all__ = ["CaptionSet", "Scores", "Settings", "build_evaluators", "entries_of"]


class Evaluator(base.Evaluator):
    """Has `Options` instead of `options`, `check_requirements`, and {option: value} in __init__."""

    name: str
    Options: type[Options] = Options
    on_every_rank = False
    metric_names = ()

    def __init_subclass__(cls, **others: Any) -> None:
        super().__init_subclass__(**others)
        fields = cls.Options.model_fields
        cls.options = {
            name: (Annotated[field.annotation, "scoring"], field) for name, field in fields.items()
        }
        cls.metrics = METRICS_OF.get(getattr(cls, "name", None), ())

    def __init__(self, config: Any = None, settings: Optional[Settings] = None, **options: Any):
        if isinstance(config, Settings):
            config, settings = None, config
        if config is None:
            self.options = self.Options.checked(options)
        elif hasattr(config, "ann_root"):
            self.options = self.Options(**self.Options.from_config(config))
        else:
            self.options = self.Options(**self.Options.local_values(config))
        if problem := base.missing_options(type(self), self.options):
            raise UserError(f"metrics: {self.name} {problem}")
        self.metric_names = tuple(metric.name for metric in self.metrics)
        super().__init__(self.options, settings or Settings())
