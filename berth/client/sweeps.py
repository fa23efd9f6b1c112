"""A sweep and its trials."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self, cast

from berth.client.connection import Connection, Record
from berth.client.errors import BerthError
from berth.client.server_answers import Recipe


class Trial(Record):
    """One point of a sweep's space."""

    number: int
    state: str  # running, paused, ended, stopped or failed
    job: str
    job_state: str
    settings: Mapping[str, bool | int | float | str]
    value: float | None  # at its last rung
    values: Mapping[str, float | None]  # of every metric there
    rung: int | None
    target: int | None
    reports: list[Mapping[str, Any]]  # rung and value
    error: str
    lost: bool  # by a fault of the machine
    device_hours: float
    created_at: datetime
    ended_at: datetime | None


class Sweep(Record):
    """A search for good settings; what changes it returns it as it is then."""

    id: str
    short_id: str
    name: str
    owner: str
    pool: str
    state: str  # running, paused, ended, stopped or failed
    reason: str
    metric: str
    direction: str
    metrics: list[Mapping[str, str]]  # name and direction of each
    space: Mapping[str, Any]
    sampler: str
    seed: int
    rungs: list[int]
    max_trials: int | None
    device_hours: float | None  # the budget
    used_device_hours: float
    stop_when: Mapping[str, float] | None  # device_hours and gain
    learns_from: list[str]
    min_width: int
    max_width: int
    best: Trial | None  # in the first metric
    front: list[Trial]  # with several metrics, what no other trial beats in all of them
    created_at: datetime
    ended_at: datetime | None
    warnings: list[str]
    _parts = {"best": Trial, "front": Trial}

    def __init__(self, json: Mapping[str, Any], berth: Connection) -> None:
        super().__init__(json)
        self.berth = berth

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of trials by state."""
        return cast(Mapping[str, int], self.json["trials"])

    @property
    def counted_trials(self) -> int:
        """The number of trials without those that a fault of the machine took, as the budget counts them."""
        return sum(self.counts.values()) - int(self.json.get("lost_trials", 0))  # older servers do not say it

    def refresh(self) -> Self:
        self.json = self.berth.get(f"/sweeps/{self.json['id']}")
        return self

    def trials(self) -> list[Trial]:
        """Read all trials in their order."""
        return [Trial(each) for each in self.berth.pages(f"/sweeps/{self.json['id']}/trials")]

    def change(self, **changes: Any) -> Self:
        """Change ``name``, ``trials``, ``device_hours``, ``stop_when`` or the widths, also while it runs."""
        self.json = self.berth.send("PATCH", f"/sweeps/{self.json['id']}", json=changes).json()
        return self

    def ensemble(self, **options: object) -> Recipe:
        """Submit a job that puts the best trials together.

        Args:
            options: ``best`` (how many), ``by`` ("predictions" or "weights"), ``model``, ``data`` and ``evaluate``.
        """
        return Recipe(self.berth.send("POST", f"/sweeps/{self.id}/ensemble", json=options).json())

    def pause(self) -> Self:
        """Begin no further trial; those that run are paused at their next rung."""
        return self._act("pause")

    def resume(self) -> Self:
        """Continue a paused sweep."""
        return self._act("resume")

    def stop(self) -> Self:
        """End the sweep and its open trials."""
        return self._act("stop")

    def study(self) -> Any:
        """Build an ``optuna.Study`` of the trials until now, for notebooks; nothing is written back.

        Raises:
            BerthError: Optuna is not installed here.
        """
        from berth.client import studies

        try:
            return studies.study_of(self.json, [trial.json for trial in self.trials()])
        except ImportError:
            raise BerthError("A study needs Optuna; install it here with: pip install optuna") from None

    def _act(self, action: str) -> Self:
        self.json = self.berth.send("POST", f"/sweeps/{self.json['id']}/{action}").json()
        return self
