"""How does a configuration file become a `Config`, and what is said when it cannot?

The file is one JSON object: the configuration itself, or MindIE Motor's file that holds it under
`motor_coordinator_config`. Environment variables `MOTOR_FLOW_<SECTION>__<KEY>` override single keys; they are checked
by the same rules. Every fault is listed with its key path. Inside Motor's wrapper, where keys of other components live,
unknown keys are warnings; anywhere else they are faults.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from motor_flow.config.sections import Config

WRAPPER = "motor_coordinator_config"
ENV_PREFIX = "MOTOR_FLOW_"
SECRET_KEYS = frozenset({"api_key", "seed_content", "valid_keys"})
PATHS = {
    "model": ("model_path",),
    "infer_tls": ("ca_file", "cert_file", "key_file", "passwd_file", "crl_file"),
    "mgmt_tls": ("ca_file", "cert_file", "key_file", "passwd_file", "crl_file"),
}


class BadConfiguration(Exception):
    """The configuration cannot be used.

    Attributes:
        faults: one line per fault: key path, what is wrong.

    """

    def __init__(self, source: str, faults: list[str]) -> None:
        noun = "fault" if len(faults) == 1 else "faults"
        super().__init__(
            "\n".join([f"{source}: {len(faults)} {noun} in the configuration", *map("  {}".format, faults)])
        )
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Loaded:
    """A usable configuration and what was noticed while reading it.

    Attributes:
        source: the file, or what stands for it.
        given: the keys that file and environment set, as `section.key`.
        warnings: one line each.

    """

    config: Config
    source: str
    given: frozenset[str]
    warnings: list[str] = field(default_factory=list)


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Read a configuration file.

    Raises:
        BadConfiguration: it cannot be read, or something in it or in the environment is wrong.

    """
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfiguration(source, [f"cannot be read: {exc}"]) from exc
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except _Doubled as exc:
        raise BadConfiguration(source, [f"{exc}: given twice in one object"]) from exc
    except ValueError as exc:
        raise BadConfiguration(source, [f"is not JSON: {exc}"]) from exc
    if not isinstance(document, dict):
        raise BadConfiguration(source, ["must hold one JSON object"])
    wrapped = WRAPPER in document
    tree = document[WRAPPER] if wrapped else document
    if not isinstance(tree, dict):
        raise BadConfiguration(source, [f"{WRAPPER}: must be an object"])
    return _build(tree, source, path.parent, environ, forgiving=wrapped)


class _Doubled(ValueError):
    """A key that stands twice in one object: JSON readers would take the last one without a word."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Doubled(key)
        found[key] = value
    return found


def load_embedded(changes: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Loaded:
    """The configuration of a cluster that lives in this process; environment overrides hold here too."""
    return _build(dict(changes), "the embedded cluster", Path(), environ, forgiving=False)


def _build(
    tree: dict[str, Any], source: str, directory: Path, environ: Mapping[str, str], *, forgiving: bool
) -> Loaded:
    warnings: list[str] = []
    overridden, faults = _overlay(tree, environ)
    config: Config | None = None
    while config is None:
        try:
            # JSON mode: strict about types, but arrays and objects are what they are in JSON.
            config = Config.model_validate_json(json.dumps(tree), strict=True)
        except ValidationError as exc:
            found = exc.errors(include_url=False)
            unknown = [error for error in found if error["type"] == "extra_forbidden"]
            if forgiving and unknown:
                for error in unknown:
                    _remove(tree, error["loc"])
                    warnings.append(f"{_dotted(error['loc'])}: not known here, ignored")
                continue
            faults += [_line(error, overridden) for error in found]
            break
    if config is None or faults:
        raise BadConfiguration(source, faults)
    given = frozenset(_given(tree))
    return Loaded(_resolved(config, directory), source, given, warnings)


def _overlay(tree: dict[str, Any], environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Write the environment's values into the tree. Returns {key path: variable} and faults."""
    sections = {info.alias or name: info for name, info in Config.model_fields.items()}
    overridden: dict[str, str] = {}
    faults: list[str] = []
    for variable, raw in sorted(environ.items()):
        if not variable.startswith(ENV_PREFIX):
            continue
        section, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("__")
        if section not in sections:
            if key:
                faults.append(f"{section}: unknown section, from environment variable {variable}")
            continue  # without a double underscore it is not an override
        if not key:
            tree[section] = _value(raw, sections[section].annotation)
            overridden[section] = variable
            continue
        branch = tree.setdefault(section, {})
        if not isinstance(branch, dict):
            faults.append(f"{section}: has no keys, but environment variable {variable} names one")
            continue
        steps = key.split("__")
        for step in steps[:-1]:
            branch = branch.setdefault(step, {})
            if not isinstance(branch, dict):
                faults.append(f"{section}.{step}: has no keys, but environment variable {variable} names one")
                break
        else:
            branch[steps[-1]] = _value(raw, _annotation(sections[section].annotation, steps))
            overridden[".".join([section, *steps])] = variable
    return overridden, faults


def _annotation(model: Any, steps: list[str]) -> Any:
    for step in steps:
        fields = getattr(model, "model_fields", {})
        model = fields[step].annotation if step in fields else None
    return model


def _value(raw: str, annotation: Any) -> Any:
    """The environment knows only strings: a key that wants one gets it as it is, every other key reads JSON."""
    if annotation is str:
        return raw
    try:
        return json.loads(raw.lower() if raw.lower() in ("true", "false") else raw)
    except ValueError:
        return raw  # the model says what it wanted instead


def _line(error: ErrorDetails, overridden: Mapping[str, str]) -> str:
    path = _dotted(error["loc"])
    what = "unknown key" if error["type"] == "extra_forbidden" else error["msg"].removeprefix("Value error, ")
    given = error.get("input")
    if error["type"] not in ("extra_forbidden", "missing") and isinstance(given, str | int | float | None):
        last = next((str(part) for part in reversed(error["loc"]) if isinstance(part, str)), "")
        what += "" if last in SECRET_KEYS else f", given {json.dumps(given)}"
    variable = overridden.get(path)
    return (f"{path}: " if path else "") + what + (f", from environment variable {variable}" if variable else "")


def _dotted(loc: tuple[int | str, ...]) -> str:
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def _remove(tree: Any, loc: tuple[int | str, ...]) -> None:
    for part in loc[:-1]:
        tree = tree[part]
    del tree[loc[-1]]


def _given(tree: dict[str, Any]) -> list[str]:
    """The keys that are set, `section.key`; those of a list's items as if it had only one."""
    paths = []
    for section, value in tree.items():
        items = value if isinstance(value, list) else [value]
        keys = [f"{section}.{key}" for item in items if isinstance(item, dict) for key in item]
        paths += keys or [section]
    return paths


def _resolved(config: Config, directory: Path) -> Config:
    """Relative paths are relative to the file."""
    update = {}
    for section, keys in PATHS.items():
        values = getattr(config, section)
        moved = {
            key: str(directory / value)
            for key in keys
            if (value := getattr(values, key)) and not Path(value).is_absolute()
        }
        if moved:
            update[section] = values.model_copy(update=moved)
    return config.model_copy(update=update)
