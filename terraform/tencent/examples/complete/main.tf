# Two GN10Xp.20XLARGE320 on spot and one GN10Xp.2XLARGE40, in a VPC of their own; ssh from one network.
terraform {
  required_version = ">= 1.6"

  required_providers {
    tencentcloud = {
      source  = "tencentcloudstack/tencentcloud"
      version = ">= 1.83.25, < 2.0"
    }
  }
}

variable "region" {
  description = "Region of the machines."
  type        = string
  default     = "ap-guangzhou"
}

variable "image_id" {
  description = "Image that the nodes boot, img-…: `tccli cvm DescribeImages` lists them."
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

provider "tencentcloud" {
  region = var.region
}

module "nodes" {
  source = "../.."

  name = "complete"
  groups = {
    train = { machine = "GN10Xp.20XLARGE320", count = 2, capacity = { kind = "spot" } }
    infer = { machine = "GN10Xp.2XLARGE40", count = 1, root_gb = 100 }
  }
  ssh_public_key = var.ssh_public_key
  tags           = { purpose = "example" }

  tencent = {
    zones = ["${var.region}-3", "${var.region}-4"]
    groups = {
      train = { image_id = var.image_id }
      infer = { image_id = var.image_id }
    }
    internet = "public"
    access   = { allow = var.allow }
    spread   = "host"
  }
}

output "nodes" {
  value = module.nodes.nodes
}
