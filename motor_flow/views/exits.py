"""With which status does a command end?

Source: contract section 1.
"""

from __future__ import annotations

import signal

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PROBLEMS = 3
EXIT_CONFIG = 78
EXIT_BY_SIGNAL = {signal.SIGTERM: 143, signal.SIGINT: 130}
