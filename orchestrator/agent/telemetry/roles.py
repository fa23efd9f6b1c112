"""The role of each number of a line: the step, the epoch or the value of a metric."""

from orchestrator.agent.telemetry.keys import Key, read_unit
from orchestrator.agent.telemetry.layouts import Field, Slot
from orchestrator.agent.telemetry.numbers import Number
from orchestrator.agent.telemetry.parts import Part, in_part
from orchestrator.agent.telemetry.vocabulary import (
    BATCHES,
    BESIDE_VALUES,
    ENDS_OF_EPOCHS,
    ENDS_OF_GLOBAL_STEPS,
    ENDS_OF_STEPS,
    EPISODES,
    EPOCH_AND_STEP,
    EPOCH_COUNTS,
    EPOCHS,
    ITERATIONS,
    OF_THE_BEST,
    OFTEN_MEASURED,
    PARTS,
    PLURAL_STEPS,
    RATIOS,
    ROUNDS,
    SAMPLE_COUNTS,
    STEP_AND_END,
    STEP_COUNTS,
    STEP_WORDS,
    WORDS_OF_A_NUMBER,
    is_measure,
    is_setting,
    is_value,
)

MOST_VALUES = 64
GLOBAL_RANK, POSITION_RANK, NO_RANK = 0, -1, len(STEP_WORDS)
ITERATION_RANK = STEP_WORDS.index(ITERATIONS)
NO_PART = Part("")


class Builder:
    """Takes the numbers of a line one by one and works out the role of each."""

    def __init__(self) -> None:
        self.epoch: Slot | None = None
        self.episode: Number | None = None
        self.step: Slot | None = None
        self.step_rank = NO_RANK
        self.within = self.samples = False
        self.count: Slot | None = None  # without a name
        self.position_at = -1  # a bare count at this number comes right behind the epoch
        self.first_is_role: bool | None = None
        self.settings = 0
        self.measured = False  # some number of the line has the name of a measure
        self.prose = False
        self.has_total = False  # some count of steps has its end: "STEP: 25/400, GLOBAL_STEP: 25"
        self.behind_count = False  # the value stands behind its count: "loss at step 100: 0.65"
        self.names_thing = False  # words before the epoch say what is of it: "Plotting results of epoch 2"
        self.count_at = -1  # the number that is a step only if it is whole: "Train loss 5 0.61"
        self.is_logged = False  # by the logger of an evaluation
        self.counts_behind_measure = True  # else that number is a value
        self.loose = False  # some name and its number have only space between them
        self.explicit = False  # some name and its number have a sign between them
        self.fields: dict[str, Field] = {}
        self.is_plural_step = False  # "steps: 200"
        self.best = False  # some number before is the best so far
        self.ends: dict[str, int] = {}  # the numbers that may be the end of the step or epoch, by their names
        self.part = ""  # of a run that the last name with one named: "val" of "| val loss: 0.5 acc: 0.8"
        self.past: frozenset[int] = frozenset()  # the places of counts that tell where the best was
        self.tells_of_past = False
        self.parts: dict[int, Part] = {}  # by the place of a number, the part of a run that stands before it

    def take(self, number: Number) -> None:
        if number.key is not None:
            words = {word.lower() for word in (*number.key.before, *number.key.words)}
            if self.best and not words.isdisjoint(OF_THE_BEST):
                return  # "best acc 0.95 at epoch 17"
            self.best = self.best or "best" in words
        if number.at in self.past and self._is_past(number):
            self.tells_of_past = True
            return
        if number.of is not None and not number.named and self._take_count(number):
            return
        if number.of is not None and number.key is not None and number.key.last.lower() in STEP_AND_END:
            self.set_step(number.slot, GLOBAL_RANK)  # "global_step/max_steps: 10/100"
            return
        if number.of is not None and number.key is not None and number.key.last.lower() in EPOCH_AND_STEP:
            self.set_epoch(Slot(number.at, None))
            self.set_step(Slot(number.of, None), NO_RANK - 1)
            return
        if number.key is None:
            self._take_unnamed(number)
        elif (rank := self._step_rank(number.key)) is not None and "per" not in number.key.words:
            self._take_step(number, number.key, rank)
        elif number.key.last.lower() in (EPOCHS if number.of is None else EPOCHS | EPOCH_COUNTS):
            self._take_epoch(number, number.key)
        elif _counts_episodes(number.key) and self.episode is None:
            self.episode = number
            self._note_role()
        else:
            self._take_value(number, number.key)

    def _is_past(self, number: Number) -> bool:
        """Whether a number names a step or an epoch, and the line has told neither of now."""
        if number.key is None or self.step is not None or self.epoch is not None:
            return False
        word = number.key.last.lower()
        return number.key.step_rank() is not None or word in EPOCHS or word in EPISODES

    def _step_rank(self, key: Key) -> int | None:
        rank = key.step_rank()
        is_beside = self.measured or (self.epoch is not None and not self.settings)
        if (
            rank is None
            and is_beside
            and key.explicit
            and len(key.words) == 1
            and key.last.lower() in PLURAL_STEPS
        ):
            return NO_RANK - 1
        return rank

    def set_step(self, slot: Slot, rank: int, *, within: bool = False, samples: bool = False) -> None:
        self.step, self.step_rank, self.within, self.samples = slot, rank, within, samples
        self.has_total = self.has_total or slot.of is not None
        self._note_role()

    def set_epoch(self, slot: Slot) -> None:
        self.epoch = slot
        self.position_at = (slot.at if slot.of is None else slot.of) + 1
        self._note_role()

    def _note_role(self) -> None:
        if self.first_is_role is None:
            self.first_is_role = not self.fields and not self.settings

    def _take_count(self, number: Number) -> bool:
        """Counts without a name: ``[11/5005]`` behind an epoch, ``20/ 108 batches``, ``5120/60000 samples``."""
        slot, counted = number.slot, number.counted
        samples = counted in SAMPLE_COUNTS
        if self.position_at == number.at:
            if self.step_rank > GLOBAL_RANK:
                self.set_step(slot, POSITION_RANK, within=True, samples=samples or self.samples)
        elif counted in STEP_COUNTS or samples:
            if self.step is None:
                self.set_step(slot, POSITION_RANK, within=True, samples=samples)
        elif counted in EPOCH_COUNTS and self.epoch is None:
            self.set_epoch(slot)
        else:
            self.count = self.count if self.fields else slot
            return False
        return True

    def _take_step(self, number: Number, key: Key, rank: int) -> None:
        if not key.here() or _is_time(number):
            return
        if (
            key.last.lower() in BATCHES
            and number.of is None
            and not self.step
            and not self.epoch
            and (self.fields or self.settings)
        ):
            self.settings += 1  # "lr=0.1, batch=32"
        elif rank < self.step_rank and (self.step_rank != POSITION_RANK or rank == GLOBAL_RANK):
            self.set_step(number.slot, rank)
            self.is_plural_step = key.last.lower() in PLURAL_STEPS

    def _take_epoch(self, number: Number, key: Key) -> None:
        if self.epoch is None and key.here() and not _is_time(number):
            before = (*key.before, *key.words[:-1])
            self.names_thing = len(before) > 1 and not before[-1][:1].isupper()
            self.set_epoch(Slot(number.at, number.of))

    def _take_value(self, number: Number, key: Key) -> None:
        if key.last.lower() in PARTS and number.counted in SAMPLE_COUNTS:
            return  # "train 60000 samples": a size
        part = self.parts.get(number.at, NO_PART)
        name = part.name(key.name())
        if len(key.words) > 1 and key.words[0].lower() in PARTS:
            self.part = key.words[0].lower()
        self.prose = self.prose or key.prose
        plain = not key.explicit and key.last.isalpha() and not _is_often_measured(key)
        is_loose = not key.explicit and key.last.isalpha() and key.last not in BESIDE_VALUES
        self.loose, self.explicit = (
            self.loose or is_loose,
            self.explicit or not plain,
        )
        self.settings += is_setting(key.last)
        if key.last in ENDS_OF_GLOBAL_STEPS or _ends_epochs(key):
            self.ends.setdefault(key.last, number.at)
        if not is_value(key.last) or not is_value(name) or (key.prose and not is_measure(name)):
            return
        if number.of is not None:
            if key.last.lower() in RATIOS:
                self.add(Field(number.at, name, of=number.of))
            return
        unit = read_unit(number.after, name)
        if not unit.bad:
            name = part.name(key.name(unit.name))
            self.add(Field(number.at, name, unit.factor, open_end=number.after == " "))

    def _take_unnamed(self, number: Number) -> None:
        """``12.3k tok/s`` and ``1epoch:train:51-100batch`` without a name before them."""
        if number.after.startswith("epoch:") and self.epoch is None:
            self.set_epoch(Slot(number.at, None))
        elif number.after.startswith("batch:") and self.epoch is not None:
            self.set_step(Slot(number.at, None), POSITION_RANK, within=True)
        unit = read_unit(number.after)
        if number.of is None and unit.rate and not unit.bad:
            self.add(Field(number.at, f"{unit.rate}_per_s", unit.factor))

    def take_ends(self) -> None:
        """Give the step and the epoch the ends that the line names elsewhere: ``"step": 5, "max_steps": 60``."""
        of_steps = ENDS_OF_GLOBAL_STEPS if self.step_rank == GLOBAL_RANK else ENDS_OF_STEPS
        for name, at in self.ends.items():
            is_whole = (
                self.epoch is None or self.step_rank == GLOBAL_RANK
            )  # else the end may be that of an epoch
            if name in of_steps and self.step is not None and self.step.of is None and is_whole:
                self.step = self.step._replace(of=at)
            elif name in ENDS_OF_EPOCHS and self.epoch is not None and self.epoch.of is None:
                self.epoch = self.epoch._replace(of=at, of_is_named=True)

    def take_episode(self) -> bool:
        """Take the episode: the epoch if no other number is the step or the epoch, which this returns, else a value."""
        is_rewarded = any(name.lower().endswith(("reward", "return")) for name in self.fields)
        if self.is_plural_step and is_rewarded and (self.episode is not None or self.epoch is not None):
            self.step = None  # "Episode 5, reward: 12.0, steps: 200" are those of the episode
        if self.episode is None or self.episode.key is None:
            return False
        is_measured = any(map(is_measure, self.fields))
        if self.step is self.epoch is None and (self.episode.key.last.lower() in EPISODES or is_measured):
            self.epoch = Slot(self.episode.at, self.episode.of)
            return True
        self._take_value(self.episode, self.episode.key)
        return False

    def add(self, field: Field) -> None:
        is_named = field.name.lower().startswith(f"{self.part}_")
        if field.name in self.fields and self.part and is_measure(field.name) and not is_named:
            field = field._replace(name=in_part(field.name, self.part))
        if field.name and len(self.fields) < MOST_VALUES:
            self.fields.setdefault(field.name, field)


def _ends_epochs(key: Key) -> bool:
    """Whether a name means the number of epochs: "total epochs"; "bad epochs" counts something else."""
    *words, _ = (word.lower() for word in (*key.before, *key.words))
    return key.last in ENDS_OF_EPOCHS and (key.last != "epochs" or WORDS_OF_A_NUMBER.issuperset(words))


def _counts_episodes(key: Key) -> bool:
    word = key.last.lower()
    return (word in EPISODES or word in ROUNDS) and key.here()


def _is_time(number: Number) -> bool:
    """Whether a number has a unit that no count has: "for 1 epoch 45.12 sec"."""
    unit = read_unit(number.after)
    return unit.bad or unit.name in ("s", "ms", "us")


def _is_often_measured(key: Key) -> bool:
    """Whether a name needs no sign before its value; of a part of a run, where nothing else is called so."""
    word = key.last.lower()
    return is_measure(word) or word in OFTEN_MEASURED or (not key.before and word in PARTS)
