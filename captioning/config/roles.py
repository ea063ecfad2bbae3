"""The role of a configuration key.

A key is declared as `name: Annotated[type, role] = default` with a role of ROLES. The role decides
whether the key may change when a run resumes, whether the report shows it, and which programs have
a flag for it.
"""

from pydantic import BaseModel

ROLES = {
    "run": "changes the results: a run that resumes refuses another value",
    "batch": "the product of these is the images of a step: a run that resumes refuses another",
    "length": "how long a run is: refused where it changes the epochs that are done",
    "speed": "changes speed and memory, but no result",
    "upkeep": "how a run is logged, saved, validated and stopped: may change when it resumes",
    "data": "where data are, which may have moved",
    "machine": "where the run is written and on which device it runs",
    "generation": "how captions are generated",
    "scoring": "how captions are scored",
}


def roles_of(keys: type[BaseModel]) -> dict[str, str]:
    """The role of each key, by name. Raises TypeError unless each key declares one role."""
    found = {}
    for name, field in keys.model_fields.items():
        declared = [part for part in field.metadata if isinstance(part, str) and part in ROLES]
        if len(declared) != 1:
            raise TypeError(f"key {name!r} declares {declared}; give it one of {', '.join(ROLES)}")
        found[name] = declared[0]
    return found
