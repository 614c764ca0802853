"""The modules of the page's script that need no browser."""

import pytest

from tests.script.modules import Modules

NAMES = ("actions", "confirmation", "fault", "history", "pages", "places", "plot", "quantities", "text")


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Modules:
    return Modules(NAMES, tmp_path_factory.mktemp("script"))
