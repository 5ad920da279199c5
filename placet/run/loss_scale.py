"""Dynamic loss scaling for fp16: keep small gradients above the smallest half.

    g = grad(loss * value) / value
    value' = value * backoff      after a step with an infinity (which is skipped)
           = value * growth       after `interval` good steps in a row
           = value                else

The state is a value, and a step of it a pure function: `state.update(found_inf)`. Every
rank must give the same `found_inf` (any rank's), so that all keep the same state.

Source: Micikevicius et al. (arXiv:1710.03740), section 3.2; constants of
torch.amp.GradScaler.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LossScale:
    """The scale of the loss now, and how it moves.

    Args:
        value: what the loss is multiplied by.
        growth: factor after `interval` good steps.
        backoff: factor after a step that overflowed.
        interval: good steps in a row until the scale grows.
        good_steps: good steps since the scale last changed.
        min_value, max_value: the scale stays within these.

    Raises:
        ValueError: factors on the wrong side of 1, or a value out of range.
    """

    value: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good_steps: int = 0
    min_value: float = 2.0**-10
    max_value: float = 2.0**24

    def __post_init__(self) -> None:
        if not (self.growth > 1.0 > self.backoff > 0.0 and self.interval >= 1):
            raise ValueError(
                f"{self}: needs growth > 1, 0 < backoff < 1 and interval >= 1"
            )
        if not self.min_value <= self.value <= self.max_value:
            raise ValueError(f"{self}: needs min_value <= value <= max_value")

    def update(self, found_inf: bool) -> "LossScale":
        """The scale after a step.

        Args:
            found_inf: some gradient on some rank was not finite.
        """
        if found_inf:
            value = max(self.value * self.backoff, self.min_value)
            return replace(self, value=value, good_steps=0)
        if self.good_steps + 1 < self.interval:
            return replace(self, good_steps=self.good_steps + 1)
        value = min(self.value * self.growth, self.max_value)
        return replace(self, value=value, good_steps=0)
