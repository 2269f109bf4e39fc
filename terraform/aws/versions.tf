terraform {
  required_version = ">= 1.6"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.74, < 6.0" # 5.74 knows interface_type "efa-only"
    }
  }
}
