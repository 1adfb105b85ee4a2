"""One model on several processes: as it is, copied (with DDP, or gradients averaged on demand), or sharded (FSDP).

Training calls every method of the model through `Replicas.call`, so that the gradient hooks of DDP and the gathering of
FSDP see it, whichever method it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from lavis.common.dist_utils import get_world_size, is_dist_avail_and_initialized
from lavis.common.errors import ConfigError
from lavis.models import BaseModel, StudentModel
from lavis.models.blip2_models import weights

ModelT = TypeVar("ModelT", bound=BaseModel)


class Dispatch(nn.Module):
    """Runs any method of `model` from `forward`, where DDP and FSDP have their hooks."""

    def __init__(self, model: BaseModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """`model.<method>(*args, **kwargs)`."""
        return getattr(self.model, method)(*args, **kwargs)


class Trained:
    """The model as a task's `train_step` gets it: a call is its `forward`, with gradients for all processes.

    `call("losses", …)` is the same for any other method. Attributes are the model's own; `module` is the model itself,
    as of torch's DistributedDataParallel.
    """

    def __init__(self, replicas: Replicas[Any]) -> None:
        self._replicas = replicas
        self.module = replicas.model
        self.call = replicas.call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's `forward`."""
        return self._replicas.call("forward", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replicas.model, name)


class Replicas(Generic[ModelT]):
    """`model` on this run's processes; `fsdp` shards it (each block of the networks on its own).

    Copies are DDP's. Without `ddp` nothing but `average_gradients` makes processes wait for each other.
    """

    def __init__(
        self, model: ModelT, *, fsdp: bool = False, ddp: bool = True, find_unused_parameters: bool = False
    ) -> None:
        if fsdp:
            check_shardable(model)
        if fsdp and not is_dist_avail_and_initialized():
            raise ConfigError("run.fsdp=True needs processes: python -m torch.distributed.run --nproc_per_node=N …")
        model.base_hash()  # now, because the weights are still whole; the model keeps the result
        self.model = model
        self.fsdp = fsdp
        self.module: nn.Module = Dispatch(model)
        if fsdp:
            # FSDP2: every repeated block is gathered when it is needed, the rest (embeddings, projection) for a call.
            # `fully_shard` takes inner modules before the ones around them: the outer call leaves out what is sharded
            # already.
            mesh = torch.distributed.init_device_mesh(model.device.type, (get_world_size(),))
            for child in model.modules():
                if isinstance(child, nn.ModuleList):
                    for block in child:
                        fully_shard(block, mesh=mesh)
            fully_shard(self.module, mesh=mesh)
        elif ddp and is_dist_avail_and_initialized():
            devices = [model.device] if model.device.type == "cuda" else None
            self.module = DistributedDataParallel(
                self.module, device_ids=devices, find_unused_parameters=find_unused_parameters
            )

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run a method of the model with gradients for all processes."""
        return self.module(method, *args, **kwargs)

    @contextmanager
    def evaluated(self) -> Iterator[Any]:
        """What evaluation calls: the model, or if it is sharded a proxy that gathers it before every call."""
        if not self.fsdp:
            yield self.model
            return
        try:
            yield _Gathering(self)
        finally:
            for block in self._blocks():
                block.reshard()

    def gather(self) -> None:
        """Make every process hold the whole model until `evaluated` ends; every process must call it."""
        for block in self._blocks():
            block.unshard()

    def _blocks(self) -> list[FSDPModule]:
        return [module for module in self.module.modules() if isinstance(module, FSDPModule)]

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Around forward and backward of one batch: gradients are exchanged with the `last` batch of an update only."""
        # An exchange for each batch would cost as many as there are batches, for the same sum.
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
        if isinstance(self.module, DistributedDataParallel) and not last:
            with self.module.no_sync():
                yield
        else:
            yield

    def average_gradients(self) -> None:
        """Replace the gradients of plain copies by their mean over the processes; DDP and FSDP have done it."""
        if self.fsdp or isinstance(self.module, DistributedDataParallel) or get_world_size() == 1:
            return
        # In the same order in every process, or the processes would sum gradients of different parameters.
        for parameter in self.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)  # the sum: Gloo, on CPUs, has no mean
                parameter.grad /= get_world_size()

    def parameters(self) -> list[nn.Parameter]:
        """What the optimiser trains."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def trainable_state(self) -> dict[str, Tensor]:
        """Whole weights of what trains, on the CPU; every process must call it."""
        return {name: whole(value) for name, value in self.model.trainable_state_dict().items()}

    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Put whole weights into the model; WeightsError names what does not fit."""
        if not self.fsdp:
            self.model.load_trainable(state)
            return
        own, source = self.model.trainable_state_dict(), "the checkpoint's trainable state"
        weights.require_match(own, state, source)
        weights.require_finite(state, source)
        # Into the shards in place: new tensors would not be those that FSDP and the optimiser hold.
        for name, value in state.items():
            own[name].copy_(_like(value, own[name]))

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimiser's state with whole tensors on the CPU; every process must call it."""
        return whole(optimizer.state_dict())

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Continue from `optimizer_state`."""
        # torch copies the state to the parameters' device and type, but whole: shards are cut out below.
        optimizer.load_state_dict(dict(state))
        if not self.fsdp:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                # AdamW's moments have the parameter's shape and its shards; its step count is one number.
                for name, value in optimizer.state[parameter].items():
                    if isinstance(value, Tensor) and value.dim():
                        optimizer.state[parameter][name] = _like(value, parameter)


class _Gathering:
    """A sharded model that is gathered before every method: generation does not pass through FSDP's hooks."""

    _METHODS = ("act", "write", "generate", "score", "answer_logps", "sequence_logps")

    def __init__(self, replicas: Replicas[Any]) -> None:
        self._replicas = replicas

    def __getattr__(self, name: str) -> Any:
        # Only what computes: all processes must gather together, and an attribute may be read by one of them alone.
        if name in self._METHODS:
            self._replicas.gather()
        return getattr(self._replicas.model, name)


def check_shardable(model: BaseModel, key: str = "run.fsdp") -> None:
    """ConfigError, which names the setting `key`, if FSDP cannot shard `model`."""
    if not isinstance(model, StudentModel):
        # Evaluation gathers the weights before each of a student's methods; what others call is not known.
        raise ConfigError(
            f"{key}=True shards lavis.models.StudentModel, and {type(model).__name__} is none: leave it out"
        )
    named = list(model.named_parameters(remove_duplicate=False))
    policy = {id(parameter) for name, parameter in named if not name.startswith("reference.")}
    if any(id(parameter) in policy for name, parameter in named if name.startswith("reference.")):
        raise ConfigError(
            f"{key}=True cannot shard a policy and a reference that share frozen weights (model.lora_rank, "
            "model.adaptor_tuning): run without it, adapters need little memory"
        )
    if model.swaps_reference:
        raise ConfigError(
            f"{key}=True cannot shard a {type(model).__name__} with a reference of its own (model.ref_pretrained): the "
            "reference's weights take the places of the policy's, and shards have others. Run without it"
        )
    dtypes = sorted({str(parameter.dtype) for parameter in model.parameters() if parameter.requires_grad})
    if len(dtypes) > 1:
        raise ConfigError(
            f"{key}=True needs one dtype for all that trains, here are {' and '.join(dtypes)}: set "
            "model.llm_dtype=float32, and model.vit_precision=float32 where the vision encoder trains"
        )


def whole(value: Any) -> Any:
    """A tensor, or every one in dicts and lists, gathered from its shards, detached, on the CPU; the rest as it is."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _like(value: Tensor, sample: Tensor) -> Tensor:
    """`value`, sharded as `sample` is."""
    if not isinstance(sample, DTensor):
        return value.to(sample.device)
    return distribute_tensor(value.to(sample.device, sample.dtype), sample.device_mesh, sample.placements)
