"""``hvd.elastic`` of Keras: training that goes on when ranks come and go. It is not there yet, and says so when it is used."""

from typing import NoReturn

from shoal.horovod.common.elastic import refuse


def __getattr__(name: str) -> NoReturn:
    refuse(name)
