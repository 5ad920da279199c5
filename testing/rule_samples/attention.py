"""Sample calls: attention."""

from testing.rule_samples.forms import Sample

SAMPLES: tuple[Sample, ...] = ()
