"""What gpuprov is measured against, written as somebody would who knows the tool well."""
