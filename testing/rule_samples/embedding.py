"""Sample calls: embedding."""

from testing.rule_samples.forms import Sample

SAMPLES: tuple[Sample, ...] = ()
