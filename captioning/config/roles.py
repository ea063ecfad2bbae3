"""What a configuration key is for: said where the key is declared, and asked for from here.

A key is declared as `name: Annotated[type, role] = default`, the role one of ROLES. What may change
when a run goes on, what the report shows and what a program sets by itself follow from it.
"""

from pydantic import BaseModel

ROLES = {
    "run": "another value makes another run, so a run that goes on refuses it",
    "batch": "the images of a step are the product of these; another product makes another run",
    "length": "how long a run is; refused where the epochs that are done would have been others",
    "speed": "how fast the run is and how much memory it takes, not what comes of it",
    "upkeep": "how a run is logged, saved, validated and ended; may change as it goes on",
    "data": "where data lie, which may have moved",
    "machine": "where the run itself lies and runs",
    "generation": "how captions are drawn",
    "scoring": "how captions are scored",
}


def roles_of(keys: type[BaseModel]) -> dict[str, str]:
    """The role of each key, by name. Raises TypeError for a key that declares none, or two."""
    found = {}
    for name, field in keys.model_fields.items():
        declared = [part for part in field.metadata if isinstance(part, str) and part in ROLES]
        if len(declared) != 1:
            raise TypeError(f"key {name!r} declares {declared}; give it one of {', '.join(ROLES)}")
        found[name] = declared[0]
    return found
