"""What every group of configuration keys is: checked strictly, and never changed."""

from pydantic import BaseModel, ConfigDict


class Checked(BaseModel):
    """No unknown key, no conversion of types (an integer may stand for a float)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
