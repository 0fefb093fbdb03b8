"""`to_tf`: a pipeline as a `tf.data.Dataset`.

The dataset is a `tf.raw_ops.GeneratorDataset` of three functions. The first asks Python for a run and gets a
queue of TensorFlow's own, which a thread fills (`Pump`); the second takes from the queue in C++, without
Python; the third closes the queue and tells Python that the iterator is done, so that the run stops:

    iterator made     -> start(dataset)  opens a feed, returns its queue
    next              -> dequeue         closed and empty is the end
    ended, or dropped -> finish(run)     stops the feed; raises what it failed with, once all was delivered

A queue carries no errors. The last call carries them: TensorFlow hands on what it raises in place of the end.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Literal

from asyncfeed.bridges.offer import Offer
from asyncfeed.bridges.tf_bridge import bridge
from asyncfeed.bridges.tf_layout import Layout, infer
from asyncfeed.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.sizes import Size
from asyncfeed.stages.together import axes_of, is_endless

Via = Literal["queue", "from_generator"]


def to_dataset(
    pipeline: Pipeline[Any],
    *,
    output_signature: Any = None,
    via: Via = "queue",
    on_open: Callable[[Feed[Any]], None] | None = None,
    memory_limit: Size | None = None,
) -> Any:
    """Return a pipeline as a `tf.data.Dataset`; see `Pipeline.to_tf`."""
    import tensorflow as tf

    dataset = dataset_over(Offer(pipeline, on_open, memory_limit), pipeline, output_signature, via)
    size = tf.data.INFINITE_CARDINALITY if is_endless(pipeline.source, pipeline.stages) else pipeline.size()
    return dataset if size is None else dataset.apply(tf.data.experimental.assert_cardinality(size))


def dataset_over(offer: Offer, pipeline: Pipeline[Any], output_signature: Any = None, via: Via = "queue") -> Any:
    """Return the runs that are offered as a dataset of unknown length."""
    import tensorflow as tf

    if via not in ("queue", "from_generator"):
        raise PipelineError(f"to_tf: via must be 'queue' or 'from_generator', not {via!r}")
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise PipelineError(
                "to_tf: needs eager execution: call it outside of any tf.Graph, "
                "and without disable_eager_execution()"
            )
        try:
            if output_signature is None:
                second = offer.peek_again if offer.method == "to_keras" and not _pads(pipeline) else None
                output_signature = infer(
                    offer.peek(), axes_of(pipeline.source, pipeline.stages), offer.method, second=second
                )
            layout = Layout(output_signature, offer.method)
            offer.signature = layout.signature
            made = bridge().queued if via == "queue" else bridge().generated
            token, dataset = made(offer, layout)
            bridge().interrupts.install()
        except BaseException:
            offer.withdraw()
            raise
        # Keeping the parts of a dataset alive is how tf.data itself holds on to Python. A graph that is being
        # built, as for `interleave`, has the dataset as a constant.
        weakref.finalize(dataset if graph is None else graph, bridge().forget, token)
    return dataset


def _pads(pipeline: Pipeline[Any]) -> bool:
    """Return whether batches have the lengths of their longest samples, so that two say nothing of the others."""
    return any(stage.pads for stage in pipeline.stages)
