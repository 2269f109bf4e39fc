# Two nodes and a lone one on this machine. The image, the mirror directory and hardware.json come from gpuprov
# (docs/concepts/sandbox.md); by hand they are given as variables.
terraform {
  required_version = ">= 1.6"
}

variable "image" {
  description = "The nodes' image, such as localhost/gpuprov-sandbox:<hash>."
  type        = string
}

variable "mirror_dir" {
  description = "Directory that the mirror serves."
  type        = string
}

variable "hardware" {
  description = "A hardware.json that all three nodes get."
  type        = string
}

variable "ssh_public_key" {
  description = "OpenSSH public key of the access user."
  type        = string
}

variable "name" {
  description = "Name of the cluster."
  type        = string
  default     = "complete"
}

variable "octet" {
  description = "The cluster's own octet, 1 to 250."
  type        = number
  default     = 120
}

variable "runtime" {
  description = "OCI runtime that works on this machine."
  type        = string
  default     = "runc"
}

variable "train" {
  description = "Number of nodes in the group train."
  type        = number
  default     = 2
}

variable "user_data" {
  description = "First-boot script, or anything else that is then kept."
  type        = string
  default     = ""
}

variable "tags" {
  description = "Labels for the containers."
  type        = map(string)
  default     = { purpose = "example" }
}

locals {
  groups = {
    train = { machine = "p4d.24xlarge", count = var.train, zone = "a" }
    infer = { machine = "p4d.24xlarge", count = 1, zone = "b" }
  }
  names = flatten([for name, group in local.groups : [for i in range(group.count) : "${name}-${i}"]])
}

module "nodes" {
  source = "../.."

  name           = var.name
  groups         = local.groups
  ssh_public_key = var.ssh_public_key
  user_data      = var.user_data
  tags           = var.tags

  sandbox = {
    image         = var.image
    runtime       = var.runtime
    podman        = "podman"
    workspace     = abspath(path.root)
    network_octet = var.octet
    mirror_dir    = var.mirror_dir
    hardware      = { for name in local.names : name => var.hardware }
  }
}

output "nodes" {
  value = module.nodes.nodes
}
