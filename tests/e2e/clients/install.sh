#!/bin/bash
# The clients that do not share our environment: install.sh DIR [VLLM_DIR]   (about a minute)
#
# openai-python 2.x, LangChain, openai-node; with VLLM_DIR, which vllm/install.sh made, guidellm too: it needs torch, and
# takes it from there.
set -euo pipefail
DIR=${1:?usage: install.sh DIR [VLLM_DIR]}
PY=${PY:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

if [ ! -f "$DIR/.complete" ]; then
    rm -rf "$DIR"
    mkdir -p "$DIR/node"
    "$PY" -m venv "$DIR/two"
    "$DIR/two/bin/pip" install -q 'openai>=2,<3'
    "$PY" -m venv "$DIR/chain"
    "$DIR/chain/bin/pip" install -q langchain-openai
    if ! npm install --silent --no-fund --no-audit --prefix "$DIR/node" openai@6; then
        echo "no npm, or no registry for it: openai-node is left out, and its test says so" >&2
        rm -rf "$DIR/node/node_modules"
    fi
    touch "$DIR/.complete"
fi
if [ -n "${2:-}" ] && [ ! -f "$DIR/.load" ]; then
    rm -rf "$DIR/load"
    "$2/v032/bin/python" -m venv "$DIR/load"
    site "$2/v032" > "$(site "$DIR/load")/zz_lean.pth"
    if "$DIR/load/bin/pip" install -q 'guidellm>=0.8,<0.9'; then
        touch "$DIR/.load"
    else
        echo "guidellm is left out, and its test says so" >&2
        rm -rf "$DIR/load"
    fi
fi
