"""The training loop, which reads top to bottom and knows neither Horovod nor MPI.

A step is: the loader gives this rank its share of the next global batch; forward and backward, in microbatches; `sync`
exchanges the gradients with the step signal in them and updates; the step is committed; callbacks are told. Every
decision comes from the signal, so all ranks make the same one.

    trainer = Trainer(run=run, model=model, loss=loss, sync=sync, schedule=schedule, batches=batches, ...)
    trainer.load_state_dict(restored.state)                 # on resume
    report = trainer.fit()
    report.stopped                                          # False: it was not asked to end early
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hvdtrain.checkpoint.manager import PerRank
from hvdtrain.data.batch import Batch
from hvdtrain.data.loader import Loader
from hvdtrain.metrics import Mean, Means, compute, include, reduce
from hvdtrain.runtime import Run
from hvdtrain.sync.contract import GradientSync, StepResult
from hvdtrain.train.callbacks import Callback
from hvdtrain.train.ema import ParameterAverage
from hvdtrain.train.generators import generator_state, set_generator_state
from hvdtrain.train.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a loss function says of one microbatch: everything is a mean over its samples.

    Attributes:
        loss: zero-dimensional, with a gradient in training.
        metrics: other means, by name; the names are the recipe's `metrics`.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor | float] = field(default_factory=dict)


class LossFunction(Protocol):
    """From a model and a collated batch to its loss and metrics."""

    def __call__(self, model: nn.Module, data: Any) -> Output:
        """Forward pass; `data` is on the run's device and holds at least one sample."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When training is complete: after so many steps, or else after so many epochs."""

    steps: int | None
    epochs: int

    def total_steps(self, steps_per_epoch: int) -> int:
        """Steps of the whole run."""
        return self.epochs * steps_per_epoch if self.steps is None else self.steps

    def is_spent(self, step: int, epoch: int) -> bool:
        """Whether nothing is left to do after `step` steps and `epoch` whole epochs."""
        return epoch >= self.epochs if self.steps is None else step >= self.steps


@dataclass(kw_only=True)
class Trainer:
    """One training of one model; see the module.

    Attributes:
        batches: this rank's shares of the global batches; their position is part of the state.
        evaluation: this rank's part of the held-out samples, afresh at each iteration; None when there are none.
        microbatches: backward passes into which a step's share is cut.
        eval_every_epochs: epochs between evaluations; 0 evaluates only at the end.
        average: of the parameters, for evaluation; one of the callbacks, too.
        stop_asked: whether this rank was asked to stop; the signal makes it everyone's decision.
        step: updates made.
        samples_seen: samples of these updates, over all ranks.
        samples_fitted: those of them that this process made, without what was resumed.
        batch: what the last step used.
        evaluated: the metrics of the last evaluation, with `count`.
    """

    run: Run
    model: nn.Module
    loss: LossFunction
    sync: GradientSync
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    batches: Loader
    budget: Budget
    evaluation: Iterable[Batch] | None = None
    microbatches: int = 1
    eval_every_epochs: int = 1
    callbacks: Sequence[Callback] = ()
    average: ParameterAverage | None = None
    stop_asked: Callable[[], bool] = lambda: False
    step: int = 0
    samples_seen: int = 0
    samples_fitted: int = 0
    batch: Batch | None = None
    stopped: bool = False
    evaluated: dict[str, float] = field(default_factory=dict)
    epoch_means: Means = field(default_factory=dict)
    _evaluated_step: int | None = None

    @property
    def epoch(self) -> int:
        """Whole epochs made, which is also the number of the one in progress."""
        return self.batches.sampler.epoch

    @property
    def elapsed_s(self) -> float:
        """Seconds since this rank was started."""
        return time.monotonic() - self.run.started

    @property
    def learning_rate(self) -> float:
        """Of the optimizer's first group, in the last update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def fit(self) -> None:
        """Collective: train until the budget is spent or a stop was agreed, then evaluate and save."""
        self._tell("fit_started")
        while not self.stopped and not self.budget.is_spent(self.step, self.epoch):
            self._fit_epoch()
        if self.stopped:
            self.run.log.info("stop agreed after step %d", self.step)
        else:
            self._evaluate_once()
        self._tell("fit_ended")
        self.sync.settle()

    def _fit_epoch(self) -> None:
        self.model.train()
        if self.batches.sampler.consumed == 0:
            self.epoch_means = {}
        for batch in self._fetched():
            result = self._train_step(batch)
            self._tell("step_ended", result)
            self.stopped = result.stop
            if self.stopped or (self.budget.steps is not None and self.budget.is_spent(self.step, self.epoch)):
                break
        if self.batches.sampler.finished:
            self._end_epoch()

    def _fetched(self) -> Iterator[Batch]:
        """The rest of the epoch's batches; waiting for one is phase `data`."""
        self.run.phases.enter("data")
        for batch in self.batches:
            self.run.phases.enter("user")
            yield batch
            self.run.phases.enter("data")
        self.run.phases.enter("user")

    def _train_step(self, batch: Batch) -> StepResult:
        result = self._update_from(batch)
        while result.repeat:
            result = self._update_from(batch)
        self._commit(batch, result)
        return result

    def _update_from(self, batch: Batch) -> StepResult:
        self.schedule.apply(self.optimizer, self.step)
        parts = batch.split(self.microbatches)
        filled = sum(samples > 0 for _, samples in parts)
        for index, (data, samples) in enumerate(parts, start=1):
            self.run.phases.enter("forward")
            output = self._forward(data) if samples else Output(loss=torch.zeros(()))
            self.sync.backward(
                output.loss,
                samples,
                global_samples=batch.global_samples,
                last=index == filled,
                metrics=output.metrics,
            )
        return self.sync.update(global_samples=batch.global_samples, stop=self.stop_asked())

    def _forward(self, data: Any) -> Output:
        with self.sync.autocast():
            return self.loss(self.model, self._to_device(data))

    def _commit(self, batch: Batch, result: StepResult) -> None:
        batch.commit()
        self.batch = batch
        self.step += 1
        if result.nonfinite:
            ranks = ", ".join(map(str, result.nonfinite))
            self.run.log.warning("step %d is left out: infinite or not a number on ranks %s", self.step - 1, ranks)
            return
        self.samples_seen += result.samples
        self.samples_fitted += result.samples
        self.epoch_means = include(self.epoch_means, {"loss": result.loss, **result.metrics}, result.samples)

    def _end_epoch(self) -> None:
        self.batches.sampler.next_epoch()
        if self.eval_every_epochs and self.epoch % self.eval_every_epochs == 0 and not self.stopped:
            self._evaluate_once()
        self._tell("epoch_ended")

    def _evaluate_once(self) -> None:
        if self.evaluation is not None and self._evaluated_step != self.step:
            self.evaluated = self.evaluate(self.evaluation)
            self._evaluated_step = self.step
            self._tell("evaluated", self.evaluated)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Collective: the metrics over all samples of all ranks' batches, whose numbers may differ between ranks.

        Returns:
            `loss` and the recipe's metrics, weighted by samples, and `count`, the number of samples.
        """
        training = self.model.training
        self.model.eval()
        averaged = self.average.applied(self.model) if self.average else nullcontext()
        with self.run.phases.during("evaluate"), self.sync.settled(), averaged:
            total = self._local_means(batches)
            reduced = reduce(total, self.run.collectives)
        self.model.train(training)
        return compute(reduced) | {"count": reduced["loss"].count}

    def _local_means(self, batches: Iterable[Batch]) -> Means:
        total = include({}, dict.fromkeys(("loss", *self.sync.metrics), 0.0), samples=0)
        for batch in batches:
            self.run.phases.enter("evaluate")  # progress, for the watchdog
            if batch.samples:
                output = self._forward(batch.data)
                values = {"loss": output.loss, **output.metrics}
                total = include(total, values, batch.samples)
        return total

    def _to_device(self, data: Any) -> Any:
        return move(data, self.run.device)

    def _tell(self, moment: str, *facts: Any) -> None:
        told = reversed(self.callbacks) if moment == "fit_ended" else self.callbacks
        for callback in told:
            getattr(callback, moment)(self, *facts)

    def state_dict(self) -> dict[str, Any]:
        """Everything that another process needs to go on as this one would have: the contents of a checkpoint."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.batches.sampler.state_dict(),
            "sync": self.sync.state_dict(),
            "sync_rank": PerRank(self.sync.rank_state()),
            "trainer": self._own_state(),
            "callbacks": {type(callback).__name__: callback.state_dict() for callback in self.callbacks},
            "generators": PerRank(generator_state()),
        }

    def _own_state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "samples_seen": self.samples_seen,
            "epoch_means": {name: [mean.total, mean.count] for name, mean in self.epoch_means.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state; to be called on every rank, after `sync.prepare()`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.sampler.load_state_dict(state["sampler"])
        self.sync.load_state_dict(state["sync"])
        self.sync.load_rank_state(state.get("sync_rank"))
        own = state["trainer"]
        self.step, self.samples_seen = own["step"], own["samples_seen"]
        self.epoch_means = {name: Mean(*pair) for name, pair in own["epoch_means"].items()}
        for callback in self.callbacks:
            callback.load_state_dict(state["callbacks"].get(type(callback).__name__, {}))
        if state["generators"] is not None:  # None: the number of ranks changed, and each was seeded anew
            set_generator_state(state["generators"])


def move(data: Any, device: torch.device) -> Any:
    """Tensors of a batch, in tuples, lists and dicts, on `device`; anything else as it is."""
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return {key: move(value, device) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return type(data)(move(value, device) for value in data)
    return data
