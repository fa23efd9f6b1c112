"""The small plotly.js: what it keeps, and what happens when the library is built in another way."""

import pytest

from dashboard.assets import plotly_bundle
from dashboard.assets.finders import PlotlyFinder
from dashboard.assets.plotly_bundle import UnknownShape, read_bundle, reduce

HEAD = "var l=(e,t)=>()=>(e&&(t=e(e=0)),t);var w=(e,t)=>()=>(t||e((t={exports:{}}).exports,t),t.exports);"
CORE = 'var core=w((a,b)=>{"use strict";b.exports={register(){}}});'


def module(name: str, body: str) -> str:
    return f'var {name}=w((a,b)=>{{"use strict";{body}}});'


def bundle(*modules: str, kinds: str = "bar(),globe()") -> str:
    traces = "".join(
        module(name, f'b.exports={{moduleType:"trace",name:"{name}",need:{need}}}')
        for name, need in (
            ("bar", "shared()"),
            ("globe", "sphere()"),
        )
    )
    entry = module("all", f"var p=core();p.register([{kinds}]);b.exports=p")
    return f"{HEAD}{CORE}{''.join(modules)}{traces}{entry}return all();}})();"


def test_what_our_kinds_of_traces_reach_is_kept_and_the_rest_is_left_out():
    made = reduce(bundle(module("shared", "b.exports=1"), module("sphere", "b.exports=2")))

    assert "var shared=" in made
    assert "var bar=" in made
    assert "sphere" not in made
    assert "globe" not in made
    assert made.endswith("return {parts:[core,shared,bar],start:all};})();")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a bundle of another kind",
        HEAD + CORE,
        bundle(module("shared", "b.exports=1"), kinds="globe()"),
        bundle(module("shared", "b.exports=1")).replace(".register(", ".add("),
        bundle(module("shared", "b.exports=1")).replace("return all();", "return other();"),
    ],
)
def test_a_bundle_of_another_shape_is_not_touched(text):
    with pytest.raises(UnknownShape):
        reduce(text)


def test_the_installed_library_comes_down_to_a_fifth():
    made = plotly_bundle.read_bundle()

    assert len(made) < plotly_bundle.WHOLE.stat().st_size / 5
    assert b"return {parts:[" in made


def test_later_start_cuts_the_library_only_if_its_file_is_not_of_these_sources(home):
    vendor = home.root / "vendor"
    written = vendor / "plotly.min.js"

    def start() -> int:
        """List the files as a start does; returns how often the library was cut."""
        read_bundle.cache_clear()
        assert [name for name, _ in PlotlyFinder().list(None)] == ["plotly.min.js"]
        return read_bundle.cache_info().misses

    assert [start(), start()] == [1, 0]
    made = written.read_bytes()
    written.write_bytes(made[:1000])
    assert [start(), start()] == [1, 0]
    (vendor / "plotly.stamp").write_text("of another version")
    assert [start(), start()] == [1, 0]
    written.unlink()
    assert [start(), start()] == [1, 0]
    assert written.read_bytes() == made
