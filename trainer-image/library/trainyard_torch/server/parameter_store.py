"""Parameters and their optimizer, by name. Independent of trainers, and not thread-safe: `shard` holds the lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Tensors = dict[str, torch.Tensor]


class ParameterStore:
    """Some parameters of a model, on the CPU.

    Args:
        parameters: the parameters by name; they are copied.
        optimizer: makes an optimizer of a list of parameters.

    Raises:
        ValueError: the optimizer has them in several groups, in another order, or incomplete: they could not be identified by name.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self._parameters = {
            name: torch.nn.Parameter(tensor.detach().cpu().clone()) for name, tensor in parameters.items()
        }
        given = list(self._parameters.values())
        self._optimizer = optimizer(given)
        groups = self._optimizer.param_groups
        if len(groups) > 1 or [id(each) for each in groups[0]["params"]] != [id(each) for each in given]:
            raise ValueError(
                f"optimizer must have all parameters of its server in one group, in the order in which it gets them, and has {len(groups)} groups "
                f"of {', '.join(str(len(group['params'])) for group in groups)}, where {len(given)} were given: make it of the list as it is"
            )

    def check(self, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """Check that this is a gradient of these parameters.

        Raises:
            ValueError: it is not.
        """
        if gradients.keys() != self._parameters.keys():
            differ = ", ".join(sorted(gradients.keys() ^ self._parameters.keys()))
            raise ValueError(f"gradients must be of the parameters of this server, and differ in {differ}")
        for name, gradient in gradients.items():
            wanted = self._parameters[name]
            if gradient is not None and (gradient.shape, gradient.dtype) != (wanted.shape, wanted.dtype):
                raise ValueError(
                    f"the gradient of {name} is {tuple(gradient.shape)} of {gradient.dtype}, and the parameter is "
                    f"{tuple(wanted.shape)} of {wanted.dtype}"
                )

    def update(self, gradients: Sequence[Mapping[str, torch.Tensor | None]]) -> None:
        """Take one step of the optimizer with the mean of these gradients. None counts as 0; a parameter without any
        gradient is skipped, as in torch.

        Raises:
            Exception: the error of the optimizer.
        """
        for name, parameter in self._parameters.items():
            parameter.grad = None
            for each in gradients:
                if (gradient := each[name]) is not None:
                    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)
            if parameter.grad is not None:
                parameter.grad.div_(len(gradients))
        self._optimizer.step()

    def copy(self) -> Tensors:
        """Return a copy of the current parameters."""
        return {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def configure(self, options: Mapping[str, Any]) -> None:
        """Set options of the optimizer.

        Raises:
            ValueError: it has no such option.
        """
        for group in self._optimizer.param_groups:
            if unknown := [name for name in options if name == "params" or name not in group]:
                known = ", ".join(sorted(set(group) - {"params"}))
                raise ValueError(f"the optimizer has no option {unknown[0]}: it has {known}")
            group.update(options)

    def state(self) -> dict[str, Any]:
        """Return a copy of the parameters and the optimizer's state by name, and its options."""
        found = self._optimizer.state_dict()
        state = {
            name: {key: _copied(value) for key, value in found["state"].get(number, {}).items()}
            for number, name in enumerate(self._parameters)
        }
        options = {name: value for name, value in found["param_groups"][0].items() if name != "params"}
        return {"parameters": self.copy(), "optimizer": state, "options": options}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load parameters and the optimizer's state; values of other parameters are ignored.

        Raises:
            ValueError: a parameter is missing, or has another shape.
        """
        there = state["parameters"]
        for name, parameter in self._parameters.items():
            if name not in there or there[name].shape != parameter.shape:
                shape = tuple(there[name].shape) if name in there else "no"
                raise ValueError(
                    f"{name} has shape {tuple(parameter.shape)}, and in the checkpoint {shape}: another model?"
                )
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(there[name])
        known = state["optimizer"]
        self._optimizer.load_state_dict(
            {
                "state": {number: known[name] for number, name in enumerate(self._parameters) if known.get(name)},
                "param_groups": [{**state["options"], "params": list(range(len(self._parameters)))}],
            }
        )


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
