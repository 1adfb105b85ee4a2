"""The policy server: one vision-language model that many games ask for actions over HTTP.

The guide for users is docs/policy_server.md. The code has four rooms. A room imports only from the rooms below it:

    web/          HTTP and WebSocket: routes, JSON, API keys, shutdown, the page /ui
    admission/    admission control: rate limits, sessions, cache, the queue that makes batches
    models/       vision-language models: Transformers, Blip2Emac, several by name within a memory budget
    games/        prompts for the games, and from the model's text to a valid action

All rooms share three modules: `settings.py` (the yaml file), `metrics.py` (Prometheus) and `refusals.py`
(`RequestRefused`, the exception that refuses a request).

Programs:

    qwen_policy_server.py    builds one object of each room, from the bottom to the top, and serves
    qwen_policy_client.py    the client, a single file that imports nothing else of this project
    basalt_stand_in.py       a small stand-in for MineRL's environments, for trying the client

One request passes `web.gate` → `web.actions` → `admission.control` → `admission.batch_queue` → `models.pool`, and the
model's text returns through `games`. To read the code, follow that order. `admission/control.py` is the centre.
"""
