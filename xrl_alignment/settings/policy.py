"""The section `policy:`: how the model answers, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass

from xrl_alignment.settings.checks import (
    DEVICE,
    SECONDS,
    at_least,
    between,
    check,
    check_has_effect,
    list_of,
    one_of,
    one_of_or_class,
)
from xrl_alignment.settings.fields import Section, setting

POLICY_NAMES = ("in_process", "vllm", "http")
ADAPTER_MODES = ("by_name", "merged")
DECODE_MODES = ("free", "admissible")

DEVICES = list_of("devices (cpu, cuda, cuda:<index>)", DEVICE.holds)
URLS = list_of("http(s)://host:port (vLLM's with /v1)", lambda url: url.startswith(("http://", "https://")))


@dataclass(frozen=True)
class PolicyConfig(Section, section="policy"):
    """How the model answers, and where its language model runs (docs/vllm.md)."""

    # How an answer is found.
    decode: str = setting(
        "free",
        "the model writes the command (`free`), or scores the commands that the engine accepts (`admissible`)",
        one_of(*DECODE_MODES),
    )
    num_beams: int = setting(
        5,
        "beams of the beam search; must be 1 with `name=vllm`, which decodes greedily; with `name=http` the server "
        "decides, and so it does for both lengths below",
        between(1, 1024),
    )
    max_length: int = setting(128, "tokens of an answer, at most; a BOS before it counts as one", at_least(2))
    min_length: int = setting(
        1, "tokens of an answer, at least; a BOS before it counts as one; not above `max_length`", at_least(0)
    )
    skip_rejected: bool = setting(
        False,
        "a command that the environment has rejected since it last carried one out is not given again: the next best "
        "answer is; only with `decode=free` and `name=in_process`",
    )
    skip_visited: bool = setting(
        False,
        "a place where it has been since it last took, put or changed an object is not gone to again, unless it was "
        "closed and is still: the next best answer is given; only with `decode=free` and `name=in_process`",
    )
    # Where the model is; a resumed run may have it elsewhere.
    name: str = setting(
        "in_process",
        "where the model runs: in this process; its language model (a hub model: all of it) in `vllm`; all of it in a "
        "policy server (`http`, docs/policy_server.md); `module:Class`: a policy of your own answers instead",
        one_of_or_class(*POLICY_NAMES),
        may_change=True,
    )
    base_urls: list[str] = setting(
        [],
        "vLLM's servers, each ending in `/v1` (empty: the program starts vLLM by itself), or the one policy server",
        URLS,
        may_change=True,
    )
    replica_devices: list[str] = setting(
        [],
        "with `in_process`: further devices, each with a replica of the model; they share each batch with "
        "`run.device` (docs/rollouts.md)",
        DEVICES,
        may_change=True,
    )
    timeout_s: float = setting(
        300.0, "seconds that a request may take; with vLLM it then goes to another server", SECONDS, may_change=True
    )
    vllm_python: str = setting(
        "", "the interpreter that starts vLLM; empty: this one, else the one of `.venv-vllm`", may_change=True
    )
    vllm_args: list[str] = setting([], "further arguments on vLLM's command line", may_change=True)
    adapters: str = setting(
        "by_name",
        "how vLLM gets LoRA adapters (`model.lora_rank`): by name, and again whenever training has changed them, or it "
        "serves a folder in which they are `merged` (evaluation)",
        one_of(*ADAPTER_MODES),
        may_change=True,
    )
    adapter_folder: str = setting(
        "",
        "where adapters are written for vLLM: a folder that servers on other machines see, too; empty: a temporary one",
        may_change=True,
    )

    def check_combinations(self) -> None:
        """The two lengths agree, and what belongs to one place of the model is used with it alone."""
        # What only the model in this process can do: replicas, and looking at further answers.
        here = self.name == "in_process" or not self.replica_devices
        check_has_effect("policy.replica_devices", self.replica_devices, here, "policy.name=in_process")
        writes = self.name == "in_process" and self.decode == "free"
        for name in ("skip_rejected", "skip_visited"):
            given = getattr(self, name)
            needs = "policy.decode=free and policy.name=in_process"
            check_has_effect(f"policy.{name}", given, writes or not given, needs)
        rule = f"at most policy.max_length ({self.max_length})"
        check("policy.min_length", self.min_length, self.min_length <= self.max_length, rule)
        own = self.adapters == "by_name" or (self.name == "vllm" and bool(self.base_urls))
        check_has_effect("policy.adapters", self.adapters, own, "policy.name=vllm and policy.base_urls")
        # What only vLLM has, and what it cannot do.
        if self.name == "vllm":
            greedy = self.num_beams == 1 or self.decode == "admissible"
            check("policy.num_beams", self.num_beams, greedy, "1, and policy.name=vllm decodes greedily")
            return
        for key in ("vllm_python", "vllm_args", "adapter_folder"):
            check_has_effect(f"policy.{key}", getattr(self, key), not getattr(self, key), "policy.name=vllm")
        rule = "one address with policy.name=http, and none with in_process"
        check("policy.base_urls", self.base_urls, len(self.base_urls) == (self.name == "http"), rule)
