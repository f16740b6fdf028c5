"""The members of a backend: what its class declares, which methods are hooks, and whether they can be called."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from relayout.backend.failures import guarded, shown, wrong_answer
from relayout.backend.interface import Backend

_OUR_PACKAGES = ("relayout", "relayout_backends")
_ANSWERS = frozenset(
    "implementations nth_input_layout_requirements nth_result_layout_requirements default_nd_layout layouts_for_dims "
    "supports order_cost at devices".split()
)
_METHODS = tuple(name for name, member in vars(Backend).items() if not name.startswith("_") and callable(member))
_ATTRIBUTES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "name": (str, "a text"),
    "is_enabled": (bool, "True or False"),
    "flows_down": ((bool, frozenset), "True, False or a frozenset of operators"),
    "context": (Backend, "a backend"),
}


def answers_by_type(backend: Backend) -> bool:
    """Whether the backend's class declares `answers_by_type` where it defines its answers, and the backend itself does
    not deny it."""
    if not _ANSWERS.isdisjoint(vars(backend)) or vars(backend).get("answers_by_type", True) is not True:
        return False
    for each in type(backend).__mro__:
        if "answers_by_type" in vars(each):
            return vars(each)["answers_by_type"] is True
        if not _ANSWERS.isdisjoint(vars(each)):
            return False
    return False


def is_pure(backend: Backend) -> bool:
    """Whether the backend's own class, or the backend itself, declares `is_pure`; nothing is inherited."""
    return bool(vars(backend).get("is_pure", vars(type(backend)).get("is_pure", False)))


def is_default(backend: Backend, hook: str) -> bool:
    """Whether neither the backend nor its class defines the hook, so that there is no plugin code to call."""
    return getattr(type(backend), hook) is getattr(Backend, hook) and hook not in vars(backend)


def prices_by_traffic(backend: Backend) -> bool:
    """Whether a conversion costs its traffic, and a node the same in each order that ONNX's operator supports: the
    backend has no prices and no conversion operators of its own, or says so itself, as a table that passes these hooks
    on does."""
    is_plain = all(is_default(backend, hook) for hook in ("conversion", "conversion_cost", "order_cost"))
    return is_plain or vars(backend).get("prices_by_traffic") is True


def misspelt_hooks(backend: Backend) -> Iterator[str]:
    """A warning for each method of a plugin whose name is nearly that of a hook."""
    for kind in type(backend).__mro__:
        if kind.__module__.partition(".")[0] in _OUR_PACKAGES or kind is object:
            continue
        for name, member in vars(kind).items():
            near = get_close_matches(name, _METHODS, n=1, cutoff=0.8)
            if callable(member) and not name.startswith("_") and name not in _METHODS and near:
                text = f"backend {backend.name}: no hook has the name {name}, so relayout never calls it"
                yield f"{text}; did you mean {near[0]}?"


def check_members(backend: Backend) -> None:
    """Raise BackendError if a hook is not a method, or if an attribute, the devices or the host are invalid."""
    for name, (kind, expected) in _ATTRIBUTES.items():
        with guarded(backend, name):
            # Without super().__init__ there is no context.
            member = getattr(backend, name, None)
        if not isinstance(member, kind):
            hint = "a constructor of one's own calls super().__init__(context)" if name == "context" else ""
            raise wrong_answer(backend, name, "", expected, shown(member), hint=hint)
    for name in _METHODS:
        with guarded(backend, name):
            member = getattr(backend, name)
        if not callable(member):
            raise wrong_answer(backend, name, "", "a method", shown(member))
    with guarded(backend, "devices"):
        devices = backend.devices()
    if not isinstance(devices, tuple) or not all(isinstance(device, str) and device for device in devices):
        raise wrong_answer(backend, "devices", "", "a tuple of names", shown(devices))
    with guarded(backend, "host"):
        host = backend.host()
    if host is not None and host not in devices:
        raise wrong_answer(backend, "host", "", " or ".join(["None", *devices]), shown(host))
    for device in devices or ("",):
        hook = f"at({device!r})"
        with guarded(backend, hook):
            own = backend.at(device)
        if not isinstance(own, Backend):
            raise wrong_answer(backend, hook, "", "a backend", shown(own))
