# Four gn7i machines close together on spot, and one gn7 with a shared file system, in a VPC of their own; ssh from one network.
terraform {
  required_version = ">= 1.6"

  required_providers {
    alicloud = {
      source  = "aliyun/alicloud"
      version = ">= 1.250, < 2.0"
    }
  }
}

variable "region" {
  description = "Region of the machines."
  type        = string
  default     = "cn-shanghai"
}

variable "image_id" {
  description = "Image that the nodes boot, such as ubuntu_24_04_x64_20G_alibase_20260916.vhd."
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

provider "alicloud" {
  region = var.region
}

module "nodes" {
  source = "../.."

  name = "complete"
  groups = {
    infer = { machine = "ecs.gn7i-c32g1.8xlarge", count = 4, placement = "cluster", capacity = { kind = "spot" } }
    train = { machine = "ecs.gn7-c13g1.26xlarge", count = 1, root_gb = 500 }
  }
  ssh_public_key = var.ssh_public_key
  tags           = { purpose = "example" }

  alicloud = {
    zones = ["${var.region}-b", "${var.region}-g"]
    groups = {
      infer = { image_id = var.image_id }
      train = { image_id = var.image_id }
    }
    internet = "public"
    access   = { allow = var.allow }
    nas      = {}
  }
}

output "nodes" {
  description = "Every node by name."
  value       = module.nodes.nodes
}
