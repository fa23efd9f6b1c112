"""The small plotly.js: what it keeps, and what happens when the library is built in another way."""

import pytest

from dashboard.assets import plotly_bundle
from dashboard.assets.plotly_bundle import UnknownShape, reduce

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
