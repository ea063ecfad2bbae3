"""Tell which lines of a requirements file the running environment does not satisfy.

    python scripts/check_requirements.py requirements.txt
    python scripts/check_requirements.py --versions requirements.txt

Prints them on one line, separated by commas, and exits with 1; prints nothing and exits with 0
where there are none. --versions prints NAME==VERSION for each package that is installed for them,
those that others of them need included. Needs pip, or the packaging library where pip is absent.
"""

import argparse
import sys
from importlib.metadata import distributions
from pathlib import Path

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import Version
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
    from pip._vendor.packaging.utils import canonicalize_name
    from pip._vendor.packaging.version import Version


def read_requirements(path):
    """Yield the requirements of a file and of those it includes with ``-r``."""
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-r "):
            yield from read_requirements(path.parent / line[3:].strip())
        elif line:
            yield Requirement(line)


def installed_distributions():
    """Return every installed distribution by its normalised name, which Python 3.9 cannot look up.

    The first on the path is the one that is imported.
    """
    installed = reversed(list(distributions()))
    return {canonicalize_name(found.metadata["Name"] or ""): found for found in installed}


def is_wanted(requirement, extras=("",)):
    """Return whether its marker includes this Python, this machine and one of the extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def is_satisfied(requirement, installed):
    """Return whether the requirement is installed, or its marker leaves this Python out.

    A pre-release counts: a nightly build of torch was installed on purpose.
    """
    if not is_wanted(requirement):
        return True
    found = installed.get(canonicalize_name(requirement.name))
    return found is not None and requirement.specifier.contains(found.version, prereleases=True)


def needed(requirements, installed):
    """Return the names of the installed distributions that the requirements need, in turn too."""
    extras = {}  # of each name, those that were asked for
    waiting = [r for r in requirements if is_wanted(r)]
    while waiting:
        requirement = waiting.pop()
        name, wanted = canonicalize_name(requirement.name), {"", *requirement.extras}
        if name not in installed or wanted <= extras.get(name, set()):
            continue
        extras[name] = extras.get(name, set()) | wanted
        further = map(Requirement, installed[name].requires or [])
        waiting += [r for r in further if is_wanted(r, extras[name])]
    return sorted(extras)


def main(argv=None):
    """Print what was asked for and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", action="store_true", help="what is installed, NAME==VERSION")
    parser.add_argument("requirements", type=Path)
    arguments = parser.parse_args(argv)
    requirements = list(read_requirements(arguments.requirements))
    installed = installed_distributions()
    if arguments.versions:
        for name in needed(requirements, installed):
            # Without the part that names a build: torch 2.15.0+cpu is 2.15.0.
            print(f"{name}=={Version(installed[name].version).public}")
        return 0
    missing = [r for r in requirements if not is_satisfied(r, installed)]
    if missing:
        print(", ".join(f"{r.name}{r.specifier}" for r in missing))
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
