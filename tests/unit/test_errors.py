"""Every error: its code, its two lines, and how it is recognised after Spark."""

from __future__ import annotations

import pickle
import re

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dsn import Dsn
from penstock.errors import (
    BadValue,
    PenstockError,
    PipelineFileError,
    Remedy,
    RowRefused,
    SinkError,
    SourceError,
    error_classes,
    recognise,
)
from penstock.sinks.postgres.connect import classify_target_error

CLASSES = sorted(error_classes().items())
LINES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


def descendants(cls: type[PenstockError]) -> list[type[PenstockError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in descendants(child))]


def test_error_prints_code_place_and_what_then_what_to_do():
    error = BadValue("name is 'Shop!', wanted a-z", "shop.yml:1", "write shop")

    assert str(error) == "PEN-103 shop.yml:1: name is 'Shop!', wanted a-z\n  Do: write shop"


def test_error_without_place_or_advice_prints_neither():
    assert str(PenstockError("it broke")) == "PEN-900 it broke"
    assert str(PenstockError("it broke", do="nothing")) == "PEN-900 it broke\n  Do: nothing"
    assert str(PenstockError("it broke", "here")) == "PEN-900 here: it broke"


def test_every_error_has_a_code_of_its_own():
    classes = descendants(PenstockError)
    codes = [cls.code for cls in classes]

    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"PEN-[1-9]\d\d", code) for code in codes)


def test_code_says_which_branch_of_the_tree_an_error_is_in():
    for branch in PenstockError.__subclasses__():
        assert {cls.code[:5] for cls in descendants(branch)} == {branch.code[:5]}


def test_wrong_file_ends_with_exit_code_2_and_every_other_error_with_1():
    for cls in descendants(PenstockError):
        assert cls.exit_code == (2 if issubclass(cls, PipelineFileError) else 1)


def test_every_error_says_who_can_fix_it():
    assert all(isinstance(cls.remedy, Remedy) for cls in descendants(PenstockError))
    assert all(cls.remedy is Remedy.OPERATOR for cls in descendants(PipelineFileError))
    assert SourceError.remedy is Remedy.TIME


@pytest.mark.parametrize(("code", "cls"), CLASSES)
def test_error_is_recognised_by_its_text(code, cls):
    error = cls("key (id=981) was refused", "public.orders at 0/9A00110", "fix the row")

    found = recognise(str(error))

    assert type(found) is cls
    assert (found.what, found.where, found.do) == (error.what, error.where, error.do)


@given(LINES, st.just("") | LINES, st.just("") | LINES)
def test_recognised_error_prints_as_the_one_that_was_raised(what, where, do):
    error = RowRefused(what, where, do)

    assert str(recognise(str(error))) == str(error)


def test_error_is_found_within_the_traceback_that_spark_makes_of_it():
    error = RowRefused("the row was refused", "public.orders", "fix the row")
    text = (
        "org.apache.spark.SparkException: Job aborted: Task 0 failed\n"
        '  File "worker.py", line 1\n'
        f"penstock.errors.RowRefused: {error}\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\n"
    )

    found = recognise(text)

    assert isinstance(found, RowRefused)
    assert str(found) == str(error)


def test_text_without_a_code_is_not_recognised():
    assert recognise("java.lang.OutOfMemoryError: heap") is None
    assert recognise("") is None


def test_unknown_code_is_still_a_penstock_error():
    assert type(recognise("PEN-999 here: from a later version")) is PenstockError


@pytest.mark.parametrize(("code", "cls"), CLASSES)
def test_error_survives_a_trip_to_another_process(code, cls):
    error = cls("what", "where", "do")

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is cls
    assert str(copy) == str(error)


def test_target_that_failed_inside_is_asked_again():
    """It does so for a statement that reads a table while another one alters or drops it."""
    dsn = Dsn.parse("postgresql://ana@db1/shop")

    found = classify_target_error(psycopg.errors.InternalError_("cache lookup failed"), dsn)

    assert isinstance(found, SinkError)
    assert found.remedy is Remedy.TIME
