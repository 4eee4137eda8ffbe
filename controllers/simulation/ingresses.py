"""The ingresses of a simulated fleet: router, learned retention and admission of each.

Requests go to them in turn. What each part does is its own; here stands who hears of what. Times
are in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from controllers.errors import SettingsError
from controllers.events import Load
from controllers.pieces import Pieces
from controllers.retention import Retention
from controllers.simulation.booking_bus import BookingBus
from controllers.simulation.engines import Engines
from controllers.simulation.entrances import Entrances
from controllers.simulation.keepers import Keepers
from controllers.simulation.own_router import Around, CachelaneRouter
from controllers.simulation.peers import formula_of
from controllers.simulation.prompt_blocks import PrefixTable
from controllers.simulation.result import Floats
from controllers.simulation.routers import PeerRouter, Refused, Router, Sent
from controllers.simulation.settings import FleetSettings
from controllers.simulation.standing import Standings
from controllers.simulation.trace import Request, Trace

OWN_ROUTER = "cachelane"


class Ingresses:
    """`name` of their routers. `has_started`: whether the first token of a request came. Raises
    SettingsError for a router that does not exist, or would not do what the settings ask."""

    def __init__(
        self,
        name: str,
        trace: Trace,
        settings: FleetSettings,
        arrival_ms: Floats,
        standings: Standings,
        table: PrefixTable,
        engines: Engines,
        has_started: Callable[[int], bool],
        rng: Random,
    ) -> None:
        per = trace.blocks_per_trace_block
        self._bus = BookingBus(settings.booking_lag_s * 1e3, settings.shares_bookings)
        self._keepers = Keepers(settings, per)
        self._entrances = Entrances(settings, standings, table, per)
        self._pieces: dict[int, Pieces] = {}  # by request

        def own(index: int) -> Router:
            keeper, excluded = self._keepers.of(index), self._entrances.excluded_of(index)
            around = Around(
                trace.requests,
                arrival_ms,
                per,
                standings,
                has_started,
                self._pieces,
                keeper,
                excluded,
            )
            return CachelaneRouter(index, settings, around, table, rng, self._bus)

        def peer(index: int) -> Router:
            predicts = settings.event_lag_s > 0 or settings.event_loss > 0
            return PeerRouter(formula_of(name), table, engines, rng, per, predicts)

        if name != OWN_ROUTER and settings.admission is not None:
            raise SettingsError(f"admission: only {OWN_ROUTER} has it, router {name!r} does not")
        make = own if name == OWN_ROUTER else peer
        self.routers = [make(index) for index in range(settings.num_routers)]
        self._bus.late.listeners = [router.on_bookings for router in self.routers]

    @property
    def reads_loads(self) -> bool:
        """Somebody wants load records."""
        return self.routers[0].needs_loads or bool(self._keepers)

    @property
    def reads_removals(self) -> bool:
        """Somebody wants to know what caches lost."""
        return bool(self._keepers)

    @property
    def num_waiting(self) -> int:
        """Requests that were not sent anywhere yet."""
        return sum(router.num_waiting for router in self.routers)

    def is_waiting(self, index: int) -> bool:
        """Some request of a router was not sent anywhere yet."""
        return self.routers[index].num_waiting > 0

    def index_of(self, number: int) -> int:
        return number % len(self.routers)

    def set_workers(self, worker_to_blocks: Mapping[str, int], now: float) -> None:
        """Those that may take requests."""
        for router in self.routers:
            router.set_workers(worker_to_blocks)
        self._keepers.set_workers(worker_to_blocks)
        self._entrances.set_workers(worker_to_blocks, now)

    def enter(self, request: Request, now: float) -> Sequence[int]:
        """It comes. Returns the numbers of those that are refused for it, or its own."""
        refused = self._entrances.enter(request, now)
        if request.number not in refused:
            self._router_of(request).submit(request, now)
        return refused

    def decide(self, index: int, now: float) -> Sequence[Sent | Refused]:
        return self.routers[index].decide(now)

    def wake_ms(self, index: int, now: float) -> float:
        return self.routers[index].wake_ms(now)

    def retention(self, request: Request, worker: str, now: float) -> Retention | None:
        """It goes to this worker now. None: what the tiers say is kept of it."""
        return self._keepers.retention(request, worker, now)

    def first_token(self, request: Request, now: float) -> None:
        """Of it, or of a piece of it."""
        self._router_of(request).first_token(request, now)

    def started(self, request: Request, num_cached_tokens: int, now: float) -> None:
        """Its own first token came."""
        self._entrances.started(request, num_cached_tokens, now)

    def piece_ended(self, request: Request, num_tokens: int, now: float) -> None:
        """Its first tokens are computed; the rest waits again."""
        self._pieces.setdefault(request.number, Pieces()).ended(num_tokens)
        self._again(request, now)

    def lost(self, request: Request, now: float) -> None:
        """Its worker died, or does not take it; it waits again."""
        pieces = self._pieces.get(request.number)
        if pieces is not None:
            pieces.begin_again()
        self._again(request, now)

    def handed_back(self, request: Request, now: float) -> None:
        """Its worker has not started it, as too much came before it; it waits again."""
        self._router_of(request).handed_back(request, now)

    def turned_away(self, request: Request, worker: str, now: float) -> None:
        """The worker's gate did not take or keep it; another one may."""
        self._entrances.turned_away(request, worker, now)
        self.lost(request, now)

    def ended(
        self, request: Request, num_cached_tokens: int | None, output_tokens: int, now: float
    ) -> None:
        """Answered, or refused (0 output tokens). `num_cached_tokens`: what it found cached; None:
        it never had a first token."""
        self._router_of(request).release(request, now, output_tokens)
        self._keepers.finished(request, num_cached_tokens, now)
        self._entrances.left(request, num_cached_tokens is not None, now)
        self._pieces.pop(request.number, None)

    def on_load(self, worker: str, load: Load, now: float) -> None:
        self._keepers.tick(now)
        for router in self.routers:
            router.on_load(worker, load, now)

    def on_removed(self, worker: str, hexes: Sequence[str], now: float) -> None:
        self._keepers.removed(worker, hexes, now)

    def beat(self, now: float) -> None:
        """Once in a while: say that they are there."""
        for router in self.routers:
            router.beat(now)

    def deliver(self, now: float) -> None:
        """What they have told each other, as far as it has arrived."""
        self._bus.late.deliver(now)
        self._keepers.deliver(now)

    def _again(self, request: Request, now: float) -> None:
        router = self._router_of(request)
        router.release(request, now, 0)
        router.submit(request, now)

    def _router_of(self, request: Request) -> Router:
        return self.routers[request.number % len(self.routers)]
