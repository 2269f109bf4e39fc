# Four p4d.24xlarge close together on spot, and two g6.xlarge, in a VPC of their own; ssh from one network.
terraform {
  required_version = ">= 1.6"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.74, < 6.0"
    }
  }
}

variable "region" {
  description = "Region of the machines."
  type        = string
  default     = "us-east-1"
}

variable "image_id" {
  description = "Image that the nodes boot, such as what /aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id says."
  type        = string
}

variable "ssh_public_key" {
  description = "OpenSSH public key of the access user."
  type        = string
}

variable "allow" {
  description = "Networks that may reach ssh."
  type        = list(string)
}

provider "aws" {
  region = var.region
}

module "nodes" {
  source = "../.."

  name = "complete"
  groups = {
    train = { machine = "p4d.24xlarge", count = 4, placement = "cluster", capacity = { kind = "spot" } }
    infer = { machine = "g6.xlarge", count = 2, root_gb = 100 }
  }
  ssh_public_key = var.ssh_public_key
  tags           = { purpose = "example" }

  aws = {
    zones = ["${var.region}a", "${var.region}b"]
    groups = {
      train = { image_id = var.image_id }
      infer = { image_id = var.image_id }
    }
    internet = "public"
    access   = { allow = var.allow }
  }
}

output "nodes" {
  value = module.nodes.nodes
}
