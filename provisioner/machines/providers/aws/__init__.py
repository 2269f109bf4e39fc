"""Amazon EC2: real machines by terraform/aws."""
