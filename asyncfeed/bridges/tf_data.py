"""`to_tf`: a pipeline as a `tf.data.Dataset`.

The dataset is a `tf.raw_ops.GeneratorDataset` of three functions. The first asks Python for a run and gets a
TensorFlow queue, which a thread fills (`Pump`). The second takes from the queue in C++, without Python. The third
closes the queue and tells Python that the iterator has ended, so that the run stops:

    iterator made     -> start(dataset)  opens a feed, returns its queue
    next              -> dequeue         a closed and empty queue is the end
    ended, or dropped -> finish(run)     stops the feed; raises its failure after all items were delivered

A queue carries no errors. The last call carries them: TensorFlow passes on what that call raises, in place of the
end.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Literal

from asyncfeed.bridges.progress import trained_of
from asyncfeed.bridges.run_factory import RunFactory
from asyncfeed.bridges.tf_bridge import bridge
from asyncfeed.bridges.tf_layout import Layout, infer
from asyncfeed.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncfeed.bridges.progress import Progress
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
    progress: Progress | None = None,
    on_open: Callable[[Feed[Any]], None] | None = None,
    memory_limit: Size | None = None,
) -> Any:
    """Return a pipeline as a `tf.data.Dataset`; see `Pipeline.to_tf`."""
    import tensorflow as tf

    factory = RunFactory(
        pipeline, on_open, memory_limit, trained=None if progress is None else trained_of(progress)
    )
    # `tf.distribute` can shard by files only. Here `shard` gives each worker its part.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset_over(factory, pipeline, output_signature, via).with_options(options)
    if progress is not None:
        return dataset  # the first iteration may be the rest of an epoch, so no length is right
    size = tf.data.INFINITE_CARDINALITY if is_endless(pipeline.source, pipeline.stages) else pipeline.size()
    return dataset if size is None else dataset.apply(tf.data.experimental.assert_cardinality(size))


def dataset_over(
    factory: RunFactory, pipeline: Pipeline[Any], output_signature: Any = None, via: Via = "queue"
) -> Any:
    """Return a dataset of unknown length. Each iteration of it is a run of `factory`."""
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
                second = factory.peek_again if factory.method == "to_keras" and not _pads(pipeline) else None
                output_signature = infer(
                    factory.peek(), axes_of(pipeline.source, pipeline.stages), factory.method, second=second
                )
            layout = Layout(output_signature, factory.method)
            factory.signature = layout.signature
            made = bridge().queued if via == "queue" else bridge().generated
            token, dataset = made(factory, layout)
            bridge().interrupts.install()
        except BaseException:
            factory.withdraw()
            raise
        # The factory must live as long as the dataset. A graph that is being built, as for `interleave`, has the
        # dataset as a constant, so there the factory lives as long as the graph.
        weakref.finalize(dataset if graph is None else graph, bridge().forget, token)
    return dataset


def _pads(pipeline: Pipeline[Any]) -> bool:
    """Return whether the longest sample decides the length of a batch.

    Then two batches do not show what varies.
    """
    return any(stage.pads for stage in pipeline.stages)
