"""Sample calls: order."""

from testing.rule_samples.forms import Sample

SAMPLES: tuple[Sample, ...] = ()
