"""What each group's nodes are to be: machines, versions, roles."""
