#!/bin/bash
# The clients that do not share our environment: install.sh DIR   (openai-python 2.x, LangChain, openai-node; half a minute)
set -euo pipefail
DIR=${1:?usage: install.sh DIR}
PY=${PY:-python3}
[ -f "$DIR/.complete" ] && exit 0
rm -rf "$DIR"
mkdir -p "$DIR/node"
"$PY" -m venv "$DIR/two"
"$DIR/two/bin/pip" install -q 'openai>=2,<3'
"$PY" -m venv "$DIR/chain"
"$DIR/chain/bin/pip" install -q langchain-openai
if command -v npm > /dev/null; then
    npm install --silent --no-fund --no-audit --prefix "$DIR/node" openai@6
fi
touch "$DIR/.complete"
