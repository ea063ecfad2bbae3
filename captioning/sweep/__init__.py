"""Many runs of one configuration: mixture weights and the published ablations, side by side."""
