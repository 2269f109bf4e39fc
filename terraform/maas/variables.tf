variable "name" {
  description = "Name of the cluster: lower-case letters, digits and hyphens, at most 32."
  type        = string
  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", var.name))
    error_message = "The name has lower-case letters, digits and hyphens, at most 32."
  }
}

variable "groups" {
  description = "Groups of nodes by name."
  type = map(object({
    # machine type as the catalogue names it; MAAS does not know it
    machine = string
    # how many nodes; node 0 of group train is train-0
    count = number
  }))
}

variable "ssh_public_key" {
  description = "OpenSSH public key of the access user; it is in the user data."
  type        = string
}

variable "user_data" {
  description = "What cloud-init runs at first boot; may be empty."
  type        = string
  default     = ""
}

variable "tags" {
  description = "Not used: MAAS's own tags choose machines, and none is written."
  type        = map(string)
  default     = {}
}

variable "maas" {
  description = "What only MAAS needs: which machines are allocated, and what is deployed on them."
  type = object({
    # group name → the series that is deployed (noble)
    series = map(string)
    # group name → MAAS tags that each of its machines has to have
    tags = optional(map(list(string)), {})
    # resource pool; empty: any
    pool = optional(string, "")
    # zone of MAAS; empty: any
    zone = optional(string, "")
    # network in which a node's address is, in CIDR notation; empty: its first IPv4 address
    network = optional(string, "")
    # how long deploying a machine may take
    create_timeout = optional(string, "20m")
  })
  validation {
    condition     = var.maas.network == "" || can(cidrhost(var.maas.network, 0))
    error_message = "network is empty, or in CIDR notation."
  }
}
