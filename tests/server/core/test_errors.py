from tpuserve_server.core.errors import Code, Internal, TooLate


def test_a_copy_is_equal_and_has_no_traceback() -> None:
    try:
        raise Internal("no")
    except Internal as error:
        copy = error.copy()
    assert (type(copy), copy.message, copy.retry_after_s, copy.__traceback__) == (Internal, "no", None, None)


def test_too_late_says_when_to_try_again() -> None:
    error = TooLate("too late", retry_after_s=0.25)
    assert error.code is Code.RESOURCE_EXHAUSTED
    assert error.retry_after_s == 0.25
    assert (type(error.copy()), error.copy().message, error.copy().retry_after_s) == (TooLate, "too late", 0.25)
