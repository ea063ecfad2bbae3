"""What the About tab says: what is compared, the limits, the programs' way in."""

from importlib import metadata

from app.desk import Desk
from app.limits import Limits
from app.options import Options
from app.view import templates


def about(desk: Desk, limits: Limits, address: str) -> str:
    """HTML. address: where the server is, http://host:port."""
    return templates.get_template("about.html").render(
        checkpoints=desk.checkpoints,
        limits=limits,
        address=address,
        options=[name for name in Options.model_fields],
        versions={name: metadata.version(name) for name in ("torch", "transformers", "gradio")},
    )
