"""The applications of the simulation: a handler of each kind, whose deliveries end as their fates say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

import laneway
from laneway.pipeline import Delivery, Pipeline
from laneway.processing import Processor
from tests.simulation.batches import handle_batch
from tests.simulation.plan import HANDLERS

if TYPE_CHECKING:
    from tests.simulation.world import World

_playing: World | None = None


def play(world: World) -> None:
    """This is the world that handlers act on from now on."""
    global _playing  # noqa: PLW0603 - one history at a time
    _playing = world


def current() -> World:
    """The world of the history that is played."""
    assert _playing is not None
    return _playing


class _CompiledOnce(Pipeline[Any]):
    """A processor keeps nothing of what it reads, and building one takes as long as a tenth of a history."""

    _compiled: Processor | None = None

    def compile(self, extra_temporary: tuple[type[BaseException], ...] = ()) -> Processor:
        """See `Pipeline`."""
        if self._compiled is None:
            self._compiled = super().compile(extra_temporary)
        return self._compiled


def _decode(value: bytes) -> object:
    """A decoder that hangs on a registry, which is not always there."""
    world = current()
    if not world.cluster.is_calm and world.random.random() < 0.1:
        raise laneway.Unavailable(300)
    return msgspec.json.decode(value)


def _handle(delivery: Delivery[Any]) -> str | None:
    return current().watch.answer(delivery)


async def _handle_async(delivery: Delivery[Any]) -> str | None:
    return current().watch.answer(delivery)


def _handle_batch(deliveries: list[Delivery[Any]]) -> list[Any]:
    return handle_batch(current().watch, deliveries)


async def _handle_batch_async(deliveries: list[Delivery[Any]]) -> list[Any]:
    return handle_batch(current().watch, deliveries)


def _pipeline(handler: str, decodes: bool) -> Pipeline[Any]:
    pipeline = _CompiledOnce(payload=dict[str, int | str], decode=_decode if decodes else None)
    if "batch" in handler:
        # Its limits are those of the history's configuration.
        pipeline.batch_handler()(_handle_batch_async if "async" in handler else _handle_batch)
    else:
        pipeline.handler(_handle_async if handler == "async" else _handle)
    return pipeline


PIPELINES = {
    (handler, decodes): _pipeline(handler, decodes) for handler in HANDLERS for decodes in (False, True)
}
