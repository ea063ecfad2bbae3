"""What every group of configuration keys is: checked strictly, and never changed."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Named = Annotated[str, Field(min_length=1)]  # a name or a place that there has to be


class Checked(BaseModel):
    """No unknown key, no conversion of types (an integer may stand for a float)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
