"""The number of threads that matrix products use in this process."""

from __future__ import annotations

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]


def limit_blas_threads(count: int) -> None:
    """Sets it for every BLAS library loaded so far, for the whole process and for good.

    More than one thread per engine slows all down when processes share cores: they wait for each
    other at every product.
    """
    threadpool_limits(limits=count, user_api="blas")
