"""Reads Jinja templates of pages."""

from functools import cache
from pathlib import Path

import jinja2


@cache  # the page renders a template for each answer
def read_template(path: Path) -> jinja2.Template:
    """Return a template, which escapes its variables; it may include files beside it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        autoescape=True,  # captions, file names and prompts can contain anything
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(path.name)
