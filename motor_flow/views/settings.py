"""What may be configured, and what is configured?

Source: contract section 1 (config schema, config show).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from motor_flow.config import BadConfiguration, Config, load, load_embedded
from motor_flow.config.load import SECRET_KEYS
from motor_flow.views.exits import EXIT_CONFIG

HIDDEN = "***"


def print_schema() -> int:
    """The JSON Schema of the configuration."""
    sys.stdout.write(json.dumps(Config.model_json_schema(by_alias=True), indent=2, ensure_ascii=False) + "\n")
    return 0


def print_effective(path: Path | None) -> int:
    """The configuration as it takes effect: file, environment, defaults; secrets hidden."""
    try:
        loaded = load(path) if path is not None else load_embedded({})
    except BadConfiguration as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_CONFIG
    shown: dict[str, Any] = loaded.config.model_dump(by_alias=True, mode="json")
    for section in shown.values():
        for key in SECRET_KEYS.intersection(section) if isinstance(section, dict) else ():
            value = section[key]
            if value:
                section[key] = [HIDDEN] * len(value) if isinstance(value, list) else HIDDEN
    sys.stdout.write(json.dumps(shown, indent=2, ensure_ascii=False) + "\n")
    return 0
