"""Federated rounds learn as well as central training, while the server sees nothing but sums."""

import math
import textwrap
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from training.federated import __main__ as program
from training.federated import masking, site
from training.federated.privacy import Privacy
from training.federated.rounds import Server, TooFewSites
from training.federated.site import Local
from training.recipes import named
from training.recipes.measure import metrics_of, score
from training.recipes.named import RecipeError

EXAMPLES = Path(__file__).parents[2] / "examples"
CODE = f"""
    import sys
    from pathlib import Path

    import torch
    from torch import nn

    sys.path.insert(0, {str(EXAMPLES)!r})
    from digits import load_digits

    DATA = Path({str(EXAMPLES / "data" / "digits.csv.gz")!r})

    def build_model():
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))

    def site_data(number, sites):
        images, labels = (each[number::sites] for each in load_digits(DATA)[0].tensors)
        return list(zip(images.split(16), labels.split(16)))

    def evaluation_data():
        return load_digits(DATA)[1]
"""


class Thread:
    """A site in a thread of this process: importing torch five times would take longer than the rounds."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=act, daemon=True)
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def kill(self) -> None:
        """A thread ends when its connection does."""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "federated_owner.py"
    path.write_text(textwrap.dedent(CODE))
    return path


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Sites compute on one thread each; other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def local_of(code: Path, **fields: object) -> Local:
    return Local(f"{code}:build_model", f"{code}:site_data", None, sites=5, **fields)  # type: ignore[arg-type]


def server_of(local: Local, broken: dict[int, Callable[[Connection], None]] | None = None) -> Server:
    """A server whose sites are threads; some do what a broken site does."""

    def start(number: int, pipe: Connection) -> Thread:
        act = (broken or {}).get(number)
        return Thread((lambda: act(pipe)) if act else (lambda: site.serve(local, number, pipe)))

    return Server(local, named.build_model(local.model), 120, start, log=[])


def accuracy(model: nn.Module, code: Path) -> float:
    return metrics_of(score(model.eval(), named.read_samples(str(code), 256)))[0]["value"]


def central(code: Path, epochs: int) -> float:
    """The accuracy of one training on the data of all sites."""
    model = named.build_model(f"{code}:build_model")
    data = [batch for number in range(5) for batch in site.site_data(local_of(code), number)]
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    local = local_of(code, epochs=epochs)
    site.train(model, named.Samples(lambda: iter(data)), start, local)
    return accuracy(model, code)


def test_five_sites_reach_central_accuracy_and_the_server_sees_no_update(code: Path) -> None:
    server = server_of(local_of(code, epochs=4, learning_rate=0.1))
    with server:
        for number in range(1, 11):
            server.round(number)
    assert server.log is not None

    assert accuracy(server.model, code) >= central(code, 30) - 0.01
    assert len(server.log) == 10 * 5
    assert not server.lost
    for sent in server.log:  # each message alone looks random: the levels of plain updates are far smaller
        levels = np.frombuffer(sent.masked, np.uint64).view(np.int64).astype(np.float64)
        assert np.median(np.abs(levels)) > 2**60


def test_proximal_sites_stay_closer_to_the_servers_weights(code: Path) -> None:
    model = named.build_model(f"{code}:build_model")
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def change(proximal: float) -> float:
        local = local_of(code, epochs=4, proximal=proximal)
        update, _ = site.train(model, site.site_data(local, 0), start, local)
        return float(update.norm())

    assert change(1.0) < change(0.0)


def test_masks_cancel_in_the_sum_and_differ_in_each_try() -> None:
    keys = [masking.Keys() for _ in range(4)]
    publics = {number: each.public for number, each in enumerate(keys)}
    updates = [torch.randn(50, dtype=torch.float64) for _ in keys]
    masked = [
        masking.mask(masking.to_levels(update, 4), number, keys[number], publics, "round 1, try 1")
        for number, update in enumerate(updates)
    ]
    again = masking.mask(masking.to_levels(updates[0], 4), 0, keys[0], publics, "round 1, try 2")

    total = masking.from_levels(masking.add(masked))
    assert torch.allclose(total, torch.stack(updates).sum(0), atol=1e-6)
    assert not np.array_equal(masked[0], again)
    assert not torch.allclose(masking.from_levels(masking.add(masked[:3])), torch.stack(updates[:3]).sum(0))


def _vanish(pipe: Connection) -> None:
    """A site that goes after it has got the weights."""
    pipe.send(masking.Keys().public)
    pipe.recv()
    pipe.close()


def _babble(pipe: Connection) -> None:
    pipe.send(masking.Keys().public)
    pipe.recv()
    pipe.send("an update")
    with pytest.raises(EOFError):
        pipe.recv()


def test_a_site_that_vanishes_or_babbles_is_left_out_and_the_round_goes_on(code: Path) -> None:
    server = server_of(local_of(code), {1: _vanish, 3: _babble})
    with server:
        server.round(1)
        assert server.numbers == [0, 2, 4]

    assert sorted(map(str, server.lost)) == [
        "Site 1 is left out from round 1 on: it has vanished.",
        "Site 3 is left out from round 1 on: it sent something else than its update.",
    ]
    assert accuracy(server.model, code) > 0.3


def test_a_site_whose_update_is_nan_is_left_out_with_a_sentence(code: Path) -> None:
    text = code.read_text().replace("def site_data(", "def good_data(")
    code.write_text(
        text
        + textwrap.dedent("""
        def site_data(number, sites):
            if number != 2:
                return good_data(number, sites)
            return torch.full((8, 1, 8, 8), float("nan")), torch.zeros(8, dtype=torch.long)
        """)
    )
    server = server_of(local_of(code))
    with server:
        server.round(1)

    assert [str(each) for each in server.lost] == [
        "Site 2 is left out from round 1 on: its update has NaN or infinite values."
    ]
    assert all(bool(each.isfinite().all()) for each in server.model.parameters())


def test_rounds_end_when_a_sum_would_show_one_site(code: Path) -> None:
    server = server_of(local_of(code), {1: _vanish, 3: _vanish, 4: _vanish})

    with pytest.raises(TooFewSites, match="2 of 5 sites are left"), server:
        server.round(1)


def test_fewer_than_three_sites_are_refused(code: Path) -> None:
    with pytest.raises(RecipeError, match="2 sites are too few"):
        site.check(Local("a", "b", None, sites=2))
    with pytest.raises(RecipeError, match="both --clip and --noise"):
        program.run(["--sites", "3", "--model", "a", "--data", "b", "--clip", "1"])


def test_privacy_clips_each_update_and_tells_what_is_spent() -> None:
    privacy = Privacy(clip=1.0, noise=4.0)
    noise = privacy.protect(torch.zeros(20_000), 4, torch.Generator().manual_seed(0))

    assert float(Privacy(1.0, 1e-9).protect(torch.full((9,), 5.0), 4).norm()) == pytest.approx(1.0)
    assert float(noise.std()) == pytest.approx(4.0 / 2, rel=0.05)  # four such shares add up to 4
    assert privacy.epsilon(1) < privacy.epsilon(10) < privacy.epsilon(100)
    # One Gaussian mechanism with noise 4: about sqrt(2 ln(1/delta)) / 4 plus 1 / (2 * 16).
    assert privacy.epsilon(1) == pytest.approx(math.sqrt(2 * math.log(1e5)) / 4 + 1 / 32, rel=0.02)


def test_a_weak_key_of_another_site_is_refused() -> None:
    with pytest.raises(masking.Refused):
        masking.Keys().shared_with(1)


@pytest.mark.slow
@pytest.mark.process
def test_a_job_runs_its_sites_as_processes_and_keeps_the_model(code: Path, tmp_path: Path) -> None:
    words = ["--sites", "3", "--rounds", "2", "--model", f"{code}:build_model", "--data", f"{code}:site_data"]
    model = program.run([*words, "--evaluate-on", str(code), "--patience-s", "300"])

    assert accuracy(model, code) > 0.5
    assert (tmp_path / "checkpoints" / "1-1" / "state.pt").is_file()
