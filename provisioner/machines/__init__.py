"""How a site's machines come to be: by Terraform, or they exist already. Nothing above knows how."""
