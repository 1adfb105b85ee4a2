"""Hands LoRA adapters that train over to inference engines, by name.

An engine keeps adapters, and the KV blocks computed with them, by their name. So every state of the weights gets a name
and a folder of its own.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lavis.common.files import make_folder
from lavis.models.blip2_models.adapters import is_adapter
from xrl_alignment.agents.policies.base import changes
from xrl_alignment.agents.policies.vllm.base import InferenceClient, ServedAdapter

if TYPE_CHECKING:
    from torch import nn


class AdapterHandover:
    """Gives the adapters in `model` to the engines that `client` asks; `save` writes them to a folder as peft does.

    They are written below `folder`, which servers on other machines must see, too (empty: a temporary folder).
    FileError if the folder cannot be written.
    """

    def __init__(
        self, model: nn.Module, save: Callable[[Path], None], client: InferenceClient, folder: str = ""
    ) -> None:
        self._model = model
        self._save = save
        self._client = client
        self._name = f"emac-{secrets.token_hex(4)}"  # several programs may use one server
        self._folder = (
            Path(folder).resolve() / self._name if folder else Path(tempfile.mkdtemp(prefix="emac-adapters-"))
        )
        make_folder(self._folder)
        self._written: list[int] = []  # the changes of the weights in `_adapter`
        self._adapter = ServedAdapter("", 0, self._folder)
        self._given: dict[str, ServedAdapter] = {}  # by address
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def update(self) -> None:
        """Write the adapters if they have changed; no request may be in progress."""
        now = changes(weight for name, weight in self._model.named_parameters() if is_adapter(name))
        if now == self._written:
            return
        # A new name and a new folder for every state of the weights; the state before it is needed by nobody.
        before, number = self._adapter, self._adapter.number + 1
        adapter = ServedAdapter(f"{self._name}-{number}", number, self._folder / str(number))
        self._save(adapter.folder)
        self._adapter, self._written = adapter, now
        if before.number:
            shutil.rmtree(before.folder, ignore_errors=True)

    def give(self, url: str, *, again: bool = False) -> None:
        """Let the engine at `url` answer with the newest adapters; `again` if it may have been started anew."""
        # Several threads ask one engine at once; one of them hands over, the others wait for it.
        with self._locks[url]:
            if again:
                self._given.pop(url, None)  # before the call: if that fails, the next one gives the adapters again
            if self._given.get(url) != self._adapter:
                self._client.use_adapter(url, self._adapter)
                self._given[url] = self._adapter

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
