# Four Standard_ND96asr_v4 in one availability set, and two Standard_NC24ads_A100_v4 on spot, in a network of their own; ssh from one network.
terraform {
  required_version = ">= 1.6"

  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = ">= 4.75, < 5.0"
    }
  }
}

variable "subscription_id" {
  description = "Subscription of the machines."
  type        = string
}

variable "image" {
  description = "Image that the nodes boot: publisher:offer:sku:version, such as Canonical:ubuntu-24_04-lts:server:24.04.202511100."
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

provider "azurerm" {
  subscription_id                 = var.subscription_id
  resource_provider_registrations = "none"
  features {
    # A machine that Azure began to make and could not finish is in the state, and is removed by the next apply.
    persist_id_on_create_before_polling_for_completion = true
  }
}

module "nodes" {
  source = "../.."

  name = "complete"
  groups = {
    train = { machine = "Standard_ND96asr_v4", count = 4 }
    infer = { machine = "Standard_NC24ads_A100_v4", count = 2, root_gb = 100, capacity = { kind = "spot" } }
  }
  ssh_public_key = var.ssh_public_key
  tags           = { purpose = "example" }

  azure = {
    location = "eastus"
    groups = {
      train = { image = var.image, infiniband = true }
      infer = { image = var.image, zone = "1" }
    }
    internet = "public"
    access   = { allow = var.allow }
  }
}

output "nodes" {
  value = module.nodes.nodes
}
