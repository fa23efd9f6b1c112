"""Federated rounds learn as well as central training, while the server sees nothing but sums."""

import dataclasses
import math
import multiprocessing
import os
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
from training.federated import masking, places, shares, site
from training.federated.channels import FolderChannel, Gone, PipeChannel, wait_for, ways_of_site
from training.federated.masking import Keys, Refused
from training.federated.messages import Message, Unreadable, by_site, encode
from training.federated.places import Jobs, Processes
from training.federated.privacy import Privacy, Spent, secret_normals
from training.federated.rounds import Server, TooFewSites
from training.federated.secure import Member, sum_of, take_off, threshold_of
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
        return Thread((lambda: act(pipe)) if act else (lambda: places.serve_pipe(local, number, pipe)))

    return Server(local, named.build_model(local.model), Processes(start), 120, log=[])


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
    assert not server.lost
    masked = [message for _, message in server.log if message.kind == "mask"]
    assert len(masked) == 10 * 5
    for sent in masked:  # each message alone looks random: the levels of plain updates are far smaller
        levels = np.frombuffer(sent.data, np.uint64).view(np.int64).astype(np.float64)
        assert np.median(np.abs(levels)) > 2**60
    assert all(not message.data for _, message in server.log if message.kind != "mask")


def test_the_server_never_gets_what_uncovers_one_site(code: Path) -> None:
    """It reads what the server received: of each site either its own mask's shares or its key's, and never both."""
    server = server_of(local_of(code), {1: stop_before("mask")})
    with server:
        server.round(1)
    assert server.log is not None

    answers = {
        site: by_site(message.facts["shares"]) for site, message in server.log if message.kind == "unmask"
    }
    sums = {message.facts["label"] for _, message in server.log if message.kind == "unmask"}
    assert sorted(answers) == [0, 2, 3, 4]
    assert len(sums) == 1
    publics = {site: message.facts["publics"][0] for site, message in server.log if message.kind == "keys"}
    for about in range(5):
        secret = shares.join({site: int(each[about]) for site, each in answers.items()})
        is_key = secret.bit_length() <= 256 and Keys(secret).public == publics[about]
        assert is_key == (about == 1)  # the key of the site that was lost, and of no other
    assert [str(each) for each in server.lost] == ["Site 1 is left out from round 1 on: it has vanished."]


def test_proximal_sites_stay_closer_to_the_servers_weights(code: Path) -> None:
    model = named.build_model(f"{code}:build_model")
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def change(proximal: float) -> float:
        local = local_of(code, epochs=4, proximal=proximal)
        update, _ = site.train(model, site.site_data(local, 0), start, local)
        return float(update.norm())

    assert change(1.0) < change(0.0)


def members_of(updates: list[torch.Tensor], label: str = "round 1") -> dict[int, Member]:
    count = len(updates)
    return {
        number: Member(number, label, masking.to_levels(update, count))
        for number, update in enumerate(updates)
    }


@pytest.mark.parametrize("lost", [(), (2,), (0, 4)])
def test_masks_of_sites_that_vanish_are_recovered_and_the_sum_is_of_the_others(lost: tuple[int, ...]) -> None:
    updates = [torch.randn(50, dtype=torch.float64) for _ in range(5)]
    members = members_of(updates)
    roster = {number: each.publics() for number, each in members.items()}
    sealed = {number: each.share(roster) for number, each in members.items()}
    masked = {
        number: each.mask({other: sealed[other][number] for other in sealed if other != number})
        for number, each in members.items()
        if number not in lost
    }
    answers = {
        number: members[number].unmask(frozenset(masked)) for number in list(masked)[: threshold_of(5)]
    }

    digests = {number: each.digest() for number, each in members.items()}

    total, wrong = take_off(masked, roster, set(roster), answers, digests, "round 1")
    assert not wrong

    kept = torch.stack([updates[number] for number in masked])
    assert torch.allclose(masking.from_levels(total), kept.sum(0), atol=1e-6)
    assert not torch.allclose(masking.from_levels(sum_of(list(masked.values()))), kept.sum(0))


def test_a_site_refuses_what_would_uncover_an_update() -> None:
    members = members_of([torch.ones(4, dtype=torch.float64)] * 5)
    roster = {number: each.publics() for number, each in members.items()}
    sealed = {number: each.share(roster) for number, each in members.items()}
    first = members[0]

    with pytest.raises(Refused, match="share of one sum twice"):
        first.share(roster)
    with pytest.raises(Refused, match="cannot read"):
        members[1].mask({2: sealed[2][3]})
    first.mask({other: sealed[other][0] for other in (1, 2, 3)})
    with pytest.raises(Refused, match="too few sites"):
        first.unmask({0, 1})
    with pytest.raises(Refused, match="unmask of one sum twice"):
        first.unmask({0, 1, 2})
    with pytest.raises(Refused, match="its own keys are not among"):
        Member(0, "x", np.zeros(1, np.uint64)).share(roster)


def test_shares_below_the_threshold_tell_nothing_and_sealed_ones_cannot_be_changed() -> None:
    secret = masking.new_secret()
    parts = shares.split(secret, range(5), 3)
    key = b"k" * 32
    sealed = shares.seal(key, "0 to 1", (5, 6))

    assert shares.join({number: parts[number] for number in (4, 0, 2)}) == secret
    assert shares.join({number: parts[number] for number in (4, 0)}) != secret
    assert shares.unseal(key, "0 to 1", sealed) == (5, 6)
    for other in (
        ("0 to 2", sealed),
        ("0 to 1", f"{sealed[:-1]}{'1' if sealed[-1] == '0' else '0'}"),
        ("0 to 1", "x"),
    ):
        with pytest.raises(shares.NotReadable):
            shares.unseal(key, *other)


Odd = Callable[[Message], Message | bytes | None]


def odd_at(step: str, odd: Odd) -> Callable[[Connection], None]:
    """Site 1, which takes part honestly but for one step; ``odd`` makes its answer there, and None is to go."""

    def act(pipe: Connection) -> None:
        channel = PipeChannel(pipe)
        channel.send(Message("hello", {"from": "odd"}))
        member, count = Member(1, "", np.zeros(0, np.uint64)), 0
        while (request := wait_for(channel)).kind != "end":
            if request.kind == "call":
                continue
            if request.kind == "train":
                count = len(request.data) // 4 + 1
            elif request.kind == "keys":
                member = Member(1, request.facts["label"], np.zeros(count, np.uint64))
            answer: Message | bytes | None = honest(member, request)
            if request.kind == step:
                assert isinstance(answer, Message)
                answer = odd(answer)
            if answer is None:
                channel.close()
                return
            pipe.send_bytes(answer if isinstance(answer, bytes) else encode(answer))

    return act


def honest(member: Member, request: Message) -> Message:
    facts: dict[str, object] = {"from": "odd", "label": request.facts["label"]}
    if request.kind == "train":
        return Message("trained", facts)
    if request.kind == "keys":
        return Message("keys", {**facts, "publics": member.publics()})
    if request.kind == "share":
        roster = {key: (each[0], each[1]) for key, each in by_site(request.facts["roster"]).items()}
        return Message("share", {**facts, "sealed": member.share(roster), "digest": member.digest()})
    if request.kind == "mask":
        return Message("mask", facts, member.mask(by_site(request.facts["sealed"])).tobytes())
    return Message("unmask", {**facts, "shares": member.unmask(frozenset(request.facts["survivors"]))})


def stop_before(step: str) -> Callable[[Connection], None]:
    return odd_at(step, lambda _: None)


def saying(**facts: object) -> Odd:
    return lambda answer: Message(answer.kind, {**answer.facts, **facts})


def garble(answer: Message) -> Message:
    """Shares of the right form, sealed for nobody."""
    sealed = {other: "0" * len(text) for other, text in answer.facts["sealed"].items()}
    return Message(answer.kind, {**answer.facts, "sealed": sealed})


def lie(answer: Message) -> Message:
    """A share of each site, one of which is not the one it got."""
    wrong = {site: share + (site == 0) for site, share in answer.facts["shares"].items()}
    return Message(answer.kind, {**answer.facts, "shares": wrong})


@pytest.mark.parametrize(
    ("step", "odd", "why", "summed"),
    [
        pytest.param("keys", saying(publics=None), "its keys are missing", 4, id="no keys"),
        pytest.param("keys", saying(publics=[5, "x"]), "its keys are missing", 4, id="a text as key"),
        pytest.param("keys", saying(publics=[1, 2]), "its keys are no keys", 4, id="a weak key"),
        pytest.param(
            "keys", saying(publics=[float("nan"), 7]), "its keys are missing", 4, id="a key that is no number"
        ),
        pytest.param("share", saying(sealed={}), "no share for some of the sites", 4, id="no shares"),
        pytest.param("share", saying(sealed=[1, 2]), "values by site are missing", 4, id="shares of nobody"),
        pytest.param("share", garble, "the other sites could not read its shares", 4, id="shares for nobody"),
        pytest.param(
            "mask", lambda answer: answer._replace(data=answer.data[:-8]), "another size", 4, id="too short"
        ),
        pytest.param(
            "mask", lambda answer: answer._replace(data=answer.data[:-3]), "another size", 4, id="cut"
        ),
        pytest.param(
            "mask",
            saying(unreadable=[0]),
            "cannot read the share of site 0",
            4,
            id="one that accuses another",
        ),
        pytest.param("mask", saying(unreadable=[999]), "was not sent", 4, id="one that accuses nobody"),
        pytest.param("mask", saying(unreadable=[1]), "was not sent", 4, id="one that accuses itself"),
        pytest.param("mask", lambda answer: encode(answer)[:40], "are no message", 4, id="cut in its head"),
        pytest.param("mask", lambda _: b"\xff" * 50, "are no message", 4, id="bytes"),
        pytest.param("unmask", saying(shares={}), "shares of other sites", 5, id="nothing uncovered"),
        pytest.param("unmask", saying(shares={"0": 1e999}), "shares of other sites", 5, id="infinity"),
        pytest.param(
            "share",
            saying(digest="0" * 64),
            "the shares that it sent do not belong together",
            4,
            id="a wrong digest",
        ),
        pytest.param("unmask", lie, "a wrong share of another site", 5, id="a wrong share"),
        pytest.param("unmask", lambda _: None, "it has vanished", 5, id="gone at the end"),
    ],
)
def test_an_odd_site_is_left_out_with_its_reason_and_the_others_go_on(
    code: Path, step: str, odd: Odd, why: str, summed: int
) -> None:
    server = server_of(local_of(code), {1: odd_at(step, odd)})
    with server:
        server.round(1)
        assert server.summed == summed
        server.round(2)

    assert [(each.site, each.round) for each in server.lost] == [(1, 1)]
    assert why in server.lost[0].why
    assert server.summed == 4
    assert accuracy(server.model, code) > 0.3


@pytest.mark.parametrize("accused", [[999], [1], [-1, 0]], ids=str)
def test_a_site_of_three_that_accuses_nobody_ends_the_rounds(code: Path, accused: list[int]) -> None:
    local = dataclasses.replace(local_of(code), sites=3)
    server = server_of(local, {1: odd_at("mask", saying(unreadable=accused))})

    with server, pytest.raises(TooFewSites, match="was not sent"):
        server.round(1)
    assert [each.site for each in server.lost] == [1]


def test_an_answer_that_comes_twice_counts_once(code: Path) -> None:
    """A line that is cut after a message makes a site send it again."""
    server = server_of(local_of(code))
    receive = PipeChannel.receive
    with server:
        for channel in server._line.channels.values():
            channel.receive = _twice(channel, receive)  # type: ignore[method-assign]
        server.round(1)
        server.round(2)

    assert not server.lost
    assert server.summed == 5


def _twice(channel: object, receive: Callable[[PipeChannel], Message | None]) -> Callable[[], Message | None]:
    again: list[Message] = []

    def receive_twice() -> Message | None:
        if again:
            return again.pop()
        message = receive(channel)  # type: ignore[arg-type]
        if message is not None:
            again.append(message)
        return message

    return receive_twice


def test_a_site_that_says_farewell_is_not_waited_for(code: Path, tmp_path: Path) -> None:
    local, exchange = local_of(code), tmp_path / "exchange"
    to_site, from_site = ways_of_site(exchange, 2)

    def say_farewell() -> None:
        channel = FolderChannel(to_site, from_site)
        channel.send(Message("hello", {"from": "first"}))
        while wait_for(channel).kind != "train":
            pass
        channel.send(Message("farewell", {"from": "first", "why": "its job was cancelled"}))

    server = server_in(exchange, local)
    for number in (0, 1, 3, 4):
        Thread(lambda number=number: places.join(local, number, exchange))  # type: ignore[misc]
    Thread(say_farewell)
    with server:
        server.round(1)
        server.round(2)

    assert [str(each) for each in server.lost] == [
        "Site 2 is left out from round 1 on: its job was cancelled."
    ]
    assert server.summed == 4


def server_in(exchange: Path, local: Local) -> Server:
    """A server of sites in folders; it loads the owner's code first, as threads must not load it together."""
    return Server(local, named.build_model(local.model), Jobs(exchange), 120)


def test_a_site_refuses_a_model_of_another_size_and_noise_of_more_sites_than_there_are(code: Path) -> None:
    local = local_of(code, privacy=Privacy(1.0, 1.0))
    model = named.build_model(local.model)
    ours, theirs = multiprocessing.Pipe()
    one = site.Site(local, 1, model, site.site_data(local, 1), PipeChannel(theirs))
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().tobytes()

    def refusal(facts: dict[str, object], data: bytes) -> str:
        answer = one._answer(Message("train", {"label": "x", **facts}, data))
        assert answer.kind == "refused"
        return str(answer.facts["why"])

    assert refusal({"sites": 5}, weights[:-4]) == "its model has 3,610 values, and the server's has 3,609"
    assert "share the noise of 500 sites, and there are 5" in refusal({"sites": 500}, weights)
    assert one._answer(Message("share", {"label": "x"})).kind == "refused"
    ours.close()


def _babble(pipe: Connection) -> None:
    channel = PipeChannel(pipe)
    channel.send(Message("hello", {"from": "babbler"}))
    while wait_for(channel).kind != "train":
        pass
    pipe.send_bytes(b"an update")
    with pytest.raises(Gone):
        _read_to_the_end(channel)


def _read_to_the_end(channel: PipeChannel) -> None:
    while True:
        wait_for(channel)


_vanish = stop_before("train")


def test_a_site_that_vanishes_or_babbles_is_left_out_and_the_round_goes_on(code: Path) -> None:
    server = server_of(local_of(code), {1: _vanish, 3: _babble})
    with server:
        server.round(1)
        assert server.numbers == [0, 2, 4]

    assert sorted(map(str, server.lost)) == [
        "Site 1 is left out from round 1 on: it has vanished.",
        "Site 3 is left out from round 1 on: it sent something else than its update: the bytes are no message.",
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
    noise = privacy.protect(torch.zeros(20_000), 4)

    assert float(Privacy(1.0, 1e-9).protect(torch.full((9,), 5.0), 4).norm()) == pytest.approx(1.0)
    assert float(noise.std()) == pytest.approx(4.0 / 2, rel=0.05)  # four such shares add up to 4
    assert privacy.epsilon(1) < privacy.epsilon(10) < privacy.epsilon(100)
    # One Gaussian mechanism with noise 4: about sqrt(2 ln(1/delta)) / 4 plus 1 / (2 * 16).
    assert privacy.epsilon(1) == pytest.approx(math.sqrt(2 * math.log(1e5)) / 4 + 1 / 32, rel=0.02)


def test_noise_cannot_be_drawn_again_by_who_knows_the_seed() -> None:
    privacy, drawn = Privacy(clip=1.0, noise=1.0), []
    for _ in range(2):
        torch.manual_seed(7)
        np.random.seed(7)
        drawn.append(privacy.protect(torch.zeros(1_001), 4))

    assert not torch.equal(*drawn)
    assert torch.get_rng_state().equal(
        torch.Generator().manual_seed(7).get_state()
    )  # nothing was taken from it
    assert abs(float(torch.corrcoef(torch.stack(drawn))[0, 1])) < 0.2
    many = secret_normals(200_001)
    assert bool(many.isfinite().all())
    assert float(many.mean()) == pytest.approx(0, abs=0.02)
    assert float(many.std()) == pytest.approx(1, abs=0.02)
    assert float((many.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.01)


def test_only_plain_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    channel = FolderChannel(tmp_path / "a", tmp_path / "b", most_bytes=1_000)
    os.mkfifo(tmp_path / "a" / "000000000001.message")
    with pytest.raises(Unreadable, match="no plain file"):
        channel.receive()
    (tmp_path / "a" / "000000000001.message").unlink()
    (tmp_path / "a" / "000000000001.message").symlink_to("/etc/hostname")
    with pytest.raises(Unreadable, match="cannot be read"):
        channel.receive()
    (tmp_path / "a" / "000000000001.message").unlink()
    (tmp_path / "a" / "000000000001.message").write_bytes(b"0" * 1_001)
    with pytest.raises(Unreadable, match="1,001 bytes, of 1,000 at most"):
        channel.receive()


def test_a_weak_key_of_another_site_is_refused() -> None:
    with pytest.raises(Refused):
        Keys().shared_with(1)


def test_noise_that_was_lost_with_a_site_counts_in_the_epsilon() -> None:
    privacy, whole, less = Privacy(clip=1.0, noise=4.0), Spent(), Spent()
    for _ in range(3):
        whole.add(privacy, 1.0)
        less.add(privacy, 4 / 5)

    assert whole.epsilon == pytest.approx(privacy.epsilon(3))
    assert less.epsilon > whole.epsilon


def test_sites_in_folders_learn_and_one_that_ends_is_left_out_with_its_reason(
    code: Path, tmp_path: Path
) -> None:
    local, exchange = local_of(code), tmp_path / "exchange"
    (exchange / "told").mkdir(parents=True)
    (exchange / "told" / "3").write_text("its job has failed")
    server = server_in(exchange, local)
    for number in (0, 1, 2, 4):
        Thread(lambda number=number: places.join(local, number, exchange))  # type: ignore[misc]

    with server:
        server.round(1)
        server.round(2)

    assert [str(each) for each in server.lost] == ["Site 3 is left out from round 0 on: its job has failed."]
    assert server.summed == 4
    assert accuracy(server.model, code) > 0.5


def test_a_site_that_starts_again_takes_part_in_the_next_round(code: Path, tmp_path: Path) -> None:
    local, exchange = local_of(code), tmp_path / "exchange"
    to_site, from_site = ways_of_site(exchange, 2)

    def die_and_return() -> None:
        channel = FolderChannel(to_site, from_site)
        channel.send(Message("hello", {"from": "first"}))
        while wait_for(channel).kind != "train":
            pass
        places.join(local, 2, exchange)

    server = server_in(exchange, local)
    for number in (0, 1, 3, 4):
        Thread(lambda number=number: places.join(local, number, exchange))  # type: ignore[misc]
    Thread(die_and_return)
    with server:
        server.round(1)
        assert server.summed == 4
        while 2 not in server.numbers:
            server.round(2)

    assert "its job was started again; it takes part in the next round" in str(server.lost[0])


def test_a_message_in_a_folder_is_read_once_and_in_order(tmp_path: Path) -> None:
    one = FolderChannel(tmp_path / "a", tmp_path / "b")
    other = FolderChannel(tmp_path / "b", tmp_path / "a", tmp_path / "told")
    for number in range(3):
        one.send(Message("m", {"n": number}, b"x"))
    restarted = FolderChannel(tmp_path / "a", tmp_path / "b")
    restarted.send(Message("m", {"n": 3}))

    assert [wait_for(other).facts["n"] for _ in range(4)] == [0, 1, 2, 3]
    assert other.receive() is None
    (tmp_path / "told").write_text("its job has ended")
    with pytest.raises(Gone, match="its job has ended"):
        other.receive()


@pytest.mark.slow
@pytest.mark.process
def test_a_job_runs_its_sites_as_processes_and_keeps_the_model(code: Path, tmp_path: Path) -> None:
    words = ["--sites", "3", "--rounds", "2", "--model", f"{code}:build_model", "--data", f"{code}:site_data"]
    model = program.run([*words, "--evaluate-on", str(code), "--patience-s", "300"])

    assert model is not None
    assert accuracy(model, code) > 0.5
    assert (tmp_path / "checkpoints" / "1-2" / "state.pt").is_file()
