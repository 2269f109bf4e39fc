"""Bad nodes out of service and back."""
