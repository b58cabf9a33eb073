"""Run pytest with the real Trust AI SDK and watch when it is asked: python -m tests.e2e.with_sdk FOLDERS ARGUMENT...

FOLDERS, joined as in PATH, hold the SDK and torch. They come after everything that is there, and only while the SDK is
imported: our own dependencies stay ours. LD_LIBRARY_PATH must have been set by whoever starts this process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys

import pytest

from motor_flow.obfuscation.asset_sdk import PACKAGE
from motor_flow.obfuscation.providers import PROVIDERS

ASKED = ("__init__", "set_seed_content", "data_1d_obf", "data_1d_deobf", "data_2d_obf", "data_2d_deobf")


@contextlib.contextmanager
def appended(folders):
    """What is missing is looked for in these folders."""
    before = list(sys.path)
    sys.path += folders
    try:
        yield
    finally:
        sys.path[:] = before


class Watch:
    """The SDK may be asked while a table is made, and not afterwards: then it fails, and so does the run."""

    def __init__(self, api):
        self.made = 0
        self.late = []
        self._making = False
        for name in ASKED:
            setattr(api, name, self._watched(name, getattr(api, name)))
        self._table = PROVIDERS[PACKAGE]
        PROVIDERS[PACKAGE] = self._make

    def _make(self, *args):
        self._making = True
        try:
            table = self._table(*args)
        finally:
            self._making = False
        self.made += 1
        return table

    def _watched(self, name, method):
        @functools.wraps(method)
        def watched(*args, **kwargs):
            if not self._making:
                self.late.append(name)
                raise AssertionError(f"{name} was called after the tables were made")
            return method(*args, **kwargs)

        return watched

    def pytest_sessionfinish(self, session):
        if self.late or not self.made:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_line(f"tables of the SDK: {self.made}; calls after that: {self.late}")


def main(folders, *args):
    with appended(folders.split(os.pathsep)):
        api = importlib.import_module(PACKAGE).DataAssetObfuscation
    return pytest.main(list(args), plugins=[Watch(api)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
