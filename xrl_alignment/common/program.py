"""What the programs share: the command line in LAVIS's style, and how a program ends."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable

from lavis.common.errors import EmacError


def parse_args(
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    argv: list[str] | None = None,
    cfg_required: bool = True,
) -> argparse.Namespace:
    """Parse a program's command line in LAVIS's style: `--cfg-path FILE [--options key=value …]`.

    `add_arguments` may add further arguments to the parser. `options` is always a list.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cfg-path", metavar="FILE", required=cfg_required, help="settings, a yaml file")
    parser.add_argument(
        "--options", metavar="KEY=VALUE", nargs="+", action="extend", default=[], help="settings laid over the file"
    )
    if add_arguments is not None:
        add_arguments(parser)
    return parser.parse_args(argv)


def run_program(main: Callable[[], int | None]) -> None:
    """Run `main` and leave the process with its exit code.

    An `EmacError` (a user's mistake, a limit of the machine) ends in one line `error: …` on stderr and exit code 2;
    with `EMAC_TRACEBACK=1` in the environment the traceback is printed as well. Any other exception is a fault of this
    code and shows its traceback. Ctrl-C ends in `interrupted` and 130, and so does SIGTERM: what is open is closed,
    what was started is stopped.
    """
    before = signal.signal(signal.SIGTERM, _unwind)
    try:
        code = main()
    except (EmacError, ValueError, OSError, ImportError) as error:
        if os.environ.get("EMAC_TRACEBACK"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt as stop:
        print(f"interrupted: {stop}" if str(stop) else "interrupted", file=sys.stderr)
        code = 130
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(code or 0)


def _unwind(*_: object) -> None:
    # `timeout` and queues send it twice: the second one must not cut short what the first one began.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
