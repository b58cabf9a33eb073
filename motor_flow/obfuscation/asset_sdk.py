"""Provider `ai_asset_obfuscate`: how does the Trust AI SDK's map become a table?

The SDK keeps one map for the whole process: whoever makes a second instance replaces it silently. So it is asked once,
for the whole vocabulary, at the start; everything after that reads our own table, which is also some hundred times as
fast. The other direction is asked too, and must agree.

The package is not among our dependencies: it needs torch without saying so, and finds its libraries only through an
LD_LIBRARY_PATH that was set before the process started.

Source: ai-asset-obfuscate 26.0.22 (DataAssetObfuscation).
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any

PACKAGE = "ai_asset_obfuscate"


class SdkUnusable(Exception):
    """The SDK is not there, or does not do what it is for."""


def sdk_table(vocab_size: int, white_list: Collection[int], seed: str) -> list[int]:
    """At each semantic id its physical one.

    Raises:
        SdkUnusable: with what to do about it.

    """
    try:
        api: Any = importlib.import_module(PACKAGE).DataAssetObfuscation(vocab_size, sorted(white_list))
        return _asked(api, list(range(vocab_size)), seed)
    except SdkUnusable:
        raise
    except ModuleNotFoundError as exc:
        raise SdkUnusable(
            f"Python package {exc.name} is missing: pip install ai-asset-obfuscate (it needs torch as well)"
        ) from exc
    except Exception as exc:  # its own exceptions share no type that could be named without importing it
        raise SdkUnusable(
            f"{PACKAGE} does not work here: {exc!r} (its folder `libs` must be on LD_LIBRARY_PATH "
            "before the process starts)"
        ) from exc


def _asked(api: Any, every: list[int], seed: str) -> list[int]:
    code, said = api.set_seed_content(seed_content=seed)
    if code != 0:
        raise SdkUnusable(f"{PACKAGE} refuses the seed: {said} ({code})")
    physical: list[int] = api.data_1d_obf(every)
    if api.data_1d_deobf(physical) != every:
        raise SdkUnusable(f"{PACKAGE} does not undo its own map")
    return physical
