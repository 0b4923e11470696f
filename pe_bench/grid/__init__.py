"""Many runs: plan, executors, display, estimates."""
