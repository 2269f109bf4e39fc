"""How a site's machines come to be: by Terraform. Nothing above knows how."""
