"""The real Trust AI SDK hides token ids in the same scenarios as our own permutation.

It runs in a process of its own: it finds its libraries only through an LD_LIBRARY_PATH from before the process started,
and takes torch from the vLLM environment. Its offline half, which permutes weights, is not used: simulated engines are
permuted by its table.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.e2e.real import ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

ONE_TABLE = """
import os, sys
from motor_flow.obfuscation.asset_sdk import sdk_table
from tests.e2e.with_sdk import appended

with appended(sys.argv[1].split(os.pathsep)):
    print(sdk_table(9, [0, 1], "s" * 32))
"""


@pytest.fixture
def sdk(vllm_home, tmp_path):
    """Where the SDK, its libraries and torch are; `run` starts Python with or without its libraries."""
    folder = vllm_home / "sdk"
    libraries = folder / "ai_asset_obfuscate" / "libs"
    assert libraries.is_dir(), f"no SDK in {folder}: run tests/e2e/vllm/install.sh again"
    (torch,) = (vllm_home / "v032" / "lib").glob("python3*/site-packages")

    def run(*args, found=True, **env):
        env = os.environ | env | {"OBF_LOG_PATH": str(tmp_path)}
        env.pop("LD_LIBRARY_PATH", None)
        if found:
            env["LD_LIBRARY_PATH"] = str(libraries)
        return subprocess.run(
            [sys.executable, *map(str, args)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )

    return SimpleNamespace(folder=str(folder), both=f"{folder}{os.pathsep}{torch}", run=run)


def test_the_scenarios_of_our_own_permutation(sdk):
    """Same answers, relayed too; nothing semantic on the wire; and the SDK is asked for tables only."""
    done = sdk.run(
        *("-m", "tests.e2e.with_sdk", sdk.both),
        *("-p", "no:cacheprovider", "--color=no", "tests/scenarios/test_obfuscation.py"),
        MOTOR_FLOW_OBFUSCATION_PROVIDER="ai_asset_obfuscate",
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed, said = re.search(r"^(\d+) passed( in .*)$", done.stdout, re.MULTILINE).groups()
    made, late = re.search(r"tables of the SDK: (\d+); calls after that: (.*)$", done.stdout, re.MULTILINE).groups()
    assert int(passed) > 150, said
    assert (int(made) > 150, late) == (True, "[]")


def test_a_seed_gives_the_same_table_everywhere(sdk):
    """Engines were permuted elsewhere, perhaps by an older SDK."""
    assert sdk.run("-c", ONE_TABLE, sdk.both).stdout == "[0, 1, 5, 4, 2, 3, 7, 6, 8]\n"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("libraries", "its folder `libs` must be on LD_LIBRARY_PATH before the process starts"),
        ("torch", "Python package torch is missing: pip install ai-asset-obfuscate (it needs torch as well)"),
    ],
)
def test_what_is_missing_is_said(sdk, what, says):
    folders = sdk.folder if what == "torch" else sdk.both
    done = sdk.run("-c", ONE_TABLE, folders, found=what != "libraries")
    assert done.returncode != 0
    assert says in done.stdout.splitlines()[-1]
