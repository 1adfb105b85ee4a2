"""Admission control: which requests are accepted, in which order, and together with which others.

- `control.py`: `AdmissionControl`, the way of one request from image to action
- `rate_limit.py`: requests a second for each caller
- `batch_queue.py`: the bounded queue in front of the model, with batches and deadlines
- `sessions.py`: the last steps of each session, for the prompt
- `action_cache.py`: actions for identical observations
- `images.py`: decoding what clients send, within size limits

This room imports `games` and `models`. It knows nothing of HTTP.
"""
