"""The configuration page is what the settings model says."""

from __future__ import annotations

from docs.build_configuration import PAGE, page
from laneway.consumer.settings.reference import sections


def test_the_page_is_what_the_model_says() -> None:
    """docs/configuration.md is up to date; `python docs/build_configuration.py` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_key_says_what_it_means() -> None:
    """No key of laneway.toml is without a meaning, a default (or that it is required), and what it takes."""
    keys = [key for section in sections() for key in section.keys]
    assert len(keys) > 35
    assert [key.name for key in keys if not key.meaning or not key.values] == []
    assert {key.name for key in keys if not key.default} == {"group", "sources"}
