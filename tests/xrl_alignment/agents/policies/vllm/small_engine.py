"""A small inference engine over HTTP: vLLM's completions of prompt embeddings, computed by Transformers, one by one.

Real messages, real sockets, a real language model; what is missing is vLLM's speed. `make test-vllm` runs the same
checks against vLLM itself.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from peft import PeftModel

NO_LORA = "LoRA is not enabled. Use --enable-lora to enable LoRA."
NO_EMBEDS = "You must set `--enable-prompt-embeds` to input `prompt_embeds`."  # vLLM 0.32's words


class SmallEngine:
    """Serves `llm` on a free port until `close`; `port` names one to be used again.

    `prompt_embeds=False` refuses embeddings as vLLM does without its switch; `key` is what a client must show; while
    `broken` is set, every request is answered with status 500. `served` counts prompts. `loaded` holds what `llm` is
    with adapters, by their name, and `names` all names that ever were in it; `lora=False` refuses adapters.
    """

    def __init__(self, llm, *, prompt_embeds: bool = True, lora: bool = True, key: str = "", port: int = 0) -> None:
        self.llm = llm
        self.lora = lora
        self.loaded: dict = {}
        self.names: list[str] = []
        self.prompt_embeds = prompt_embeds
        self.key = key
        self.broken = self.closed = False
        self.served = 0
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        """Stop listening; connections end without an answer."""
        self.closed = True
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def complete(self, body: dict) -> dict:
        """The reply to a completions request."""
        assert body["repetition_penalty"] == 1 and body["temperature"] == 0  # not those of the folder that is served
        with self.lock:
            llm = self.loaded.get(body["model"], self.llm)
            choices = [self._choice(llm, index, text, body) for index, text in enumerate(body["prompt_embeds"])]
            self.served += len(choices)
        return {"id": "1", "object": "text_completion", "created": 0, "model": "small", "choices": choices}

    def change_adapters(self, path: str, body: dict) -> tuple[int, str]:
        """The status and the reason of a request to load or unload an adapter."""
        name = body["lora_name"]
        if not self.lora:
            return 500, NO_LORA
        if path.endswith("/unload_lora_adapter"):
            return (200, "") if self.loaded.pop(name, None) else (404, f"The lora adapter '{name}' cannot be found.")
        if name in self.loaded:
            return 400, f"The lora adapter '{name}' has already been loaded."
        if not Path(body["lora_path"]).is_dir():
            return 404, f"Loading lora {name} failed: No adapter found for {body['lora_path']}"
        self.loaded[name] = PeftModel.from_pretrained(copy.deepcopy(self.llm), body["lora_path"])
        self.names.append(name)
        return 200, ""

    @torch.no_grad()
    def _choice(self, llm, index: int, text: str, body: dict) -> dict:
        embeds = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)[None]
        stops, written, tops, cache = set(body.get("stop_token_ids") or ()), [], [], None
        while len(written) < body["max_tokens"] and not (written and written[-1] in stops):
            output = llm(inputs_embeds=embeds, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logprobs = output.logits[0, -1].float().log_softmax(-1)
            allowed = logprobs.clone()
            if len(written) < body.get("min_tokens", 0):
                allowed[list(stops)] = -torch.inf
            token = int(allowed.argmax())
            names = set(body.get("logprob_token_ids") or logprobs.topk(body.get("logprobs") or 1).indices.tolist())
            tops.append({f"token_id:{name}": logprobs[name].item() for name in names | {token}})
            written.append(token)
            embeds = llm.get_input_embeddings()(torch.tensor([[token]]))
        logprobs = {"top_logprobs": tops} if body.get("logprobs") else None
        return {"index": index, "text": "", "token_ids": written, "logprobs": logprobs, "finish_reason": "stop"}


def _handler(engine: SmallEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self._refused():
                return
            if self.path == "/v1/models":
                self._reply(200, {"object": "list", "data": [{"id": "small", "object": "model"}]})
            else:
                self._reply(404, {"message": "no such page"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._refused():
                return
            if self.path.endswith("lora_adapter"):
                status, reason = engine.change_adapters(self.path, body)
                self._reply(status, {"message": reason})
            elif body["model"] not in {"small", *engine.loaded}:
                self._reply(404, {"message": f"The model `{body['model']}` does not exist."})
            elif not engine.prompt_embeds:
                self._reply(400, {"message": NO_EMBEDS})
            else:
                self._reply(200, engine.complete(body))

        def _refused(self) -> bool:
            if engine.closed:
                self.close_connection = True
            elif engine.broken:
                self._reply(500, {"message": "EngineDeadError"})
            elif engine.key and self.headers["Authorization"] != f"Bearer {engine.key}":
                self._reply(401, {"message": "Unauthorized"})
            else:
                return False
            return True

        def _reply(self, status: int, content: dict) -> None:
            data = json.dumps(content if status == 200 else {"error": content}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler
