"""``places.toml``: the file of this account in which its places stand (``$XDG_CONFIG_HOME/holdfast``).

It says which programs run where; how such a file is read and changed is `desk.settings.user_file`'s business.
"""

from __future__ import annotations

from holdfast.desk.settings.user_file import change_text, config_home, parse_text
from holdfast.model.errors import NoSuchName, UsageError
from holdfast.model.place import Place

from .edit import add_table, remove_table
from .regular_file import read_own_text
from .schema import parse_places

SAYS = "what runs where"


def places_path() -> str:
    """Where ``places.toml`` is, whether or not there is one."""
    return f"{config_home()}/places.toml"


def read_places() -> dict[str, Place]:
    """The configured places, in the order of the file; none without a file.

    Raises:
        NotPermitted: others may write it, or a directory on the way to it.
        StorageError: it cannot be read.
        UsageError: it is not TOML, or says what no place has; file, line and key are named.
    """
    path = places_path()
    return parse_places(parse_text(read_own_text(path, SAYS), path))


def add_place(place: Place, *, replace: bool = False) -> str:
    """Put the place into the file, in the stead of the one of its name with `replace`; answers the file's path.

    Raises:
        UsageError: there is one of this name already (and not `replace`), or the file cannot be changed by a program.
        NotPermitted, StorageError: as of `read_places`, or it cannot be written.
    """

    def change(text: str, path: str) -> str:
        tree = parse_text(text, path)
        assert isinstance(tree.value, dict)
        if place.name in tree.value:
            if not replace:
                raise UsageError(f"{tree.value[place.name].where}: {place.name} is there already")
            text = remove_table(text, place.name, path)
        made = add_table(text, place)
        parse_places(parse_text(made, path))
        return made

    return change_text(places_path(), SAYS, change)


def remove_place(name: str) -> str:
    """Take the place out of the file, whatever else is wrong in it; answers the file's path.

    Raises:
        UsageError: it is not in there (NoSuchName), or not as a table of its own.
        NotPermitted, StorageError: as of `add_place`.
    """

    def change(text: str, path: str) -> str:
        tree = parse_text(text, path)
        assert isinstance(tree.value, dict)
        if name not in tree.value:
            raise NoSuchName(f"{path}: {name} is not in there")
        return remove_table(text, name, path)

    return change_text(places_path(), SAYS, change)


def has_place(name: str) -> bool:
    """Whether the file has a table of this name, right or wrong.

    Raises:
        UsageError: it is not TOML.
        NotPermitted, StorageError: as of `read_places`.
    """
    path = places_path()
    tree = parse_text(read_own_text(path, SAYS), path)
    assert isinstance(tree.value, dict)
    return name in tree.value
