"""Serves generated household games to OpenEnv's clients: `python -m server.app --port 8000`, in examples/openenv.

Other machines are answered only if HOUSEHOLD_KEY is set, and they give it: http://HOST:8000/KEY. `uvicorn
server.app:app`, as OpenEnv's own tools start it, serves the same, but without limits for connections.
"""

import argparse
import os
import sys
from functools import partial

from alfworld_native import choose_games
from lavis.common.errors import MissingExtraError, missing_extra

try:
    import uvicorn

    from policy_server.web.connections import ConnectionRoom, LimitedProtocol, LimitedWebSocket
    from xrl_alignment.adapters.access import MAX_MESSAGE
    from xrl_alignment.adapters.openenv import make_app
except ModuleNotFoundError as error:
    sys.exit(f"error: {missing_extra('openenv', error)}")
except MissingExtraError as error:
    sys.exit(f"error: {error}")

CONNECTIONS = 256  # one more closes the one that has waited longest without a whole request
HEADER_S = 10.0  # for the headers of a request

app = make_app(
    choose_games("household", "household_train", num_train=100, num_heldout=100),
    key=os.environ.get("HOUSEHOLD_KEY", ""),
)


def main() -> None:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        http=partial(LimitedProtocol, room=ConnectionRoom(CONNECTIONS), header_timeout_s=HEADER_S),
        ws=LimitedWebSocket,
        ws_max_size=MAX_MESSAGE,
        proxy_headers=False,  # callers are who connects, not who a header says
    )


if __name__ == "__main__":
    main()
