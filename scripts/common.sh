# What the scripts share; sourced, not run. Leaves the caller in the repository's root.
# shellcheck shell=bash
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# What belongs to other Pythons on this machine must not leak in (a sourced ROS workspace does).
unset PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USER=0

heading() { printf '\n== %s\n' "$*"; }

fail() { # a message, and lines on what to try
    printf '\nerror: %s\n' "$1" >&2
    shift
    (($# == 0)) || printf '   = try: %s\n' "$@" >&2
    exit 1
}

run() { # a command, shown before it runs
    printf '$ %s\n' "$*"
    "$@"
}

fits() { # is PYTHON one that hbc runs on?
    "$1" -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() { # prints the interpreter to use
    local python
    if [[ -n "${PYTHON:-}" ]]; then
        fits "$PYTHON" || fail "PYTHON=$PYTHON is not a Python from 3.10 to 3.13 with its venv module"
        echo "$PYTHON"
        return
    fi
    for python in python3 python3.13 python3.12 python3.11 python3.10 python; do
        if fits "$python"; then
            echo "$python"
            return
        fi
    done
    fail "no Python from 3.10 to 3.13 with its venv module was found" \
        "install one, or name it: PYTHON=/path/to/python bash $0" \
        "on Debian and Ubuntu: apt install python3 python3-pip python3-venv"
}

version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])'; }

make_venv() { # VENV: a virtual environment with pip, made unless it is there already
    local venv=$1 python version
    python=$(find_python)
    version=$(version_of "$python")
    if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        [[ -z "${PYTHON:-}" || "$(version_of "$venv/bin/python")" == "$version" ]] && return
    fi
    heading "Making $venv with Python $version"
    rm -rf "$venv"
    if "$python" -m venv "$venv" >/dev/null 2>&1; then return; fi
    # Debian ships Python without ensurepip; the pip that is there can stand in.
    rm -rf "$venv"
    "$python" -m venv --without-pip "$venv" || fail "could not make a virtual environment in $PWD/$venv"
    quietly "pip could not be installed into $venv" "$python" -m pip --python "$venv/bin/python" install pip
}

install() { # VENV EXTRAS: hbc from this checkout, unless what is there is up to date
    local venv=$1 extras=$2 stamp
    stamp="$(cksum setup.py pyproject.toml runtime/version.py) $extras $(version_of "$venv/bin/python") $PWD"
    if [[ "$(cat "$venv/installed" 2>/dev/null)" == "$stamp" ]]; then return; fi
    heading "Installing hbc$extras into $venv"
    quietly "pip could not install hbc$extras" "$venv/bin/python" -m pip install --editable ".$extras"
    printf '%s\n' "$stamp" >"$venv/installed"
}

quietly() { # WHAT-FAILED COMMAND…: its output is shown only if it fails
    local what=$1 log
    shift
    log=$(mktemp)
    if "$@" >"$log" 2>&1; then
        rm -f "$log"
        return
    fi
    tail -n 20 "$log" >&2
    rm -f "$log"
    fail "$what; its last lines are above" \
        "is the package index reachable? behind a proxy or a mirror, set HTTPS_PROXY or PIP_INDEX_URL" \
        "without a network: PIP_NO_INDEX=1 PIP_FIND_LINKS=/folder/with/wheels bash $0"
}
