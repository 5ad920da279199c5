"""Keys of calls that have none: what tells two calls apart, and what must not."""

import torch

from placet.wire.engine.calls import Call, call_of
from placet.wire.process_group_keys import KeyBook, in_callback_of, named

WHAT = (torch.float32, torch.Size((2, 3)), "SUM")


def key(book, what=WHAT, has_site=True):
    return book.key("all_reduce", what, has_site=has_site).text


def test_one_line_gives_one_key_and_two_lines_two():
    book = KeyBook("world")
    first, again = (key(book) for _ in range(2))
    other = key(book)
    assert first == again != other
    assert first.startswith("world/all_reduce/float32[2,3] SUM/test_process_group_keys")


def test_two_calls_in_one_line_differ():
    book = KeyBook("world")
    assert len({key(book), key(book)}) == 2


def test_callers_of_a_helper_differ():
    book = KeyBook("world")

    def helper():
        return key(book)

    one = helper()
    two = helper()
    assert one != two


def test_without_a_site_lines_do_not_matter():
    book = KeyBook("world")
    one = key(book, has_site=False)
    two = key(book, has_site=False)
    assert one == two == "world/all_reduce/float32[2,3] SUM"


def test_where_a_script_is_started_from_does_not_matter():
    # As by torchrun, and by a function of a launcher: the outermost frames differ.
    source = "def train(key, book):\n    return key(book)\n"
    spaces = {}
    exec(compile(source, "/a/train.py", "exec"), spaces)
    train, book = spaces["train"], KeyBook("world")
    found = {}
    script = "found['script'] = train(key, book)"
    exec(compile(script, "/b/main.py", "exec"), {**locals(), "key": key})
    inner = "found['other'] = train(key, book)"
    exec(compile(inner, "/c/launch.py", "exec"), {**locals(), "key": key})
    assert found["script"] == found["other"]


def test_a_name_replaces_the_site():
    book = KeyBook("world")
    with named("gate", priority=3):
        found = book.key("all_reduce", WHAT, has_site=True)
    assert (found.text, found.priority) == (
        "world/all_reduce/float32[2,3] SUM/'gate'",
        3,
    )


def test_callbacks_of_different_calls_differ():
    book = KeyBook("world")
    found = []
    for origin in ("a", "b", "a"):
        with in_callback_of(origin):
            found.append(key(book))
    assert found[0] == found[2] != found[1]


def test_keys_say_what_was_called_and_where():
    book = KeyBook("group 3")
    call = call_of(key(book))
    assert call is not None
    assert (call.group, call.kind, call.what) == (
        "group 3",
        "all_reduce",
        "float32[2,3] SUM",
    )
    assert call.at.startswith("test_process_group_keys.py:")
    with named("a/b"):
        inside = call_of(key(book, what=()))
    assert inside == Call("group 3", "all_reduce", "", "'a/b'")
    bare = call_of(KeyBook("world").key("barrier", (), has_site=False).text)
    assert bare == Call("world", "barrier")
