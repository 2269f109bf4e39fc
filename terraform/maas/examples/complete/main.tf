# Two DGX H100 of a MAAS, from one pool, by their tag.
terraform {
  required_version = ">= 1.6"

  required_providers {
    maas = {
      source  = "canonical/maas"
      version = ">= 2.4.0, < 3.0"
    }
  }
}

variable "ssh_public_key" {
  description = "OpenSSH public key of the access user."
  type        = string
}

provider "maas" {} # MAAS_API_URL and MAAS_API_KEY

module "nodes" {
  source = "../.."

  name           = "complete"
  groups         = { train = { machine = "dgx-h100", count = 2 } }
  ssh_public_key = var.ssh_public_key
  user_data      = "#cloud-config\nssh_authorized_keys: [${jsonencode(var.ssh_public_key)}]\n"

  maas = {
    series  = { train = "noble" }
    tags    = { train = ["dgx-h100"] }
    pool    = "gpu"
    network = "10.0.0.0/24"
  }
}

output "nodes" {
  value = module.nodes.nodes
}
