#!/usr/bin/env bash
# Prints the path of the project's Python: bash scripts/setup.sh [app|cluster|dev]
# It has requirements.txt and the given extra of pyproject.toml. An active environment that has them
# is used as it is, unless VENV or PYTHON is set. Otherwise uv makes one in VENV (default .venv in
# the repository) with PYTHON (default python3), of the versions in requirements-lock.txt or, with
# LATEST=1, of the newest. Packages come from where pip's settings say (PIP_INDEX_URL, pip.conf).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
say() { echo "$*" >&2; }
fail() { say "error: $*" && exit 1; }
[[ ${1:-} =~ ^(app|cluster|dev)?$ ]] || fail "setup.sh takes app, cluster or dev, not '$1'"
requirements=(-r "$root/requirements.txt" ${1:+-r "$root/pyproject.toml" --extra "$1"})
extra="${1:+smile-captioning[$1]}" # pip reads the extras of installed projects only
python="${PYTHON:-python3}" venv="$(realpath -ms "${VENV:-$root/.venv}")"
interpreter="$venv/bin/python" log="$venv/setup.log"
lock="$venv.lock" # has a line while packages are written, which may then be incomplete
version_of() { "$1" -c 'import sys; print("Python %d.%d" % sys.version_info[:2])' 2>/dev/null ||:; }
find_uv() { for uv in "$venv/bin/uv" uv; do "$uv" --version &>/dev/null && return; done; false; }
satisfies() { # without a source of packages, installers only check; prints what is missing
    local check=("$1" -m pip --isolated install ${extra:---no-deps -r "$root/requirements.txt"})
    ! find_uv ||
        check=("$uv" pip install --python "$1" --no-config --dry-run --no-deps "${requirements[@]}")
    env -u UV_FIND_LINKS PIP_CONFIG_FILE=/dev/null "${check[@]}" --no-index 2>&1 |
        sed -nE '/.*(distribution found for|you require|depends on) ([^ ,]+).*/{s//\2/p;q}'
}
ready() { [[ -x $interpreter && ! -s $lock ]] && satisfies "$interpreter" >/dev/null; }
check_python() {
    local version="$(version_of "$python")" held="$([[ -s $lock ]] || version_of "$interpreter")"
    [[ $version =~ ^Python\ 3\.(9|..)$ ]] ||
        fail "'$python' is ${version:-not found or does not run}: set PYTHON to Python 3.9 or later"
    [[ ${held:-$version} == "$version" ]] || fail "$venv has $held, not $version: set VENV"
}
install() {
    local name word settings arguments=(--python "$interpreter" "${requirements[@]}")
    if [[ -s $lock || -z $(version_of "$interpreter") ]]; then
        [[ ! -s $lock ]] || say "an earlier installation did not finish: making $venv again"
        check_python && echo installing >&9
        "$python" -m venv --clear "$venv" >&2 || fail "'$python' could not make $venv"
    fi
    settings="$("$interpreter" -m pip config list || :)" # source.name='value', variables first
    setting() { sed -nE "/^[^=]*\.$1='(.*)'$/{s//\1/;s/\\\\n/ /g;p;q}" <<<"$settings"; }
    for name in index-url extra-index-url find-links trusted-host constraint; do
        for word in $(setting "$name"); do arguments+=("--$name" "$word"); done
    done
    [[ ! $(setting no-index) =~ ^(1|t|y|on) ]] || arguments+=(--no-index)
    [[ -z $(setting cert) ]] || export "SSL_CERT_FILE=$(setting cert)"
    [[ ${LATEST:-} == 1 ]] || arguments+=(--constraint "$root/requirements-lock.txt")
    say "installing packages into $venv (log: $log)" && echo installing >&9
    { find_uv || { "$interpreter" -m pip install "uv>=0.9" && find_uv; }; } >"$log" 2>&1 &&
        "$uv" pip install --index-strategy unsafe-best-match "${arguments[@]}" >>"$log" 2>&1 &&
        : >"$lock" && return
    ! grep -qi error "$log" || grep -q 'Failed to install' "$log" || : >"$lock" # nothing written
    ! grep -qE 'sending request|o fetch|Request failed|found for uv|Connection|Timeout' "$log" ||
        fail "the package index cannot be reached: check network, proxy, PIP_INDEX_URL (log: $log)"
    tail -n 15 "$log" | sed 's/^/    /' >&2
    fail "cannot install the packages (log: $log); LATEST=1 takes newer versions"
}
for active in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
    [[ -z ${VENV:-}${PYTHON:-} && -n $active && $active != "$venv" ]] || continue
    ! missing="$(satisfies "$active/bin/python")" || { echo "$active/bin/python" && exit; }
    say "the active environment $active lacks ${missing:-a Python that works}: using $venv"
done
[[ -z ${PYTHON:-} ]] || check_python
if ! ready; then
    [[ ! -e $venv || -e $venv/pyvenv.cfg || -s $lock ]] || fail "$venv is no environment: set VENV"
    { mkdir -p "${venv%/*}" && exec 9>>"$lock"; } 2>/dev/null || fail "cannot write $lock: set VENV"
    flock --nonblock 9 || { say "waiting for another call that installs into $venv" && flock 9; }
    ready || install
fi
echo "$interpreter"
